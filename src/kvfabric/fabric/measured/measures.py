"""What can be counted and measured on a finished fabric: switches, cables, optics, path lengths."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvfabric.fabric.graph import IntArray, Medium, Scope, SwitchRole, Topology
from kvfabric.fabric.measured.attachment import attachment
from kvfabric.fabric.measured.bisection import bisection_bps

ByteArray = npt.NDArray[np.uint8]

UNREACHABLE = 255
_FAR = 240  # above any real distance, and what is added below still fits a byte
_CELLS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLengths:
    """Shortest paths over all ordered pairs of different GPUs, in cables (links) passed.

    With the scale-up domain, two GPUs of a server are one link apart, and a path between servers
    may begin with such a link in the source's server, end with one in the destination's, or both,
    as when a message leaves through the GPU on the destination's rail (PXN). So GPUs reach each
    other whose rails or planes no switch joins.

    Attributes:
        average_links: mean over cables alone; None where a pair has no such path.
        diameter_links: most cables of such a path; None where a pair has none.
        scale_up_average_links: mean with the scale-up domain; None where GPUs are cut off.
        scale_up_diameter_links: most links with the scale-up domain; None likewise.
        switch_hops_max: most switches passed over cables alone, of the pairs that these join.
    """

    average_links: float | None
    diameter_links: int | None
    scale_up_average_links: float | None
    scale_up_diameter_links: int | None
    switch_hops_max: int


def neighbor_switches(topology: Topology) -> IntArray:
    """Return ``[num_switches, most neighbors]``: each switch's neighbors, padded with itself."""
    tail, head = topology.channel_tail, topology.channel_head
    fabric = (tail >= topology.num_gpus) & (head >= topology.num_gpus)
    pairs = np.stack([tail[fabric], head[fabric]], axis=1) - topology.num_gpus
    return _neighbor_table(pairs, topology.num_switches)


def _relay_neighbors(topology: Topology) -> IntArray:
    """Return the switches that share a GPU with each, in the form of ``neighbor_switches``."""
    ports = range(topology.ports_per_nic)
    access = topology.access_switches
    pairs = [access[:, [a, b]] for a in ports for b in ports if a != b]
    none = np.empty((0, 2), dtype=np.int64)
    return _neighbor_table(np.concatenate([none, *pairs]), topology.num_switches)


def _neighbor_table(pairs: IntArray, num_switches: int) -> IntArray:
    pairs = np.unique(pairs, axis=0)
    counts = np.bincount(pairs[:, 0], minlength=num_switches)
    width = int(counts.max(initial=0)) + 1
    table = np.repeat(np.arange(num_switches)[:, None], width, axis=1)
    column = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    table[pairs[:, 0], column] = pairs[:, 1]
    return table


def switch_distances(topology: Topology) -> ByteArray:
    """Return ``[num_switches, num_switches]``: cables between two switches, 255 if none lead there.

    Takes time proportional to switches times cables between switches.
    """
    neighbors = neighbor_switches(topology)
    return _distances(neighbors, np.empty((len(neighbors), 0), dtype=np.int64))


def relayed_distances(topology: Topology) -> ByteArray:
    """Return ``switch_distances`` where a GPU may pass on, at two cables, what its NIC receives."""
    return _distances(neighbor_switches(topology), _relay_neighbors(topology))


def _distances(near: IntArray, relayed: IntArray) -> ByteArray:
    """Return all distances: one step to ``near`` neighbors, two to ``relayed`` ones.

    A breadth-first search from all switches at once, over sets of switches as rows of bits.
    """
    count = len(near)
    distance = np.full((count, count), UNREACHABLE, dtype=np.uint8)
    np.fill_diagonal(distance, 0)
    within = np.packbits(np.eye(count, dtype=bool), axis=1)  # row s: what s reaches in these steps
    before, steps, idle_steps = np.zeros_like(within), 0, 0
    while idle_steps < 2:  # a relay may still lead on after a step that brings nothing
        steps += 1
        grown = within.copy()
        for column in near.T:
            grown |= within[column]
        for column in relayed.T:
            grown |= before[column]
        fresh = np.unpackbits(grown & ~within, axis=1, count=count).view(bool)
        distance[fresh] = steps
        idle_steps = 0 if fresh.any() else idle_steps + 1
        before, within = within, grown
    return distance


