"""Which way KV blocks move between workers, by its name."""

import os
from typing import Final

from kvfabric.engine.transport.address import parse_address
from kvfabric.engine.transport.handshake import Identity
from kvfabric.engine.transport.one_sided import OneSidedReader
from kvfabric.engine.transport.port import BlockMemory, Deadlines, KvTransport, Report
from kvfabric.engine.transport.pulled_transport import PulledTransport
from kvfabric.engine.transport.shared_pool import SharedPool
from kvfabric.engine.transport.socket_transport import SocketTransport
from kvfabric.engine.transport.staging import StagingArea
from kvfabric.errors import ConfigError

AUTO: Final = "auto"
SHARED: Final = "shared"
SOCKETS: Final = "sockets"
TRANSPORTS: Final = (AUTO, SHARED, SOCKETS, "nixl", "mooncake")
STAGING_BYTES: Final = 256 << 20
_LOOPBACK = ("127.", "::1")


def maps_pools(name: str, listen_on: str) -> bool:
    """Return whether workers are to map each other's KV pools, if the system lets them.

    ``auto`` does so between workers of one host, which listen on Unix sockets.

    Raises:
        ConfigError: workers of several hosts cannot.
    """
    is_one_host = bool(parse_address(listen_on).path)
    if name == SHARED and not is_one_host:
        raise ConfigError(
            f"KV transport {SHARED!r} between hosts", hint=f"Write {SOCKETS}, nixl or mooncake"
        )
    return name in {AUTO, SHARED} and is_one_host


def make_transport(
    name: str,
    identity: Identity,
    memory: BlockMemory,
    report: Report,
    *,
    listen_on: str,
    deadlines: Deadlines,
    pool: SharedPool | None = None,
) -> KvTransport:
    """Return a transport that listens for peers.

    ``pool`` is what ``memory`` lies in, if peers may map it; without one, bytes go over sockets.

    Raises:
        ConfigError: it is not installed, has no such name, or cannot listen there.
    """
    if name in {AUTO, SHARED, SOCKETS}:
        return SocketTransport(
            identity, memory, report, listen_on=listen_on, deadlines=deadlines, pool=pool
        )
    area = StagingArea(STAGING_BYTES)
    reader = _reader(name, area, listen_on)
    return PulledTransport(
        identity, memory, report, reader=reader, area=area, listen_on=listen_on, deadlines=deadlines
    )


def _reader(name: str, area: StagingArea, listen_on: str) -> OneSidedReader:
    host = parse_address(listen_on).host or "127.0.0.1"
    # Only those who ask for a library have it.
    if name == "nixl":
        if host.startswith(_LOOPBACK):
            os.environ.setdefault("UCX_NET_DEVICES", "lo")  # else UCX listens everywhere
        from kvfabric.engine.transport.nixl_reader import NixlReader  # noqa: PLC0415

        return NixlReader(area)
    if name == "mooncake":
        from kvfabric.engine.transport.mooncake_reader import MooncakeReader  # noqa: PLC0415

        return MooncakeReader(area, host)
    raise ConfigError(f"KV transport {name!r}", hint=f"Write one of {', '.join(TRANSPORTS)}")
