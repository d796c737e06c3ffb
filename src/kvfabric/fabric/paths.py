"""Shortest paths of a fabric: what each switch may do next, and which NIC ports talk to each other.

Built once per topology and filled as it is used; load balancing chooses among what stands here.
"""

from collections.abc import Iterable

import numpy as np

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.graph import Scope, Topology
from kvfabric.fabric.measures import switch_distances

ONE_PORT = ((0, 0),)
STRAIGHT = ((0, 0), (1, 1))
CROSSED = ((0, 1), (1, 0))


class PathTable:
    """Answers path questions by switch index and channel id.

    A *bundle* is all parallel channels from one switch to another, in ascending order.
    """

    def __init__(self, topology: Topology) -> None:
        """Take distances and bundles from the graph.

        Raises:
            UnsupportedError: a NIC has more than two ports.
        """
        if topology.ports_per_nic > 2:
            raise UnsupportedError(
                f"NICs with {topology.ports_per_nic} ports", hint="One or two ports are modelled"
            )
        self.topology = topology
        self.distances = switch_distances(topology)
        self._uplinks: list[list[int]] = (2 * topology.access_links).tolist()
        self._access: list[list[int]] = topology.access_switches.tolist()
        self._index_bundles()
        self._bundles_toward: dict[tuple[int, int], tuple[int, ...]] = {}
        self._channels_toward: dict[tuple[int, int], tuple[int, ...]] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}

    def _index_bundles(self) -> None:
        topology = self.topology
        fabric = np.flatnonzero(np.repeat(topology.links.scope == Scope.FABRIC, 2))
        tail = topology.channel_tail[fabric] - topology.num_gpus
        head = topology.channel_head[fabric] - topology.num_gpus
        self.bundle_channels: list[tuple[int, ...]] = []
        self.bundle_head: list[int] = []
        self.bundle_of: list[int] = [-1] * topology.num_channels
        self._bundles_from: list[list[int]] = [[] for _ in range(topology.num_switches)]
        order = np.lexsort((fabric, head, tail))  # by tail, then head, then channel id
        ends = np.stack([tail[order], head[order]], axis=1)
        pairs, starts = np.unique(ends, axis=0, return_index=True)
        groups = np.split(fabric[order], starts[1:]) if len(starts) else []
        for bundle, (pair, channels) in enumerate(zip(pairs.tolist(), groups, strict=True)):
            self.bundle_channels.append(tuple(channels.tolist()))
            self.bundle_head.append(pair[1])
            self._bundles_from[pair[0]].append(bundle)
            for channel in self.bundle_channels[-1]:
                self.bundle_of[channel] = bundle

    def uplink(self, gpu: int, port: int) -> int:
        """Return the channel from a NIC port to its switch."""
        return self._uplinks[gpu][port]

    def downlink(self, gpu: int, port: int) -> int:
        """Return the channel from the switch to a NIC port."""
        return self._uplinks[gpu][port] + 1

    def access_switch(self, gpu: int, port: int) -> int:
        """Return the switch at a NIC port."""
        return self._access[gpu][port]

    def port_pairs(self, src_gpu: int, dst_gpu: int) -> tuple[tuple[int, int], ...]:
        """Return which source port sends to which destination port; every port is used once.

        The pairing with fewer switches in all is taken; on a tie, and in ZCube whenever the GPUs do
        not share both switches, ports of opposite groups are paired (at most two switches each).
        Taking the shared switch for one pair only would send the other one over three switches, and
        using one source port for both would halve the rate.
        """
        if self.topology.ports_per_nic == 1:
            return ONE_PORT
        (a, b), (c, d) = self._access[src_gpu], self._access[dst_gpu]
        distance = self.distances.item
        straight = distance(a, c) + distance(b, d)
        return STRAIGHT if straight < distance(a, d) + distance(b, c) else CROSSED

    def bundles_toward(self, switch: int, target: int) -> tuple[int, ...]:
        """Return the bundles that lead from a switch one step closer to the target switch."""
        key = (switch, target)
        found = self._bundles_toward.get(key)
        if found is None:
            closer = self.distances.item(switch, target) - 1
            found = self._interned(
                bundle
                for bundle in self._bundles_from[switch]
                if self.distances.item(self.bundle_head[bundle], target) == closer
            )
            self._bundles_toward[key] = found
        return found

    def channels_toward(self, switch: int, target: int) -> tuple[int, ...]:
        """Return all channels of ``bundles_toward``, bundle by bundle."""
        key = (switch, target)
        found = self._channels_toward.get(key)
        if found is None:
            bundles = self.bundles_toward(switch, target)
            found = self._interned(c for bundle in bundles for c in self.bundle_channels[bundle])
            self._channels_toward[key] = found
        return found

    def next_switch(self, channel: int) -> int:
        """Return the switch a fabric channel enters."""
        return self.bundle_head[self.bundle_of[channel]]

    def _interned(self, items: Iterable[int]) -> tuple[int, ...]:
        # most targets share their next steps, so one tuple serves them all
        key = tuple(items)
        return self._shared.setdefault(key, key)
