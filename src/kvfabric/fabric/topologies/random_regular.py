"""Random regular graphs: every node has equally many neighbors, drawn from a seeded generator.

Source: the incremental construction of Jellyfish (Singla et al., NSDI 2012, section 4): join random
nodes that have free ports and are not yet neighbors; where none are left but ports are free, open a
random edge for them.
"""

import numpy as np

from kvfabric.fabric.graph import IntArray

_TRIES = 16


def random_regular_graph(num_nodes: int, degree: int, rng: np.random.Generator) -> IntArray:
    """Return ``[num_nodes * degree / 2, 2]`` edges of a connected graph, rising.

    No two nodes share more than one edge. ``num_nodes * degree`` must be even, ``degree`` at least
    2 and less than ``num_nodes``.
    """
    assert 2 <= degree < num_nodes, "such a graph exists"
    assert num_nodes * degree % 2 == 0, "edges have two ends"
    return _RegularGraph(num_nodes, degree, rng).edges()


class _RegularGraph:
    """A graph under construction.

    Invariants:
        I1. no node has more than ``degree`` neighbors, and none is its own.
        I2. once no free pair is left, the nodes with free ports are all neighbors of each other.
    """

    def __init__(self, num_nodes: int, degree: int, rng: np.random.Generator) -> None:
        self._degree = degree
        self._rng = rng
        self._neighbors: list[set[int]] = [set() for _ in range(num_nodes)]
        self._open = list(range(num_nodes))  # nodes with free ports
        while pair := self._free_pair():
            self._join(*pair)
            for node in pair:
                if not self._free(node):
                    self._open.remove(node)
        self._use_last_ports()
        self._connect()

    def edges(self) -> IntArray:
        """Return ``[num_edges, 2]``, the lower node first."""
        return np.array(
            [(a, b) for a, near in enumerate(self._neighbors) for b in sorted(near) if a < b],
            dtype=np.int64,
        )

    def _free(self, node: int) -> int:
        return self._degree - len(self._neighbors[node])

    def _join(self, a: int, b: int) -> None:
        self._neighbors[a].add(b)
        self._neighbors[b].add(a)

    def _part(self, a: int, b: int) -> None:
        self._neighbors[a].remove(b)
        self._neighbors[b].remove(a)

    def _free_pair(self) -> tuple[int, int] | None:
        """Return two random nodes with free ports that are not neighbors, or None if none are."""
        nodes = self._open
        if len(nodes) < 2:
            return None
        for i, j in self._rng.integers(len(nodes), size=(_TRIES, 2)).tolist():
            if i != j and nodes[j] not in self._neighbors[nodes[i]]:
                return nodes[i], nodes[j]
        apart = [(a, b) for a in nodes for b in nodes if a < b and b not in self._neighbors[a]]
        return apart[int(self._rng.integers(len(apart)))] if apart else None

    def _use_last_ports(self) -> None:
        """Open random edges (x, y) until no port is free, for a - x and y - b.

        a and b are one node with two free ports, or two neighbors with one each. Neither x nor y
        has a free port (I2), so by counting neighbors such an edge always exists.
        """
        while self._open:
            a = self._open[0]
            b = a if self._free(a) > 1 else self._open[-1]
            x, y = self._random_edge()
            if {x, y} & {a, b} or x in self._neighbors[a] or y in self._neighbors[b]:
                continue
            self._part(x, y)
            self._join(a, x)
            self._join(b, y)
            self._open = [node for node in self._open if self._free(node)]

    def _random_edge(self) -> tuple[int, int]:
        """Return the ends of an edge in random order; a node is drawn by its share of the edges."""
        while True:
            x = int(self._rng.integers(len(self._neighbors)))
            port = int(self._rng.integers(self._degree))
            if port < len(self._neighbors[x]):
                return x, sorted(self._neighbors[x])[port]

    def _connect(self) -> None:
        """Exchange the ends of two edges, one in each of two parts, until the graph is one part."""
        while len(inside := self._reached_from(0)) < len(self._neighbors):
            (a, b), (c, d) = self._random_edge(), self._random_edge()
            if a in inside and c not in inside:
                self._part(a, b)
                self._part(c, d)
                self._join(a, c)
                self._join(b, d)

    def _reached_from(self, start: int) -> set[int]:
        reached, frontier = {start}, [start]
        while frontier:
            frontier = [b for a in frontier for b in sorted(self._neighbors[a] - reached)]
            frontier = sorted(set(frontier))
            reached.update(frontier)
        return reached
