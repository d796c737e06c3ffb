"""Shortest paths of a fabric: what each switch may do next, and which NIC ports talk to each other.

Built once per topology and filled as it is used; load balancing chooses among what stands here.

A *hop* leads from one switch to the next. It is a channel, by its id, or, where hosts forward, a
*relay*: the channel into a GPU's NIC and the one out of its other port. Relays have ids after the
channels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.graph import IntArray, Scope, Topology
from kvfabric.fabric.measured.connectivity import check_connected
from kvfabric.fabric.measured.measures import (
    UNREACHABLE,
    ByteArray,
    relayed_distances,
    switch_distances,
)
from kvfabric.fabric.routes.port_pairing import pairing_score, pairings_of

PortPairs = tuple[tuple[int, int], ...]

ONE_PORT = ((0, 0),)
STRAIGHT = ((0, 0), (1, 1))
CROSSED = ((0, 1), (1, 0))


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a message leaves and arrives, and which port sends to which.

    The GPUs are those of the message, or others of their servers where no switch joins the two.
    """

    src_gpu: int
    dst_gpu: int
    port_pairs: PortPairs


class PathTable:
    """Answers path questions by switch index and hop id.

    A *bundle* is all parallel hops from one switch to another, in ascending order.

    Attributes:
        topology: the fabric.
        distances: ``[num_switches, num_switches]`` links between two switches; 255 for none.
        links_per_hop: 1, or 2 where hosts forward.
        tiers: ``[num_switches]`` links from a switch to the nearest one with NIC ports.
        pairings: ways to pair ports, in the order that settles ties.
        bundle_channels: hops of every bundle.
        bundle_head: the switch every bundle leads to.
        bundle_tail: the switch it leaves.
        bundle_of: bundle of every hop; -1 for channels that are none.
        relays: GPU, channel in and channel out of every relay.
    """

    def __init__(self, topology: Topology) -> None:
        """Take distances and bundles from the graph.

        Raises:
            UnsupportedError: GPUs are cut off, or switches are joined by cables and hosts both.
        """
        check_connected(topology)
        self.topology = topology
        forwards = topology.hosts_forward
        self.links_per_hop = 2 if forwards else 1
        self.distances = _relay_distances(topology) if forwards else switch_distances(topology)
        access = np.unique(topology.access_switches)
        self.tiers: IntArray = self.distances[:, access].min(axis=1).astype(np.int64)
        self.pairings = pairings_of(topology.ports_per_nic, hosts_forward=forwards)
        self._uplinks: list[list[int]] = (2 * topology.access_links).tolist()
        self._access: list[list[int]] = topology.access_switches.tolist()
        self.relays: list[tuple[int, int, int]] = []
        self._index_bundles(*(self._find_relays() if forwards else self._find_cables()))
        self._bundles_toward: dict[tuple[int, int], tuple[int, ...]] = {}
        self._channels_toward: dict[tuple[int, int], tuple[int, ...]] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}

    def _find_cables(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return hop, tail and head of every channel between switches."""
        topology = self.topology
        fabric = np.flatnonzero(np.repeat(topology.links.scope == Scope.FABRIC, 2))
        tail = topology.channel_tail[fabric] - topology.num_gpus
        head = topology.channel_head[fabric] - topology.num_gpus
        return fabric, tail, head

    def _find_relays(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return hop, tail and head of every relay, and note what each is made of.

        Relay ids follow from GPU, port in and port out; those of equal ports stand in no bundle.
        """
        topology = self.topology
        if (topology.links.scope == Scope.FABRIC).any():
            raise UnsupportedError(
                f"{topology.name}: hosts forward, and cables join switches",
                where="fabric",
                hint="One of both is modelled",
            )
        ports = range(topology.ports_per_nic)
        self.relays = [
            (gpu, uplinks[come] + 1, uplinks[go])
            for gpu, uplinks in enumerate(self._uplinks)
            for come, go in product(ports, ports)
        ]
        access = topology.access_switches
        come, go = np.indices((len(ports), len(ports))).reshape(2, -1)
        hop = topology.num_channels + np.arange(len(self.relays)).reshape(len(access), -1)
        real = come != go
        return hop[:, real].ravel(), access[:, come[real]].ravel(), access[:, go[real]].ravel()

    def _index_bundles(self, hops: IntArray, tail: IntArray, head: IntArray) -> None:
        topology = self.topology
        self.bundle_channels: list[tuple[int, ...]] = []
        self.bundle_head: list[int] = []
        self.bundle_tail: list[int] = []
        self.bundle_of: list[int] = [-1] * (topology.num_channels + len(self.relays))
        self._bundles_from: list[list[int]] = [[] for _ in range(topology.num_switches)]
        order = np.lexsort((hops, head, tail))  # by tail, then head, then id
        ends = np.stack([tail[order], head[order]], axis=1)
        pairs, starts = np.unique(ends, axis=0, return_index=True)
        groups = np.split(hops[order], starts[1:]) if len(starts) else []
        for bundle, (pair, members) in enumerate(zip(pairs.tolist(), groups, strict=True)):
            self.bundle_channels.append(tuple(members.tolist()))
            self.bundle_tail.append(pair[0])
            self.bundle_head.append(pair[1])
            self._bundles_from[pair[0]].append(bundle)
            for hop in self.bundle_channels[-1]:
                self.bundle_of[hop] = bundle

    def uplink(self, gpu: int, port: int) -> int:
        """Return the channel from a NIC port to its switch."""
        return self._uplinks[gpu][port]

    def downlink(self, gpu: int, port: int) -> int:
        """Return the channel from the switch to a NIC port."""
        return self._uplinks[gpu][port] + 1

    def access_switch(self, gpu: int, port: int) -> int:
        """Return the switch at a NIC port."""
        return self._access[gpu][port]

    def port_pairs(self, src_gpu: int, dst_gpu: int) -> PortPairs:
        """Return which source port sends to which destination port; no port stands twice.

        Ports whose partner they cannot reach are left out. The pairing with fewer links in all is
        taken, see ``pairing_score``. So in ZCube ports of opposite groups are paired whenever the
        GPUs do not share both switches (at most two switches each); in BCube those of the digits
        that differ take turns, and each of the others goes through a neighbor; and in planes that
        are not joined port i reaches port i.
        """
        if self.topology.ports_per_nic == 1:
            return ONE_PORT if self._reaches(src_gpu, dst_gpu) else ()
        forwards = self.topology.hosts_forward
        source, target, distance = self._access[src_gpu], self._access[dst_gpu], self.distances.item
        best: PortPairs = ()
        least = -1
        for pairing in self.pairings:
            distances = [distance(a, target[q]) for a, q in zip(source, pairing, strict=True)]
            score = pairing_score(distances, hosts_forward=forwards)
            if least < 0 or score < least:
                best, least = self._reached(pairing, distances), score
        return best

    def _reaches(self, src_gpu: int, dst_gpu: int) -> bool:
        a, b = self._access[src_gpu][0], self._access[dst_gpu][0]
        return self.distances.item(a, b) != UNREACHABLE

    @staticmethod
    def _reached(pairing: Sequence[int], distances: Sequence[int]) -> PortPairs:
        return tuple(
            (port, to_port)
            for port, (to_port, distance) in enumerate(zip(pairing, distances, strict=True))
            if distance != UNREACHABLE
        )

    def ends(self, src_gpu: int, dst_gpu: int) -> Ends:
        """Return where a message leaves and arrives.

        Where no switch joins the two GPUs, it moves inside the source's server first, to the GPU of
        the destination's rank if that one has a way, else to the next that has (PXN). Where none
        has, it moves inside the destination's server instead, or inside both.
        """
        pairs = self.port_pairs(src_gpu, dst_gpu)
        if pairs:
            return Ends(src_gpu, dst_gpu, pairs)
        senders = self._server_from(src_gpu, dst_gpu)
        receivers = self._server_from(dst_gpu, src_gpu)
        tried = [(gpu, dst_gpu) for gpu in senders] + [(src_gpu, gpu) for gpu in receivers]
        tried += [(a, b) for a in senders for b in self._server_from(dst_gpu, a)]
        for sender, receiver in tried:
            pairs = self.port_pairs(sender, receiver)
            if pairs:
                return Ends(sender, receiver, pairs)
        raise AssertionError("checked: some port of every server reaches every other server")

    def _server_from(self, gpu: int, like_gpu: int) -> list[int]:
        """Return the GPUs of a GPU's server, beginning with the one of another GPU's rank."""
        size = self.topology.gpus_per_server
        first = gpu - gpu % size
        return [first + (like_gpu + turn) % size for turn in range(size)]

    def bundles_toward(self, switch: int, target: int) -> tuple[int, ...]:
        """Return the bundles that lead from a switch one step closer to the target switch."""
        key = (switch, target)
        found = self._bundles_toward.get(key)
        if found is None:
            closer = self.distances.item(switch, target) - self.links_per_hop
            found = self._interned(
                bundle
                for bundle in self._bundles_from[switch]
                if self.distances.item(self.bundle_head[bundle], target) == closer
            )
            self._bundles_toward[key] = found
        return found

    def bundles_up(self, switch: int) -> list[int]:
        """Return the bundles up, away from all NIC ports; none at the top of a folded Clos."""
        tier = self.tiers.item
        return [b for b in self._bundles_from[switch] if tier(self.bundle_head[b]) > tier(switch)]

    def channels_toward(self, switch: int, target: int) -> tuple[int, ...]:
        """Return all hops of ``bundles_toward``, bundle by bundle."""
        key = (switch, target)
        found = self._channels_toward.get(key)
        if found is None:
            bundles = self.bundles_toward(switch, target)
            found = self._interned(c for bundle in bundles for c in self.bundle_channels[bundle])
            self._channels_toward[key] = found
        return found

    def without_gpu(self, hops: tuple[int, ...], gpu: int) -> tuple[int, ...]:
        """Return the hops that are no relay of a GPU; all of them if no other is left.

        At its first switch a message is not sent back into its source.
        """
        if not self.relays:
            return hops
        first = self.topology.num_channels
        return tuple(hop for hop in hops if self.relays[hop - first][0] != gpu) or hops

    def next_switch(self, channel: int) -> int:
        """Return the switch a hop enters."""
        return self.bundle_head[self.bundle_of[channel]]

    def until_gpu(self, hops: Sequence[int], gpu: int) -> Sequence[int]:
        """Return the hops before the first relay of a GPU: there the message has arrived."""
        for place, hop in enumerate(hops) if self.relays else ():
            if self.relays[hop - self.topology.num_channels][0] == gpu:
                return hops[:place]
        return hops

    def channels_of(self, uplink: int, hops: Sequence[int], downlink: int, gpu: int) -> list[int]:
        """Return the channels of a path between two NIC ports; it ends when it reaches the GPU."""
        if not self.relays:
            return [uplink, *hops, downlink]
        channels = [uplink]
        for hop in hops:
            relay_gpu, come, go = self.relays[hop - self.topology.num_channels]
            channels.append(come)
            if relay_gpu == gpu:
                return channels
            channels.append(go)
        return [*channels, downlink]

    def hops_of(self, channels: Sequence[int]) -> list[int]:
        """Return the hops of a path's channels between its first and its last one."""
        inner = channels[1:-1]
        if not self.relays:
            return list(inner)
        links = self.topology.access_links
        num_ports = self.topology.ports_per_nic
        ids = []
        for come, go in zip(inner[::2], inner[1::2], strict=True):
            gpu = int(self.topology.links.end_a[come // 2])
            ports = [int(np.flatnonzero(links[gpu] == c // 2)[0]) for c in (come, go)]
            relay = (gpu * num_ports + ports[0]) * num_ports + ports[1]
            ids.append(self.topology.num_channels + relay)
        return ids

    def _interned(self, items: Iterable[int]) -> tuple[int, ...]:
        # most targets share their next steps, so one tuple serves them all
        key = tuple(items)
        return self._shared.setdefault(key, key)


def _relay_distances(topology: Topology) -> ByteArray:
    """Return the distances over relays; a switch of one cable leads nowhere, and nothing to it.

    Else a NIC port that has lost its cable would be reached through the other ports of its GPU.
    """
    distances = relayed_distances(topology)
    lonely = np.flatnonzero(topology.ports_used() == 1)
    distances[lonely] = distances[:, lonely] = UNREACHABLE
    distances[lonely, lonely] = 0
    return distances
