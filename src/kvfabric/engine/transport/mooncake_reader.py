"""Mooncake's engine as a one-sided reader: ``mooncake-transfer-engine-non-cuda``, over TCP.

It needs libibverbs.so.1 also where there is no RDMA card, and listens on every interface whatever
address it is given.
"""

import time
from typing import Any

from kvfabric.engine.transport.one_sided import PullError
from kvfabric.engine.transport.staging import StagingArea
from kvfabric.errors import ConfigError


class MooncakeReader:
    """One transfer engine over one staging area."""

    def __init__(self, area: StagingArea, host: str = "127.0.0.1") -> None:
        """Register the area; ``host`` is where peers reach this one.

        Raises:
            ConfigError: Mooncake is not installed or does not start.
        """
        try:
            from mooncake.engine import TransferEngine  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                f"the transport mooncake cannot be used: {error}",
                hint="pip install mooncake-transfer-engine-non-cuda, and the system's libibverbs1",
            ) from None
        self._area = area
        self._engine: Any = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", "tcp", ""):
            raise ConfigError(f"Mooncake does not start on {host}", hint="Use another transport")
        if self._engine.register_memory(area.address, len(area.buffer)):
            raise ConfigError("Mooncake does not register memory", hint="Use another transport")
        self._descriptor = f"{host}:{self._engine.get_rpc_port()} {area.address:x}"

    @property
    def descriptor(self) -> str:
        """Return where the engine is reached and the address of its area."""
        return self._descriptor

    def read(
        self, descriptor: str, remote_offset: int, offset: int, num_bytes: int, deadline_ns: int
    ) -> None:
        """Copy bytes from a peer's area; see ``OneSidedReader``.

        The engine's call knows no deadline; a peer that is gone ends it at once.
        """
        if time.monotonic_ns() > deadline_ns:
            raise PullError("the peer's bytes did not come in time")
        peer, address = descriptor.split(" ")
        remote = int(address, 16) + remote_offset
        status = self._engine.transfer_sync_read(
            peer, self._area.address + offset, remote, num_bytes
        )
        if status:
            raise PullError(f"Mooncake: a read ended with status {status}")

    def progress(self) -> None:
        """Do nothing: the engine has threads of its own."""

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.unregister_memory(self._area.address)
        self._engine = None
