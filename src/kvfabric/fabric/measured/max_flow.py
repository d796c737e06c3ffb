"""The most that flows from a source to a sink, by Dinic's algorithm with whole numbers.

Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in a network with power
estimation", Soviet Math. Doklady 11, 1970: level graphs by breadth-first search, each saturated by
depth-first search that never tries a dead arc again.
"""

from collections.abc import Iterable


class FlowNetwork:
    """Nodes and arcs with capacities; arc ``2 * i + 1`` is the way back of arc ``2 * i``."""

    def __init__(self, num_nodes: int) -> None:
        """Start without arcs."""
        self._arcs_of: list[list[int]] = [[] for _ in range(num_nodes)]
        self._head: list[int] = []
        self._left: list[int] = []

    def add_arcs(self, arcs: Iterable[tuple[int, int, int, int]]) -> None:
        """Add (node, node, capacity there, capacity back) as one arc in each direction."""
        for tail, head, there, back in arcs:
            self._arcs_of[tail].append(len(self._head))
            self._arcs_of[head].append(len(self._head) + 1)
            self._head += (head, tail)
            self._left += (there, back)

    def max_flow(self, source: int, sink: int) -> int:
        """Send as much as fits and return it; the arcs keep what is left of them."""
        total = 0
        while True:
            level = self._levels(source, sink)
            if level[sink] < 0:
                return total
            total += self._saturate(level, source, sink)

    def _levels(self, source: int, sink: int) -> list[int]:
        """Return each node's distance over arcs with capacity left, -1 where none leads."""
        level = [-1] * len(self._arcs_of)
        level[source] = 0
        frontier = [source]
        while frontier and level[sink] < 0:
            reached = []
            for node in frontier:
                for arc in self._arcs_of[node]:
                    head = self._head[arc]
                    if self._left[arc] and level[head] < 0:
                        level[head] = level[node] + 1
                        reached.append(head)
            frontier = reached
        return level

    def _saturate(self, level: list[int], source: int, sink: int) -> int:
        """Send along shortest paths until none has capacity left; return what was sent."""
        head, left, arcs_of = self._head, self._left, self._arcs_of
        tried = [0] * len(arcs_of)  # arcs of each node that lead nowhere any more
        sent, node, path = 0, source, list[int]()
        while True:
            if node == sink:
                amount = min([left[arc] for arc in path])
                sent += amount
                for arc in path:
                    left[arc] -= amount
                    left[arc ^ 1] += amount
                full = next(place for place, arc in enumerate(path) if not left[arc])
                node = head[path[full] ^ 1]
                del path[full:]
            arcs, place, deeper = arcs_of[node], tried[node], level[node] + 1
            while place < len(arcs):
                arc = arcs[place]
                if left[arc] and level[head[arc]] == deeper:
                    break
                place += 1
            tried[node] = place
            if place < len(arcs):
                path.append(arc)
                node = head[arc]
            elif path:
                node = head[path.pop() ^ 1]
                tried[node] += 1
            else:
                return sent
