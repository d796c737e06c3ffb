"""NICs by number of ports and rate per port, with a source each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import format_rate

_READ = "2026-11-30"


@dataclass(frozen=True, slots=True, kw_only=True)
class NicModel:
    """What serves one GPU: a NIC, or two of them where the price says so."""

    key: str
    num_ports: int
    port_rate_bps: int
    source: Source


_ZCUBE = Source(
    SourceKind.PUBLISHED,
    "From ATOP to ZCube, SIGCOMM 2025: one 400G NIC split 2 x 200G, or two 200G NICs",
    _READ,
)
_CX7 = Source(
    SourceKind.PUBLISHED, "ConnectX-7, 400G, as in From ATOP to ZCube, SIGCOMM 2025", _READ
)
_HALF = Source(SourceKind.ASSUMED, "a slower NIC of the same make")
_NEXT = Source(SourceKind.ASSUMED, "the next faster generation, same number of ports")
_MODELS = (
    NicModel(key="1x200g", num_ports=1, port_rate_bps=200 * 10**9, source=_HALF),
    NicModel(key="1x400g", num_ports=1, port_rate_bps=400 * 10**9, source=_CX7),
    NicModel(key="1x800g", num_ports=1, port_rate_bps=800 * 10**9, source=_NEXT),
    NicModel(key="2x100g", num_ports=2, port_rate_bps=100 * 10**9, source=_HALF),
    NicModel(key="2x200g", num_ports=2, port_rate_bps=200 * 10**9, source=_ZCUBE),
    NicModel(key="2x400g", num_ports=2, port_rate_bps=400 * 10**9, source=_NEXT),
)

NICS: Mapping[str, NicModel] = MappingProxyType({model.key: model for model in _MODELS})


def smallest_nic(num_ports: int, port_rate_bps: int) -> NicModel:
    """Return the slowest NIC with that many ports of at least that rate each."""
    for model in NICS.values():
        if model.num_ports == num_ports and model.port_rate_bps >= port_rate_bps:
            return model
    raise ConfigError(
        f"no NIC with {num_ports} port(s) of {format_rate(port_rate_bps)} is in the catalog",
        where="fabric.nic_rate",
        hint=f"Known: {', '.join(NICS)}",
    )
