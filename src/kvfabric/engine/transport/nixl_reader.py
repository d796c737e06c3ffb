"""NIXL as a one-sided reader: package ``nixl-cu12``, which runs over UCX without a GPU too.

Without a progress thread (two of them on two busy cores cost tens of ms), so the reader polls. UCX
listens on every interface unless ``UCX_NET_DEVICES`` says otherwise.
"""

import base64
import secrets
import threading
import time
from typing import Any

from kvfabric.engine.transport.one_sided import PullError
from kvfabric.engine.transport.staging import StagingArea
from kvfabric.errors import ConfigError

_POLL_S = 0.0002


class NixlReader:
    """One NIXL agent over one staging area."""

    def __init__(self, area: StagingArea) -> None:
        """Register the area.

        Raises:
            ConfigError: NIXL is not installed or does not start.
        """
        try:
            from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                f"the transport nixl cannot be used: {error}",
                hint="pip install --no-deps nixl-cu12 (it needs numpy only)",
            ) from None
        self._area = area
        self._agent: Any = nixl_agent(
            f"kv-{secrets.token_hex(8)}", nixl_agent_config(enable_prog_thread=False, backends=[])
        )
        self._agent.create_backend("UCX", {"ucx_error_handling_mode": "peer"})
        self._agent.register_memory([(area.address, len(area.buffer), 0, "kv")], "DRAM")
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        self._descriptor = f"{area.address:x} {metadata}"
        self._lock = threading.Lock()
        self._peers: dict[str, tuple[str, int]] = {}  # name and address by descriptor

    @property
    def descriptor(self) -> str:
        """Return the agent's metadata and the address of its area."""
        return self._descriptor

    def _peer(self, descriptor: str) -> tuple[str, int]:
        if descriptor not in self._peers:
            address, metadata = descriptor.split(" ")
            name = self._agent.add_remote_agent(base64.b64decode(metadata))
            self._peers[descriptor] = name, int(address, 16)
        return self._peers[descriptor]

    def read(
        self, descriptor: str, remote_offset: int, offset: int, num_bytes: int, deadline_ns: int
    ) -> None:
        """Copy bytes from a peer's area; see ``OneSidedReader``."""
        agent, handle = self._agent, None
        try:
            with self._lock:
                name, address = self._peer(descriptor)
                local = agent.get_xfer_descs([(self._area.address + offset, num_bytes, 0)], "DRAM")
                remote = agent.get_xfer_descs([(address + remote_offset, num_bytes, 0)], "DRAM")
                handle = agent.initialize_xfer("READ", local, remote, name)
                state = agent.transfer(handle)
            while state == "PROC":
                if time.monotonic_ns() > deadline_ns:
                    raise PullError("the peer's bytes did not come in time")  # noqa: TRY301
                time.sleep(_POLL_S)
                with self._lock:
                    state = agent.check_xfer_state(handle)
        except PullError:
            raise
        except Exception as error:  # noqa: BLE001 - of a library that has many
            self._peers.pop(descriptor, None)
            raise PullError(f"NIXL: {error!r}") from None
        finally:
            if handle is not None:
                with self._lock:
                    agent.release_xfer_handle(handle)
        if state != "DONE":
            raise PullError(f"NIXL: a read ended as {state}")

    def progress(self) -> None:
        """Let UCX answer peers that read by TCP, where there is no way into this memory."""
        with self._lock:
            self._agent.get_new_notifs()

    def close(self) -> None:
        """Let go of the agent."""
        self._agent = None
