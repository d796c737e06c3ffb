"""Which part each cable of a fabric is: copper, active optical, or modules by reach with fibre.

Two rules. ``planned`` keeps what the kind of fabric was published with: the medium and length class
of its graph. ``placed`` goes by the length between the racks that the devices stand in: copper up
to 3 m, beyond it optical modules and fibre; ``placed-aoc`` takes active optical cables up to 30 m.
Optical modules are the kind with the shortest reach that spans the length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from kvfabric.catalog.optics import (
    ACTIVE_REACH_M,
    COPPER_REACH_M,
    OPTIC_REACH_M,
    CableKind,
    CablePart,
    Reach,
    shortest_reach,
    smallest_part,
)
from kvfabric.fabric.graph import FloatArray, IntArray, Medium, Topology


class CableRule(Enum):
    """What decides the part of a cable."""

    PLANNED = "planned"
    PLACED = "placed"
    PLACED_AOC = "placed-aoc"


@dataclass(frozen=True, slots=True)
class CableType:
    """One kind of cable: the part, and the reach of optical modules."""

    part: CablePart
    reach: Reach | None = None

    @property
    def name(self) -> str:
        """Return text such as ``optic-400g-sr`` or ``dac-200g``."""
        return self.part.key if self.reach is None else f"{self.part.key}-{self.reach.value}"

    @property
    def reach_m(self) -> int:
        """Return the longest cable of this type."""
        if self.reach is not None:
            return OPTIC_REACH_M[self.reach]
        return COPPER_REACH_M if self.part.kind is CableKind.COPPER else ACTIVE_REACH_M


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CableChoice:
    """The type of every cable.

    Attributes:
        rule: what decided.
        types: in use, in a fixed order.
        type_of: ``[num_links]``, index into ``types``.
    """

    rule: CableRule
    types: tuple[CableType, ...]
    type_of: IntArray

    def names(self) -> list[str]:
        """Return the name of the type of every cable."""
        known = [kind.name for kind in self.types]
        return [known[idx] for idx in self.type_of.tolist()]


_KINDS = (CableKind.OPTIC_END, CableKind.ACTIVE_OPTICAL, CableKind.COPPER)
_REACHES = tuple(Reach)


def planned_cables(topology: Topology) -> CableChoice:
    """Return the cables as the graph has them: its medium, and modules that span its length class.

    Source: copper and fibre counts of "From ATOP to ZCube" (SIGCOMM 2025), Table 7.
    """
    links = topology.links
    is_copper = links.medium == Medium.COPPER
    kinds = np.where(is_copper, _KINDS.index(CableKind.COPPER), _KINDS.index(CableKind.OPTIC_END))
    return _choice(topology, CableRule.PLANNED, kinds, links.length_m.astype(np.float64))


def placed_cables(topology: Topology, length_m: FloatArray, rule: CableRule) -> CableChoice:
    """Return the cables that span the lengths between racks: ``[num_links]`` in metres."""
    kinds = np.full(topology.num_links, _KINDS.index(CableKind.OPTIC_END))
    if rule is CableRule.PLACED_AOC:
        kinds[length_m <= ACTIVE_REACH_M] = _KINDS.index(CableKind.ACTIVE_OPTICAL)
    kinds[length_m <= COPPER_REACH_M] = _KINDS.index(CableKind.COPPER)
    return _choice(topology, rule, kinds, length_m)


def _choice(
    topology: Topology, rule: CableRule, kinds: IntArray, length_m: FloatArray
) -> CableChoice:
    longest = float(length_m.max(initial=0.0))
    limits = [OPTIC_REACH_M[reach] for reach in _REACHES]
    assert shortest_reach(longest) in _REACHES, "refuses what no module spans"
    reaches = np.searchsorted(limits, length_m)
    reaches[kinds != _KINDS.index(CableKind.OPTIC_END)] = 0
    keys = np.stack([kinds, topology.links.rate_bps, reaches], axis=1)
    known, type_of = np.unique(keys, axis=0, return_inverse=True)
    return CableChoice(
        rule=rule,
        types=tuple(_type(row) for row in known.tolist()),
        type_of=type_of.reshape(-1).astype(np.int64),
    )


def _type(key: Sequence[int]) -> CableType:
    kind, rate_bps, reach = _KINDS[key[0]], key[1], _REACHES[key[2]]
    return CableType(smallest_part(kind, rate_bps), reach if kind is CableKind.OPTIC_END else None)
