"""Which port of a switch each cable is plugged into, as the front panel numbers them.

Cages count from 1. A cage faster than its cables is split into lanes: port 7/2 is the second lane
of cage 7. One plug fills a cage, so all its lanes are of one type and rate (a module splits into
equal ports, and copper does not end in an optical module). Cables of GPUs come first, in the order
of the GPUs; then cables between switches, in the order of the far switch.

Source: NVIDIA LinkX MMS4X00-NM overview: twin-port modules, 2 x 400G or 4 x 200G with splitters,
never mixed within a module.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from kvfabric.catalog.switches import SwitchModel, lanes_of
from kvfabric.fabric.graph import IntArray, Topology
from kvfabric.plan.cabling import CableChoice


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a cable at a switch."""

    switch: int
    side: int
    link: int
    scope: int
    far: int
    lanes: int
    type_idx: int


@dataclass(frozen=True, slots=True)
class Cage:
    """A cage in use: how it is split, the types of its cables, and how many it has."""

    switch: int
    number: int
    lanes: int
    types: frozenset[int]
    num_cables: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PortPlan:
    """The port of every cable end; 0 where the end is a NIC.

    Attributes:
        cage: ``[2, num_links]``, from 1, for ends a and b.
        lane: the same shape, from 1.
        lanes: the same shape: into how many the cage is split.
        cages: all in use.
        num_cages: ``[num_switches]``: cages each switch has.
    """

    cage: IntArray
    lane: IntArray
    lanes: IntArray
    cages: tuple[Cage, ...]
    num_cages: IntArray

    @property
    def num_mixed(self) -> int:
        """Return the cages whose lanes are of several types: no plug does that."""
        return sum(len(cage.types) > 1 for cage in self.cages)

    @property
    def num_beyond(self) -> int:
        """Return the cages that the switches would need and do not have."""
        return sum(cage.number > self.num_cages[cage.switch] for cage in self.cages)


def plan_ports(topology: Topology, cables: CableChoice, models: Sequence[SwitchModel]) -> PortPlan:
    """Return the port of every cable end at a switch.

    A switch that has too few cages for that much order lets types share a cage, which
    ``num_mixed`` counts; one whose cables do not fit at all goes on beyond its last cage, which
    ``num_beyond`` counts.

    Args:
        topology: the fabric.
        cables: the type of every cable.
        models: of every switch.
    """
    shape = (2, topology.num_links)
    cage_of, lane_of, lanes = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    cages: list[Cage] = []
    rates = _cage_rates(topology, models)
    capacities = np.array([model.capacity_bps for model in models], dtype=np.int64)
    num_cages = capacities // rates
    for switch, ends in groupby(_ends(topology, cables, rates), key=lambda end: end.switch):
        for number, plugged in enumerate(_fill(list(ends), int(num_cages[switch])), start=1):
            types = frozenset(end.type_idx for end in plugged)
            cages.append(Cage(switch, number, plugged[0].lanes, types, len(plugged)))
            for lane, end in enumerate(plugged, start=1):
                cage_of[end.side, end.link] = number
                lane_of[end.side, end.link] = lane
                lanes[end.side, end.link] = end.lanes
    return PortPlan(
        cage=cage_of, lane=lane_of, lanes=lanes, cages=tuple(cages), num_cages=num_cages
    )


def _cage_rates(topology: Topology, models: Sequence[SwitchModel]) -> IntArray:
    """Return the rate of the cages of every switch: its class is also sold with faster ones."""
    rates = np.array([model.cage_rate_bps for model in models], dtype=np.int64)
    links, num_gpus = topology.links, topology.num_gpus
    for end in (links.end_a, links.end_b):
        at_switch = end >= num_gpus
        np.maximum.at(rates, end[at_switch] - num_gpus, links.rate_bps[at_switch])
    return rates


def _ends(topology: Topology, cables: CableChoice, cage_rates: IntArray) -> Iterator[_End]:
    """Yield the ends at switches, switch by switch."""
    links, num_gpus = topology.links, topology.num_gpus
    sides = []
    for side, (near, far) in enumerate(((links.end_a, links.end_b), (links.end_b, links.end_a))):
        ids = np.flatnonzero(near >= num_gpus)
        switch = near[ids] - num_gpus
        side_of = np.full(len(ids), side)
        sides.append(
            np.stack(
                [switch, side_of, ids, links.scope[ids], far[ids], links.rate_bps[ids]], axis=1
            )
        )
    table = np.concatenate(sides)
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    for switch, side, link, scope, far, rate_bps in table.tolist():
        lanes = lanes_of(int(cage_rates[switch]), rate_bps)
        yield _End(switch, side, link, scope, far, lanes, int(cables.type_of[link]))


def _fill(ends: list[_End], num_cages: int) -> list[list[_End]]:
    """Return what is plugged into each cage, the most orderly way that fits."""
    ends.sort(key=lambda end: (end.scope, end.lanes, end.type_idx, end.far, end.link))
    filled = _plug(ends, by_type=True)
    if len(filled) > num_cages:
        ends.sort(key=lambda end: (end.lanes, end.type_idx, end.scope, end.far, end.link))
        filled = _plug(ends, by_type=True)
    return filled if len(filled) <= num_cages else _plug(ends, by_type=False)


def _plug(ends: Sequence[_End], *, by_type: bool) -> list[list[_End]]:
    """Fill cage after cage; a new one where lanes, or ``by_type`` the type of cable, change."""
    cages: list[list[_End]] = []
    for end in ends:
        last = cages[-1][-1] if cages else None
        if (
            last is None
            or last.lanes != end.lanes
            or len(cages[-1]) == last.lanes
            or (by_type and last.type_idx != end.type_idx)
        ):
            cages.append([])
        cages[-1].append(end)
    return cages