@dataclass(slots=True)
class _Tally:
    """Sum and maximum of many distances; each stands for a number of pairs of servers."""

    total: int = 0
    longest: int = 0

    def add(self, distances: ByteArray, num_pairs: IntArray) -> None:
        """Add ``[g, rows, g, C]`` distances between GPUs of ``[rows, C]`` pairs of servers."""
        sums = distances.sum(axis=0, dtype=np.uint32).sum(axis=1)
        self.total += int((sums * num_pairs).sum())
        longest = np.where(num_pairs > 0, distances.max(axis=0).max(axis=1), 0)
        self.longest = max(self.longest, int(longest.max(initial=0)))

    def average(self, num_pairs: int) -> float | None:
        """Return the mean over pairs of GPUs, or None where one has no path."""
        if self.longest >= _FAR:
            return None
        return self.total / num_pairs if num_pairs else 0.0


def path_lengths(topology: Topology) -> PathLengths:
    """Return the path lengths over all pairs of GPUs.

    Where ``topology.hosts_forward``, the NICs of other GPUs may pass traffic on. Servers whose GPUs
    hang on the same switches are one class, so the work is classes times classes.
    """
    per_server, num_gpus = topology.gpus_per_server, topology.num_gpus
    cables, scale_up = _Tally(), _Tally()
    farthest = 0
    for distances, num_pairs, num_own in _class_distances(topology):
        cables.add(distances, num_pairs)
        joined = distances if cables.longest < _FAR else np.where(distances < _FAR, distances, 0)
        farthest = max(farthest, int(joined.max(initial=0)))
        scale_up.add(_through_servers(distances), num_pairs - num_own)
    cables.total -= 2 * num_gpus  # a GPU to itself, up and down its cable, is no pair
    if per_server > 1:
        scale_up.total += num_gpus * (per_server - 1)
        scale_up.longest = max(scale_up.longest, 1)
    pairs = num_gpus * (num_gpus - 1)
    hops = farthest // 2 if topology.hosts_forward else farthest - 1
    return PathLengths(
        average_links=cables.average(pairs),
        diameter_links=cables.longest if cables.longest < _FAR else None,
        scale_up_average_links=scale_up.average(pairs),
        scale_up_diameter_links=scale_up.longest if scale_up.longest < _FAR else None,
        switch_hops_max=hops,
    )


