"""Between which access switches messages travel, found without looking at every pair of GPUs."""

from itertools import product

import numpy as np
import numpy.typing as npt

from kvfabric.fabric.graph import IntArray, Topology
from kvfabric.fabric.measured.measures import UNREACHABLE
from kvfabric.fabric.routes.paths import PathTable

BoolArray = npt.NDArray[np.bool_]

_ROWS_AT_ONCE = 256
_MOST_CODES = 1 << 16


def switch_pairs(paths: PathTable) -> BoolArray:
    """Return ``[num_switches, num_switches]``: do messages go from one to the other.

    Pairs of GPUs within a server send nothing. Which port sends to which is asked of
    ``paths.port_pairs``, once per pattern of distances between the ports, on which alone it
    depends. GPUs with the same switches are one class.
    """
    topology = paths.topology
    classes, class_of_gpu = np.unique(topology.access_switches, axis=0, return_inverse=True)
    members = _Classes(topology, class_of_gpu.ravel(), len(classes))
    patterns = _Patterns(paths, classes)
    ports = range(topology.ports_per_nic)
    columns = [_Columns(classes[:, port]) for port in ports]
    is_used = np.zeros(paths.distances.shape, bool)
    for first in range(0, len(classes), _ROWS_AT_ONCE):
        rows = np.arange(first, min(first + _ROWS_AT_ONCE, len(classes)))
        sends = members.send_to_each_other(rows)
        code = patterns.codes(rows)
        known = patterns.port_pairs(code, sends, rows, members)
        for src_port, dst_port in product(ports, ports):
            is_paired = known[:, src_port, dst_port]
            if is_paired.any():
                reached = columns[dst_port].any_by_switch(is_paired[code] & sends)
                for row, switch in zip(reached, classes[rows, src_port].tolist(), strict=True):
                    is_used[switch, columns[dst_port].switches] |= row
    return np.asarray(is_used & (paths.distances != UNREACHABLE))


class _Patterns:
    """The distances between all ports of two NICs, as one number; and what is paired for each."""

    def __init__(self, paths: PathTable, classes: IntArray) -> None:
        self._paths, self._classes = paths, classes
        levels, rank = np.unique(paths.distances, return_inverse=True)
        self._levels = len(levels)
        self._rank = rank.reshape(paths.distances.shape).astype(np.uint8)
        self._pairs: dict[bytes, BoolArray] = {}

    def codes(self, rows: IntArray) -> IntArray:
        """Return ``[rows, classes]``, a small number per pattern."""
        classes, num_ports = self._classes, self._classes.shape[1]
        code, num_codes = np.zeros((len(rows), len(classes)), np.int64), 1
        for a, b in product(range(num_ports), range(num_ports)):
            rank = self._rank[classes[rows, a]][:, classes[:, b]]
            code = code * self._levels + rank
            num_codes *= self._levels
            if num_codes > _MOST_CODES:
                different, code = np.unique(code, return_inverse=True)
                code, num_codes = code.reshape(rank.shape), len(different)
        return code

    def port_pairs(
        self, code: IntArray, sends: BoolArray, rows: IntArray, members: "_Classes"
    ) -> BoolArray:
        """Return ``[codes, ports, ports]``: which ports are paired in a pattern that is sent."""
        num_ports = self._classes.shape[1]
        num_codes = int(code.max()) + 1
        place = np.full(num_codes, -1)
        sent = np.flatnonzero(sends)
        place[code.ravel()[sent]] = sent
        paired = np.zeros((num_codes, num_ports, num_ports), bool)
        for number in np.flatnonzero(place >= 0).tolist():
            row, column = divmod(int(place[number]), len(self._classes))
            paired[number] = self._paired(int(rows[row]), column, members)
        return paired

    def _paired(self, source: int, target: int, members: "_Classes") -> BoolArray:
        distances = self._paths.distances[np.ix_(self._classes[source], self._classes[target])]
        key = distances.tobytes()
        if key not in self._pairs:
            paired = np.zeros(distances.shape, bool)
            if (distances != UNREACHABLE).any():
                for src_port, dst_port in self._paths.port_pairs(*members.example(source, target)):
                    paired[src_port, dst_port] = True
            self._pairs[key] = paired
        return self._pairs[key]


class _Columns:
    """Columns of a table that belong to switches."""

    def __init__(self, switch_of_column: IntArray) -> None:
        self._order = np.argsort(switch_of_column, kind="stable")
        self.switches, self._first = np.unique(switch_of_column[self._order], return_index=True)

    def any_by_switch(self, marks: BoolArray) -> BoolArray:
        """Return ``[rows, switches]``: whether a column of the switch is marked."""
        any_marked: BoolArray = np.logical_or.reduceat(marks[:, self._order], self._first, axis=1)
        return any_marked


class _Classes:
    """The GPUs with the same access switches."""

    def __init__(self, topology: Topology, class_of_gpu: IntArray, num_classes: int) -> None:
        self._servers = np.arange(topology.num_gpus) // topology.gpus_per_server
        order = np.argsort(class_of_gpu, kind="stable")
        ends = np.searchsorted(class_of_gpu[order], np.arange(num_classes + 1))
        # GPUs are in order within a class, so its first and last one span its servers
        self._first_gpu, self._last_gpu = order[ends[:-1]], order[ends[1:] - 1]

    def send_to_each_other(self, rows: IntArray) -> BoolArray:
        """Return ``[rows, classes]``: whether two GPUs of the classes are in different servers."""
        first, last = self._servers[self._first_gpu], self._servers[self._last_gpu]
        lowest = np.minimum(first[rows][:, None], first[None, :])
        highest = np.maximum(last[rows][:, None], last[None, :])
        return np.asarray(lowest != highest)

    def example(self, source: int, target: int) -> tuple[int, int]:
        """Return two GPUs of the classes that are in different servers."""
        first, last, servers = self._first_gpu, self._last_gpu, self._servers
        if servers[first[source]] != servers[last[target]]:
            return int(first[source]), int(last[target])
        return int(last[source]), int(first[target])
