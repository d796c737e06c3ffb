"""Where the parts of a fabric stand in its drawing; large ones are drawn in groups.

Rows from the top: the switches furthest from the hosts first, the hosts last. In full, every GPU,
switch and cable is drawn. Grouped, consecutive servers and switches of one role share a box and
all cables between two boxes are one line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kvfabric.fabric.graph import IntArray, Switch, SwitchRole, Topology

WIDTH = 1000.0
EN_DASH = "\u2013"
LEFT = 96.0  # names of rows
_TOP, _ROW, _ARC_ROOM, _BOX = 34.0, 160.0, 84.0, 26.0
_FULL_GPUS, _FULL_LINKS = 128, 420
_GROUPED_LINES = 140
_ROLES = (
    SwitchRole.CORE,
    SwitchRole.SPINE,
    SwitchRole.AGGREGATION,
    SwitchRole.ROUTER,
    SwitchRole.MULTI_RAIL,
    SwitchRole.SINGLE_RAIL,
    SwitchRole.LEAF,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One GPU, or consecutive servers or switches; ``nodes`` are ids of the graph."""

    name: str
    label: str
    nodes: range
    is_host: bool
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Cables between two boxes (indices), and where the line leaves each, from their middle."""

    box_a: int
    box_b: int
    links: IntArray
    shift_a: float = 0.0
    shift_b: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The name of a row and the height of its middle."""

    name: str
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A drawing without its figures.

    Attributes:
        boxes: GPUs or servers, and switches.
        lines: cables between boxes.
        inside: cables that both ends of one box share, by box.
        rows: their names.
        height: of the drawing.
        is_full: every cable has its own line.
    """

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    inside: dict[int, IntArray]
    rows: tuple[Row, ...]
    height: float
    is_full: bool


def lay_out(topology: Topology, most_lines: int = _FULL_LINKS) -> Layout:
    """Return the drawing of a fabric, in full if it is small.

    ``most_lines`` bounds the size of a report with many drawings.
    """
    if topology.num_gpus <= _FULL_GPUS and topology.num_links <= min(_FULL_LINKS, most_lines):
        return _layout(topology, most=_FULL_GPUS, is_full=True)
    for most in (16, 8, 4, 2):
        layout = _layout(topology, most=most, is_full=False)
        if len(layout.lines) <= min(_GROUPED_LINES, most_lines):
            break
    return layout


def _layout(topology: Topology, *, most: int, is_full: bool) -> Layout:
    groups = [*_switch_groups(topology, most), ("GPUs" if is_full else "servers", [])]
    hosts = _host_groups(topology, most, is_full=is_full)
    groups[-1] = (groups[-1][0], hosts)
    ends = _row_pairs(topology, groups)
    boxes: list[Box] = []
    rows: list[Row] = []
    y = _TOP
    for row, (name, members) in enumerate(groups):
        y += (_ROW if row else 0) + (_ARC_ROOM if row in ends else 0)
        rows.append(Row(name=name, y=y))
        boxes.extend(_boxes(topology, name, members, y, is_full=is_full))
    lines, inside = _lines(topology, boxes, is_full=is_full)
    lines = _spread(boxes, lines)
    return Layout(
        boxes=tuple(boxes),
        lines=tuple(lines),
        inside=inside,
        rows=tuple(rows),
        height=y + 56,
        is_full=is_full,
    )


def _switch_groups(topology: Topology, most: int) -> list[tuple[str, list[range]]]:
    """Return rows of ranges of node ids; switches of one role are consecutive."""
    found = []
    for role in _ROLES:
        numbers = [i for i, switch in enumerate(topology.switches) if switch.role is role]
        if numbers:
            nodes = [topology.num_gpus + number for number in numbers]
            found.append((_several(role.value), _cut(nodes, most)))
    return found


def _several(role: str) -> str:
    return {"leaf": "leaves", "aggregation": "aggregation", "core": "core"}.get(
        role, role.replace("leaf", "leaves") if role.endswith("leaf") else f"{role}s"
    )


def _cut(nodes: list[int], most: int) -> list[range]:
    size = -(-len(nodes) // most)
    cuts = []
    for start in range(0, len(nodes), size):
        part = nodes[start : start + size]
        assert part[-1] - part[0] == len(part) - 1, "switches of one role are numbered in a row"
        cuts.append(range(part[0], part[-1] + 1))
    return cuts


def _host_groups(topology: Topology, most: int, *, is_full: bool) -> list[range]:
    if is_full:
        return [range(gpu, gpu + 1) for gpu in range(topology.num_gpus)]
    per_server = topology.gpus_per_server
    num_servers = -(-topology.num_gpus // per_server)
    size = -(-num_servers // most) * per_server
    return [
        range(start, min(start + size, topology.num_gpus))
        for start in range(0, topology.num_gpus, size)
    ]


def _row_pairs(topology: Topology, groups: list[tuple[str, list[range]]]) -> set[int]:
    """Return the rows with cables between their own boxes."""
    row_of = np.zeros(topology.num_gpus + topology.num_switches, dtype=np.int64)
    box_of = np.zeros_like(row_of)
    count = 0
    for row, (_, members) in enumerate(groups):
        for nodes in members:
            row_of[nodes.start : nodes.stop], box_of[nodes.start : nodes.stop] = row, count
            count += 1
    a, b = topology.links.end_a, topology.links.end_b
    found: list[int] = row_of[a][(row_of[a] == row_of[b]) & (box_of[a] != box_of[b])].tolist()
    return set(found)


def _boxes(
    topology: Topology, row: str, members: list[range], y: float, *, is_full: bool
) -> Iterator[Box]:
    pitch = (WIDTH - LEFT) / max(len(members), 1)
    for place, nodes in enumerate(members):
        is_host = nodes.start < topology.num_gpus
        is_gpu = is_host and is_full
        width = min(pitch * 0.7, 11.0) if is_gpu else min(pitch * 0.82, 150.0)
        x = LEFT + (place + 0.5) * pitch
        if is_gpu:  # servers stand apart
            x = LEFT + _gpu_place(topology, place) * (WIDTH - LEFT)
        yield Box(
            name=_name(topology, row, nodes, is_gpu=is_gpu),
            label="" if is_gpu else _label(topology, nodes),
            nodes=nodes,
            is_host=is_host,
            x=x,
            y=y,
            width=width,
            height=11.0 if is_gpu else _BOX,
        )


def _gpu_place(topology: Topology, gpu: int) -> float:
    """Return where a GPU stands, from 0 to 1, with a gap of one GPU between servers."""
    per_server = topology.gpus_per_server
    num_servers = -(-topology.num_gpus // per_server)
    slots = num_servers * (per_server + 1)
    return (gpu + gpu // per_server + 1) / slots


def _name(topology: Topology, row: str, nodes: range, *, is_gpu: bool) -> str:
    if is_gpu:
        return f"GPU {nodes.start}"
    if nodes.start < topology.num_gpus:
        label = _label(topology, nodes)
        return f"servers {label}" if EN_DASH in label else f"server {label}"
    if len(nodes) == 1:
        return topology.node_name(nodes.start)
    return f"{row} {_label(topology, nodes)}"


def _label(topology: Topology, nodes: range) -> str:
    if nodes.start < topology.num_gpus:
        first = nodes.start // topology.gpus_per_server
        last = (nodes.stop - 1) // topology.gpus_per_server
    else:
        first, last = _switch(topology, nodes[0]).idx, _switch(topology, nodes[-1]).idx
    return f"{first}" if first == last else f"{first}{EN_DASH}{last}"


def _switch(topology: Topology, node: int) -> Switch:
    return topology.switches[node - topology.num_gpus]


def _lines(
    topology: Topology, boxes: list[Box], *, is_full: bool
) -> tuple[list[Line], dict[int, IntArray]]:
    box_of = np.full(topology.num_gpus + topology.num_switches, -1, dtype=np.int64)
    for index, box in enumerate(boxes):
        box_of[box.nodes.start : box.nodes.stop] = index
    end_a, end_b = box_of[topology.links.end_a], box_of[topology.links.end_b]
    key = end_a * len(boxes) + end_b
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    lines: list[Line] = []
    inside: dict[int, IntArray] = {}
    for start, stop in pairwise((*starts.tolist(), len(order))):
        links = order[start:stop]
        a, b = int(end_a[links[0]]), int(end_b[links[0]])
        if a == b:
            inside[a] = links
        elif is_full:
            lines.extend(Line(box_a=a, box_b=b, links=links[i : i + 1]) for i in range(len(links)))
        else:
            lines.append(Line(box_a=a, box_b=b, links=links))
    return lines, inside


def _spread(boxes: list[Box], lines: list[Line]) -> list[Line]:
    """Return the lines with their ends side by side along the edges of switches.

    Lines leave a box in the order of what they lead to, so that they do not cross at its edge.
    """
    ends: dict[tuple[int, bool], list[tuple[float, int, bool]]] = {}
    for index, line in enumerate(lines):
        a, b = boxes[line.box_a], boxes[line.box_b]
        for own, (box, other) in enumerate(((a, b), (b, a))):
            key = (line.box_b if own else line.box_a, other.y > box.y)
            ends.setdefault(key, []).append((other.x, index, bool(own)))
    shifts = {}
    for (number, _), own_ends in ends.items():
        edge = boxes[number]
        room = edge.width * (0.5 if edge.is_host else 0.88)
        gap = min(room / len(own_ends), 6.0)
        for place, (_, index, is_b) in enumerate(sorted(own_ends)):
            shifts[index, is_b] = (place - (len(own_ends) - 1) / 2) * gap
    return [
        replace(line, shift_a=shifts[index, False], shift_b=shifts[index, True])
        for index, line in enumerate(lines)
    ]
