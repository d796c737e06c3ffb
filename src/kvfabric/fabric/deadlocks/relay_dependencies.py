"""Which lossless buffers wait for which where GPUs' NICs pass on what is not theirs (BCube).

A NIC then is a switch of two ports: the cables of hosts carry frames in transit and can stand in a
cycle, those a message begins and ends with included.
"""

import numpy as np

from kvfabric.fabric.deadlocks.buffer_dependencies import (
    BufferDependencies,
    HopPriorities,
    number_buffers,
)
from kvfabric.fabric.deadlocks.shortest_path_dependencies import (
    Forwarding,
    Turns,
    buffer_rows,
    used_hops,
)
from kvfabric.fabric.graph import IntArray
from kvfabric.fabric.routes.paths import PathTable


def relay_dependencies(
    paths: PathTable, forwarding: Forwarding, priorities: HopPriorities
) -> BufferDependencies:
    """Return the dependencies among the buffers of all shortest paths through switches and NICs.

    A path is the cable into the first switch (hop 0), two cables per relay, and the cable into the
    destination. Exact where at least three GPUs share every switch; with two, a way that only the
    source or destination itself would relay is counted though it is not used.
    """
    edges = _Edges(priorities)
    turns, before, max_hops = Turns(forwarding), None, 1
    ends = _HostCables(paths)
    for place, targets, used in used_hops(forwarding):
        hop = 2 * place - 1  # into the NIC; one more is out of it
        relays = np.flatnonzero(used.any(axis=1))
        edges.add(forwarding.first_channel[relays], hop, forwarding.last_channel[relays])
        if place == 1:
            edges.add(*ends.first(forwarding, relays))
        elif before is not None:
            turns.add(before, used, (priorities.at(hop - 1), priorities.at(hop)))
        is_last = forwarding.head[:, None] == forwarding.targets[targets]
        relays = np.flatnonzero((used & is_last).any(axis=1))
        edges.add(*ends.last(forwarding, relays, hop + 1))
        before, max_hops = used, max(max_hops, hop + 2)
    within = forwarding.sources[forwarding.targets, np.arange(len(forwarding.targets))]
    edges.add(*ends.within(forwarding.targets[within]))
    holding, awaited = turns.edges()
    return number_buffers(
        np.concatenate([holding, *edges.holding]),
        np.concatenate([awaited, *edges.awaited]),
        max_hops,
    )


class _Edges:
    """Dependencies from one hop to the next, collected."""

    def __init__(self, priorities: HopPriorities) -> None:
        self._priorities = priorities
        self.holding: list[IntArray] = []
        self.awaited: list[IntArray] = []

    def add(self, held: IntArray, hop: int, awaited: IntArray) -> None:
        """Add pairs of channels, of which the first is the given hop of a path."""
        self.holding.append(buffer_rows(held, self._priorities.at(hop)))
        self.awaited.append(buffer_rows(awaited, self._priorities.at(hop + 1)))


class _HostCables:
    """The cables of every switch: up from its GPUs, and down to them."""

    def __init__(self, paths: PathTable) -> None:
        topology = paths.topology
        access = topology.access_switches.ravel()
        order = np.argsort(access, kind="stable")
        bounds = np.searchsorted(access[order], np.arange(1, topology.num_switches))
        self._gpus = np.repeat(np.arange(topology.num_gpus), topology.ports_per_nic)
        self._uplinks = 2 * topology.access_links.ravel()
        self._ports = np.split(order, bounds)
        self._gpu_of_channel = topology.links.end_a.repeat(2)

    def first(self, forwarding: Forwarding, relays: IntArray) -> tuple[IntArray, int, IntArray]:
        """Return the cables up and on into a relay, of other GPUs than the relay's."""
        ports = [self._ports[switch] for switch in forwarding.tail[relays].tolist()]
        onward = np.repeat(forwarding.first_channel[relays], [len(p) for p in ports])
        up = np.concatenate([*ports, np.zeros(0, np.int64)])
        differs = self._gpus[up] != self._gpu_of_channel[onward]
        return self._uplinks[up[differs]], 0, onward[differs]

    def last(
        self, forwarding: Forwarding, relays: IntArray, hop: int
    ) -> tuple[IntArray, int, IntArray]:
        """Return the cables out of a relay and down to other GPUs than the relay's."""
        ports = [self._ports[switch] for switch in forwarding.head[relays].tolist()]
        out = np.repeat(forwarding.last_channel[relays], [len(p) for p in ports])
        down = np.concatenate([*ports, np.zeros(0, np.int64)])
        differs = self._gpus[down] != self._gpu_of_channel[out]
        return out[differs], hop, self._uplinks[down[differs]] + 1

    def within(self, switches: IntArray) -> tuple[IntArray, int, IntArray]:
        """Return the cables up and straight down again to another GPU."""
        up, down = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for switch in switches.tolist():
            ports = self._ports[switch]
            source, target = np.meshgrid(ports, ports, indexing="ij")
            differs = self._gpus[source] != self._gpus[target]
            up.append(self._uplinks[source[differs]])
            down.append(self._uplinks[target[differs]] + 1)
        return np.concatenate(up), 0, np.concatenate(down)
