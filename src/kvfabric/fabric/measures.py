"""What can be counted and measured on a finished fabric: switches, cables, optics, path lengths."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvfabric.fabric.graph import Medium, Topology

ByteArray = npt.NDArray[np.uint8]

UNREACHABLE = 255
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class PathLengths:
    """Shortest paths over all ordered pairs of different GPUs, servers' inside links left out.

    Attributes:
        average_links: mean number of cables passed.
        diameter_links: most cables passed.
        switch_hops_max: most switches passed.
    """

    average_links: float
    diameter_links: int
    switch_hops_max: int


def neighbor_switches(topology: Topology) -> npt.NDArray[np.int64]:
    """Return ``[num_switches, most neighbors]``: each switch's neighbors, padded with itself."""
    tail, head = topology.channel_tail, topology.channel_head
    fabric = (tail >= topology.num_gpus) & (head >= topology.num_gpus)
    pairs = np.stack([tail[fabric], head[fabric]], axis=1) - topology.num_gpus
    pairs = np.unique(pairs, axis=0)
    counts = np.bincount(pairs[:, 0], minlength=topology.num_switches)
    width = int(counts.max(initial=0)) + 1
    table = np.repeat(np.arange(topology.num_switches)[:, None], width, axis=1)
    column = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    table[pairs[:, 0], column] = pairs[:, 1]
    return table


def switch_distances(topology: Topology) -> ByteArray:
    """Return ``[num_switches, num_switches]``: cables between two switches, 255 if none lead there.

    Takes time proportional to switches times cables between switches.
    """
    neighbors = neighbor_switches(topology)
    return np.stack([_distances_from(neighbors, start) for start in range(len(neighbors))])


def _distances_from(neighbors: npt.NDArray[np.int64], start: int) -> ByteArray:
    distance = np.full(len(neighbors), UNREACHABLE, dtype=np.uint8)
    distance[start] = 0
    frontier, steps = np.array([start]), 0
    while frontier.size:
        steps += 1
        reached = np.zeros(len(neighbors), dtype=bool)
        reached[neighbors[frontier]] = True
        frontier = np.flatnonzero(reached & (distance == UNREACHABLE))
        distance[frontier] = steps
    return distance


def path_lengths(topology: Topology) -> PathLengths:
    """Return the path lengths over all pairs of GPUs.

    GPUs with the same switches are one class, so the work is classes times classes.
    """
    classes, sizes = np.unique(topology.access_switches, axis=0, return_counts=True)
    # to_class[s, c]: cables from switch s to the nearest switch of class c
    to_class = switch_distances(topology)[:, classes].min(axis=2)
    total, longest = 0.0, 0
    for first in range(0, len(classes), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        between = to_class[classes[rows]].min(axis=1)
        total += float(sizes[rows] @ (between.astype(np.float64) @ sizes))
        longest = max(longest, int(between.max()))
    num_pairs = topology.num_gpus * (topology.num_gpus - 1)
    # a pair passes the two host cables as well; a GPU to itself (distance 0) is no pair
    average = 2 + total / num_pairs if num_pairs else 0.0
    return PathLengths(average, longest + 2, longest + 1)


def topology_report(topology: Topology) -> dict[str, object]:
    """Return the counts and path lengths of a fabric, ready for JSON."""
    fibre = int(np.count_nonzero(topology.links.medium == Medium.FIBRE))
    lengths = path_lengths(topology)
    return {
        "kind": topology.kind,
        "name": topology.name,
        "num_gpus": topology.num_gpus,
        "tiers": topology.num_tiers,
        "switches": topology.num_switches,
        "switches_by_role": switches_by_role(topology),
        "radix": topology.switches[0].radix,
        "port_rate_bps": topology.port_rate_bps,
        "ports_used_per_switch_max": int(topology.ports_used().max()),
        "links": topology.num_links,
        "links_copper": topology.num_links - fibre,
        "links_fibre": fibre,
        "optics": 2 * fibre,
        "nic_ports": int(topology.access_links.size),
        "nic_ports_per_gpu": topology.ports_per_nic,
        "avg_path_length": round(lengths.average_links, 5),
        "diameter": lengths.diameter_links,
        "switch_hops_max": lengths.switch_hops_max,
    }


def switches_by_role(topology: Topology) -> dict[str, int]:
    """Return the number of switches of each role, leaves first."""
    return dict(Counter(switch.role.value for switch in topology.switches))