def _class_distances(topology: Topology) -> Iterator[tuple[ByteArray, IntArray, IntArray]]:
    """Yield, for rows of server classes, the distances over cables from their GPUs to all GPUs.

    Yields:
        ``[g, rows, g, C]`` distances, ``_FAR`` where there is no path; ``[rows, C]`` pairs of
        servers; ``[rows, C]`` those of them that are a server with itself.
    """
    per_server, ports = topology.gpus_per_server, topology.ports_per_nic
    servers = topology.access_switches.reshape(-1, per_server * ports)
    classes, sizes = np.unique(servers, axis=0, return_counts=True)
    access = np.moveaxis(classes.reshape(-1, per_server, ports), 0, 2)  # [g, ports, C]
    between = relayed_distances if topology.hosts_forward else switch_distances
    known = np.minimum(between(topology), _FAR)
    # to_gpu[s, g, c]: cables from switch s to GPU g of class c; the long axis last, for speed
    to_gpu = np.stack([known[:, access[:, port]] for port in range(ports)]).min(axis=0) + 1
    rows_at_once = max(1, _CELLS_AT_ONCE // (per_server * to_gpu[0].size))
    for first in range(0, len(classes), rows_at_once):
        rows = slice(first, first + rows_at_once)
        distances = to_gpu[access[:, 0, rows]]
        for port in range(1, ports):
            np.minimum(distances, to_gpu[access[:, port, rows]], out=distances)
        distances = np.minimum(distances + 1, _FAR)
        num_pairs = sizes[rows, None] * sizes
        num_own = np.zeros_like(num_pairs)
        num_own[np.arange(len(num_own)), first + np.arange(len(num_own))] = sizes[rows]
        yield distances, num_pairs, num_own


def _through_servers(distances: ByteArray) -> ByteArray:
    """Return the distances between GPUs of two servers when both may use their scale-up domain."""
    from_server = distances.min(axis=0, keepdims=True)
    to_server = distances.min(axis=2, keepdims=True)
    both = from_server.min(axis=2, keepdims=True) + 2
    best: ByteArray = np.minimum(distances, np.minimum(from_server + 1, both))
    np.minimum(best, to_server + 1, out=best)
    return best


def topology_report(topology: Topology) -> dict[str, object]:
    """Return the counts and path lengths of a fabric, ready for JSON.

    ``avg_path_length`` and ``diameter`` are over cables alone, and None where these do not join all
    GPUs; the values ``with_scale_up`` are explained at ``PathLengths``. ``bisection_bps`` is
    between the two halves of the servers in order, see ``bisection.py``.
    """
    links = links_by_kind(topology)
    copper = links["host"]["copper"] + links["fabric"]["copper"]
    fibre = links["host"]["fibre"] + links["fabric"]["fibre"]
    lengths = path_lengths(topology)
    return {
        "kind": topology.kind,
        "name": topology.name,
        "num_gpus": topology.num_gpus,
        "gpus_per_server": topology.gpus_per_server,
        "attachment": attachment(topology).value,
        "tiers": topology.num_tiers,
        "switches": sum(switches_by_role(topology).values()),
        "switches_by_role": switches_by_role(topology),
        "radix": topology.switches[0].radix,
        "port_rate_bps": topology.port_rate_bps,
        "ports_used_per_switch_max": int(topology.ports_used().max()),
        "links": topology.num_links,
        "links_by_kind": links,
        "links_copper": copper,
        "links_fibre": fibre,
        "optics": 2 * fibre,
        "nic_ports": int(topology.access_links.size),
        "nic_ports_per_gpu": topology.ports_per_nic,
        "avg_path_length": _rounded(lengths.average_links),
        "avg_path_length_with_scale_up": _rounded(lengths.scale_up_average_links),
        "diameter": lengths.diameter_links,
        "diameter_with_scale_up": lengths.scale_up_diameter_links,
        "switch_hops_max": lengths.switch_hops_max,
        **_bisection(topology),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _bisection(topology: Topology) -> dict[str, object]:
    """Return the bisection bandwidth, and its share of what the NICs of the first half can send."""
    flow_bps = bisection_bps(topology)
    if flow_bps is None:
        return {"bisection_bps": None, "bisection_share_of_nics": None}
    servers = topology.num_gpus // topology.gpus_per_server // 2
    nics_bps = servers * topology.gpus_per_server * topology.nic_rate_bps
    return {
        "bisection_bps": flow_bps,
        "bisection_share_of_nics": round(flow_bps / nics_bps, 5),
    }


def switches_by_role(topology: Topology) -> dict[str, int]:
    """Return the number of switches of each role, leaves first; unplugged ports are none."""
    roles = (switch.role for switch in topology.switches)
    return dict(Counter(role.value for role in roles if role is not SwitchRole.UNPLUGGED))


def links_by_kind(topology: Topology) -> dict[str, dict[str, int]]:
    """Return the number of cables by scope (host, fabric) and medium (copper, fibre)."""
    links = topology.links
    return {
        scope.name.lower(): {
            medium.name.lower(): int(((links.scope == scope) & (links.medium == medium)).sum())
            for medium in Medium
        }
        for scope in Scope
    }
