"""Cable ends and cables: optical modules, copper cables, fibre trunks, with a source each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import format_rate

_READ = "2026-11-30"
_GBIT = 10**9


class CableKind(Enum):
    """What a part of a cable is."""

    OPTIC_END = "optic"
    COPPER = "dac"
    ACTIVE_OPTICAL = "aoc"
    FIBRE_TRUNK = "mpo-trunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class CablePart:
    """An optical module (one end), or a cable with or without its ends.

    Attributes:
        key: catalog name.
        kind: what it is.
        rate_bps: per direction; 0 for a fibre trunk, which carries any rate.
        power_w: of one piece, or None where unpublished; copper and fibre take none.
        source: where rate and power come from.
    """

    key: str
    kind: CableKind
    rate_bps: int
    power_w: float | None
    source: Source


_RATES = Source(
    SourceKind.PUBLISHED, "rates in use in From ATOP to ZCube, SIGCOMM 2025, Table 7", _READ
)
_POWER_800 = Source(
    SourceKind.PUBLISHED, "800G DSP module 14 to 18 W, middle taken; from a secondary copy", _READ
)
_PASSIVE = Source(SourceKind.ASSUMED, "passive copper and glass take no power of their own")
_ACTIVE = Source(SourceKind.ASSUMED, "power unpublished; no builder plans active optical cables")


def _rate_parts(gbit: int, power_w: float | None, source: Source) -> tuple[CablePart, ...]:
    rate = gbit * _GBIT
    optic, dac, aoc = CableKind.OPTIC_END, CableKind.COPPER, CableKind.ACTIVE_OPTICAL
    return (
        CablePart(key=f"optic-{gbit}g", kind=optic, rate_bps=rate, power_w=power_w, source=source),
        CablePart(key=f"dac-{gbit}g", kind=dac, rate_bps=rate, power_w=0.0, source=_PASSIVE),
        CablePart(key=f"aoc-{gbit}g", kind=aoc, rate_bps=rate, power_w=None, source=_ACTIVE),
    )


_PARTS = (
    *_rate_parts(200, None, _RATES),
    *_rate_parts(400, None, _RATES),
    *_rate_parts(800, 16.0, _POWER_800),
    CablePart(
        key="mpo-trunk",
        kind=CableKind.FIBRE_TRUNK,
        rate_bps=0,
        power_w=0.0,
        source=_PASSIVE,
    ),
)

CABLE_PARTS: Mapping[str, CablePart] = MappingProxyType({part.key: part for part in _PARTS})
FIBRE_TRUNK = CABLE_PARTS["mpo-trunk"]


def smallest_part(kind: CableKind, rate_bps: int) -> CablePart:
    """Return the slowest part of a kind that carries ``rate_bps``."""
    for part in CABLE_PARTS.values():
        if part.kind is kind and part.rate_bps >= rate_bps:
            return part
    raise ConfigError(
        f"no {kind.value} for {format_rate(rate_bps)} is in the catalog",
        where="fabric.port_rate",
        hint="The fastest is 800 Gbit/s",
    )
