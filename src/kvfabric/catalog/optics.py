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


class Reach(Enum):
    """How far a pair of optical modules carries, shortest first."""

    SR = "sr"
    DR = "dr"
    FR = "fr"


COPPER_REACH_M = 3
ACTIVE_REACH_M = 30
OPTIC_REACH_M: Mapping[Reach, int] = MappingProxyType(
    {Reach.SR: 50, Reach.DR: 500, Reach.FR: 2_000}
)
REACHES = Source(
    SourceKind.DATASHEET,
    "NVIDIA LinkX 100G-PAM4 overview and MMS4X00-NM, MMS4X50-NM: passive copper up to 3 m, "
    "multimode (SR) 50 m, single mode 500 m (DR) and 2 km (FR); 30 m of active optical cables is "
    "assumed",
    _READ,
)


def shortest_reach(length_m: float) -> Reach:
    """Return the first kind of optical modules that spans a length.

    >>> shortest_reach(30).value
    'sr'
    """
    for reach, most_m in OPTIC_REACH_M.items():
        if length_m <= most_m:
            return reach
    raise ConfigError(
        f"a cable of {length_m:,.0f} m",
        where="racks",
        hint=f"Optical modules of the catalog carry up to {OPTIC_REACH_M[Reach.FR]:,} m",
    )


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


_POWER_800 = Source(
    SourceKind.PUBLISHED, "800G DSP module 14 to 18 W, middle taken; from a secondary copy", _READ
)
_POWER_400 = Source(
    SourceKind.DATASHEET,
    "NVIDIA MMS4X00-NS400: 9 W at most, 5 W with two of its four channels (200G)",
    _READ,
)
_PASSIVE = Source(SourceKind.ASSUMED, "passive copper and glass take no power of their own")
_ACTIVE = Source(SourceKind.ASSUMED, "power unpublished; only cables chosen by their length are")


def _rate_parts(gbit: int, power_w: float | None, source: Source) -> tuple[CablePart, ...]:
    rate = gbit * _GBIT
    optic, dac, aoc = CableKind.OPTIC_END, CableKind.COPPER, CableKind.ACTIVE_OPTICAL
    return (
        CablePart(key=f"optic-{gbit}g", kind=optic, rate_bps=rate, power_w=power_w, source=source),
        CablePart(key=f"dac-{gbit}g", kind=dac, rate_bps=rate, power_w=0.0, source=_PASSIVE),
        CablePart(key=f"aoc-{gbit}g", kind=aoc, rate_bps=rate, power_w=None, source=_ACTIVE),
    )


_PARTS = (
    *_rate_parts(200, 5.0, _POWER_400),
    *_rate_parts(400, 9.0, _POWER_400),
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
