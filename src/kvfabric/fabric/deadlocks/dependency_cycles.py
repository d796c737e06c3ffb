"""The shortest cycle of a directed graph given as arrays of edges.

What cannot be on a cycle is peeled off first; in a fabric without deadlock nothing is left. The
rest is searched from all nodes at once, with sets of starts as bits.
"""

import numpy as np

from kvfabric.fabric.graph import IntArray

_WORD = 64
_BYTES_AT_ONCE = 1 << 25
_MOST_WORK = 1 << 31


def has_cycle(num_nodes: int, tail: IntArray, head: IntArray) -> bool:
    """Return whether a graph has a cycle; takes time in proportion to edges times longest path."""
    return bool(_on_cycles(num_nodes, tail, head).size)


def shortest_cycle(num_nodes: int, tail: IntArray, head: IntArray) -> tuple[int, ...]:
    """Return the nodes of a shortest cycle in order, from its lowest node; empty if there is none.

    Takes time in proportion to edges times nodes left after peeling, divided by 64, per length.
    Where edges times nodes are above 2**31 (a dragonfly of 4,096 GPUs stays below), it is a
    shortest one through the lowest nodes, as many as fit.

    Args:
        num_nodes: nodes are numbered from 0.
        tail: node each edge leaves.
        head: node each edge enters.
    """
    edges = _on_cycles(num_nodes, tail, head)
    if not edges.size:
        return ()
    nodes, ends = np.unique(np.stack([tail[edges], head[edges]]), return_inverse=True)
    ends = ends.reshape(2, -1)
    start, length = _closest_return(len(nodes), ends[0], ends[1])
    cycle = nodes[_walk_back(start, length, ends[0], ends[1])].tolist()
    first = cycle.index(min(cycle))
    return tuple(cycle[first:] + cycle[:first])


def _on_cycles(num_nodes: int, tail: IntArray, head: IntArray) -> IntArray:
    """Return the edges left when nodes nothing enters or nothing leaves are taken away in turn."""
    edges = np.arange(len(tail))
    while True:
        is_entered = np.zeros(num_nodes, bool)
        is_left = np.zeros(num_nodes, bool)
        is_entered[head[edges]] = True
        is_left[tail[edges]] = True
        stays = is_entered[tail[edges]] & is_left[head[edges]]
        if stays.all():
            return edges
        edges = edges[stays]


def _closest_return(num_nodes: int, tail: IntArray, head: IntArray) -> tuple[int, int]:
    """Return a node on a shortest cycle and the length of that; every node has an edge in."""
    order = np.argsort(head, kind="stable")
    tail, head = tail[order], head[order]
    first_edge = np.searchsorted(head, np.arange(num_nodes))
    shortest = _least_length(tail, head)
    starts_at_once = _WORD * max(1, _BYTES_AT_ONCE // (8 * len(tail)))
    best, length = 0, num_nodes + 1  # none yet
    for first in range(0, num_nodes, starts_at_once):
        if length <= shortest or (length <= num_nodes and first * len(tail) > _MOST_WORK):
            break
        starts = np.arange(first, min(first + starts_at_once, num_nodes))
        word, bit = np.divmod(starts - first, _WORD)
        bit = np.uint64(1) << bit.astype(np.uint64)
        reached = np.zeros((num_nodes, word[-1] + 1), np.uint64)
        reached[starts, word] = bit
        for steps in range(1, length):
            reached = np.bitwise_or.reduceat(reached[tail], first_edge, axis=0)
            back = np.flatnonzero(reached[starts, word] & bit)
            if back.size:
                best, length = int(starts[back[0]]), steps
                break
    return best, length


def _least_length(tail: IntArray, head: IntArray) -> int:
    """Return 1 or 2 where a cycle is that short, else 3: no other can be shorter."""
    if (tail == head).any():
        return 1
    scale = int(max(tail.max(), head.max())) + 1
    is_mutual = np.isin(tail * scale + head, head * scale + tail)
    return 2 if is_mutual.any() else 3


def _walk_back(start: int, length: int, tail: IntArray, head: IntArray) -> list[int]:
    """Return the nodes of a cycle of a known length through the start."""
    # layers[k]: nodes that k edges lead from the start
    num_nodes = int(head.max()) + 1
    layers = [np.arange(num_nodes) == start]
    for _ in range(length - 1):
        onward = np.zeros(num_nodes, bool)
        onward[head[layers[-1][tail]]] = True
        layers.append(onward)
    cycle = [start]
    for layer in reversed(layers):
        into = tail[(head == cycle[-1]) & layer[tail]]
        cycle.append(int(into.min()))
    return cycle[:0:-1]
