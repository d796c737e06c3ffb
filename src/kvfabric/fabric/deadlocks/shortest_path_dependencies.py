"""Which lossless buffers wait for which when messages may take any shortest path of a fabric.

Exact without listing a path. A switch's choices depend on the target switch alone, so one hop is
followed by another if and only if, for some target, both are used: that is one matrix product over
all targets per switch. Hops are those of ``PathTable``: a cable, or the relay through a NIC.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvfabric.fabric.deadlocks.buffer_dependencies import (
    ONE_PRIORITY,
    BufferDependencies,
    HopPriorities,
    number_buffers,
)
from kvfabric.fabric.deadlocks.switch_pairs import BoolArray, switch_pairs
from kvfabric.fabric.graph import IntArray
from kvfabric.fabric.measured.measures import UNREACHABLE, ByteArray
from kvfabric.fabric.routes.paths import PathTable

_TARGETS_AT_ONCE = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forwarding:
    """The hops between switches, and who sends to whom.

    Attributes:
        tail: switch each hop leaves, ``[num_hops]``.
        head: switch each hop enters.
        first_channel: its channel, or the one into the NIC of its relay.
        last_channel: its channel, or the one out of the NIC of its relay.
        distances: hops on the shortest way, ``[num_switches, num_targets]``; 255 for none.
        sources: whether messages for a target enter there, ``[num_switches, num_targets]``.
        targets: the switch of each target.
    """

    tail: IntArray
    head: IntArray
    first_channel: IntArray
    last_channel: IntArray
    distances: ByteArray
    sources: BoolArray
    targets: IntArray


def forwarding_of(paths: PathTable) -> Forwarding:
    """Return how a fabric forwards; targets are the switches that messages leave at.

    Of parallel cables the first stands for all.
    """
    topology = paths.topology
    sources = switch_pairs(paths)
    targets = np.flatnonzero(sources.any(axis=0))
    distances = paths.distances[:, targets]
    is_reached = distances != UNREACHABLE
    if topology.hosts_forward:
        hops = [hop for members in paths.bundle_channels for hop in members]
        relays = np.array([paths.relays[hop - topology.num_channels] for hop in hops], np.int64)
        first, last = relays.reshape(-1, 3)[:, 1:].T
    else:
        hops = [members[0] for members in paths.bundle_channels]
        first = last = np.array(hops, np.int64)
    return Forwarding(
        tail=topology.channel_tail[first] - topology.num_gpus,
        head=topology.channel_head[last] - topology.num_gpus,
        first_channel=first,
        last_channel=last,
        distances=np.where(is_reached, distances // paths.links_per_hop, UNREACHABLE),
        sources=sources[:, targets],
        targets=targets,
    )


def used_hops(forwarding: Forwarding) -> Iterator[tuple[int, IntArray, BoolArray]]:
    """Yield which hops messages use, for a number of targets at a time.

    Yields:
        Place of the hop on its path, from 1; numbers of the targets; ``[num_hops, targets]``. The
        places of some targets follow each other, then come the next targets.
    """
    num_targets = forwarding.distances.shape[1]
    for first in range(0, num_targets, _TARGETS_AT_ONCE):
        targets = np.arange(first, min(first + _TARGETS_AT_ONCE, num_targets))
        distances = forwarding.distances[:, targets].astype(np.int16)
        is_closer = distances[forwarding.tail] == distances[forwarding.head] + 1
        at, place = forwarding.sources[:, targets], 1
        while (used := is_closer & at[forwarding.tail]).any():
            yield place, targets, used
            at, place = _entered(forwarding, used), place + 1


def _entered(forwarding: Forwarding, used: BoolArray) -> BoolArray:
    """Return ``[num_switches, targets]``: the switches that used hops enter."""
    entered = np.zeros((len(forwarding.distances), used.shape[1]), bool)
    order = np.argsort(forwarding.head, kind="stable")
    switches, first = np.unique(forwarding.head[order], return_index=True)
    entered[switches] = np.logical_or.reduceat(used[order], first, axis=0)
    return entered


def cable_dependencies(
    forwarding: Forwarding, priorities: HopPriorities = ONE_PRIORITY
) -> BufferDependencies:
    """Return the dependencies among the buffers of all shortest paths over switches alone.

    Buffers behind NIC ports are left out: nothing waits for those a host sends from, and a host
    keeps what it receives.
    """
    turns, before, max_hops = Turns(forwarding), None, 1
    for place, _, used in used_hops(forwarding):
        if place > 1 and before is not None:
            turns.add(before, used, (priorities.at(place - 1), priorities.at(place)))
        before, max_hops = used, max(max_hops, place)
    holding, awaited = turns.edges()
    return number_buffers(holding, awaited, max_hops)


class Turns:
    """All pairs of hops that follow each other at a switch, and which of them are used."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        num_switches = len(forwarding.distances)
        self._into = _grouped(forwarding.head, num_switches)
        self._out_of = _grouped(forwarding.tail, num_switches)
        # by the priorities before and after, then by switch: [hops in, hops out]
        self._used: dict[tuple[int, int], list[BoolArray]] = {}

    def add(self, before: BoolArray, after: BoolArray, priorities: tuple[int, int]) -> None:
        """Mark the turns from one hop to the next that some target needs."""
        pairs = list(zip(self._into, self._out_of, strict=True))
        used = self._used.get(priorities)
        if used is None:
            used = [np.zeros((len(into), len(out_of)), bool) for into, out_of in pairs]
            self._used[priorities] = used
        before_share, after_share = before.astype(np.float32), after.astype(np.float32)
        for switch, (into, out_of) in enumerate(pairs):
            if used[switch].size and not used[switch].all():
                used[switch] |= before_share[into] @ after_share[out_of].T > 0

    def edges(self) -> tuple[IntArray, IntArray]:
        """Return the marked turns as rows of (channel, priority): held, and awaited."""
        first, last = self._forwarding.first_channel, self._forwarding.last_channel
        holding = [np.zeros((0, 2), np.int64)]
        awaited = [np.zeros((0, 2), np.int64)]
        for (held, next_priority), by_switch in self._used.items():
            for marks, into, out_of in zip(by_switch, self._into, self._out_of, strict=True):
                row, column = np.nonzero(marks)
                holding.append(buffer_rows(last[into[row]], held))
                awaited.append(buffer_rows(first[out_of[column]], next_priority))
        return np.concatenate(holding), np.concatenate(awaited)


def buffer_rows(channels: IntArray, priority: int) -> IntArray:
    """Return rows of (channel, priority)."""
    return np.stack([channels, np.full_like(channels, priority)], axis=1)


def _grouped(switch_of_hop: IntArray, num_switches: int) -> list[IntArray]:
    """Return the hops of each switch."""
    order = np.argsort(switch_of_hop, kind="stable")
    bounds = np.searchsorted(switch_of_hop[order], np.arange(1, num_switches))
    return np.split(order, bounds)
