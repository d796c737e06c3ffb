"""The drawing of a fabric under one design: width and color say how loaded each line is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvfabric.export.report.line_figures import (
    Measures,
    is_hot,
    line_text,
    measures_of,
    step,
)
from kvfabric.export.report.link_figures import CableFigures
from kvfabric.export.report.markup import Markup, el
from kvfabric.export.report.topology_layout import EN_DASH, WIDTH, Box, Layout, Line
from kvfabric.export.report.words import plural
from kvfabric.fabric.graph import IntArray, Topology
from kvfabric.plan.fleet import worker_gpus
from kvfabric.plan.request import PlanRequest
from kvfabric.units import format_bytes

_LABELS_AT_MOST = 6
_CHAR = 6.0  # pixels of a small digit


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What one drawing shows.

    Attributes:
        anchor: unique on the page.
        layout: where things stand.
        figures: of the design's run.
        scale: the largest values of the report, so that drawings can be compared.
        workers: short name of each GPU's worker, such as ``P3``.
        failed_switches: nodes of the graph.
    """

    anchor: str
    layout: Layout
    figures: CableFigures
    scale: Measures
    workers: tuple[str, ...]
    failed_switches: frozenset[int]


def worker_of_gpus(request: PlanRequest, num_gpus: int) -> tuple[str, ...]:
    """Return the worker of every GPU: ``P`` prefill, ``D`` decode, ``W`` both, and its number."""
    names = [""] * num_gpus
    workers = request.workers
    for worker, gpus in enumerate(worker_gpus(request)):
        is_prefill = worker < workers.num_prefill
        letter = ("P" if is_prefill else "D") if workers.num_decode else "W"
        for gpu in gpus:
            names[gpu] = f"{letter}{worker if is_prefill else worker - workers.num_prefill}"
    return tuple(names)


def draw(scene: Scene, title: str) -> Markup:
    """Return the drawing; every line and box carries its figures as text."""
    layout = scene.layout
    order = sorted(range(len(layout.lines)), key=lambda index: _weight(scene, index))
    lines = [_line(scene, index) for index in order]
    name = f"{scene.anchor}-t"
    return el(
        "svg",
        el("title", title, id=name),
        *(_row_name(row.name, row.y) for row in layout.rows),
        el("g", *lines, class_="lines"),
        el("g", *_servers(scene), *(_box(scene, i) for i in range(len(layout.boxes)))),
        el("g", *_labels(scene, order), class_="labels", aria_hidden="true"),
        id=scene.anchor,
        class_="fabric" if layout.is_full else "fabric grouped",
        role="img",
        aria_labelledby=name,
        viewBox=f"0 0 {WIDTH:g} {layout.height:g}",
        width=f"{WIDTH:g}",
        height=f"{layout.height:g}",
    )


def line_id(scene: Scene, link: int) -> str | None:
    """Return the id of the line that a cable is part of; None inside a box."""
    for index, line in enumerate(scene.layout.lines):
        if (line.links == link).any():
            return f"{scene.anchor}-e{index}"
    return None


def _weight(scene: Scene, index: int) -> tuple[bool, float, float]:
    """Order lines so that what stands out is drawn last, on top."""
    links = scene.layout.lines[index].links
    own = measures_of(scene.figures, links)
    return bool(scene.figures.failed[links].any()), own.load, own.paused or 0.0


def _row_name(name: str, y: float) -> Markup:
    words = name.split(" ")
    if len(words) == 1:
        return el("text", name, class_="row", x=0, y=y + 4.5)
    spans = (el("tspan", w, x=0, dy="1.2em" if i else None) for i, w in enumerate(words))
    return el("text", *spans, class_="row", x=0, y=y - 3)


def _line(scene: Scene, index: int) -> Markup:
    line, boxes, figures = scene.layout.lines[index], scene.layout.boxes, scene.figures
    own, scale = measures_of(figures, line.links), scene.scale
    num_failed = int(figures.failed[line.links].sum())
    css = [f"u{step(own.load, scale.load)}"]
    if own.paused is not None:
        css += [f"p{step(own.paused, scale.paused)}", f"q{step(own.queue, scale.queue)}"]
    if num_failed == len(line.links):
        css = ["failed"]
    elif num_failed:
        css.append("partly")
    if is_hot(figures, line.links):
        css.append("hot")
    return el(
        "path",
        el("title", line_text(figures, line, boxes)),
        id=f"{scene.anchor}-e{index}",
        class_=" ".join(("e", *css)),
        d=_path(line, boxes),
    )


def _ends(line: Line, boxes: Sequence[Box]) -> tuple[float, float, float, float]:
    """Return where a line leaves its two boxes."""
    a, b = boxes[line.box_a], boxes[line.box_b]
    side_a, side_b = (1, -1) if a.y < b.y else (-1, 1)
    if a.y == b.y:
        side_a = side_b = -1
    return (
        a.x + line.shift_a,
        a.y + side_a * a.height / 2,
        b.x + line.shift_b,
        b.y + side_b * b.height / 2,
    )


def _path(line: Line, boxes: Sequence[Box]) -> str:
    x1, y1, x2, y2 = _ends(line, boxes)
    if y1 == y2:
        return (
            f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {y1 - 2 * _rise(x1, x2):.1f} {x2:.1f} {y2:.1f}"
        )
    return f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"


def _rise(x1: float, x2: float) -> float:
    """Return how high an arc between two boxes of a row goes."""
    return 10 + min(50.0, abs(x1 - x2) * 0.13)


def _point_on(line: Line, boxes: Sequence[Box], share: float) -> tuple[float, float]:
    x1, y1, x2, y2 = _ends(line, boxes)
    if y1 == y2:
        return (x1 + x2) / 2, y1 - _rise(x1, x2)
    return x1 + (x2 - x1) * share, y1 + (y2 - y1) * share


def _servers(scene: Scene) -> Iterator[Markup]:
    """Yield the frame and the workers of every server of a drawing in full."""
    if not scene.layout.is_full:
        return
    topology = scene.figures.topology
    gpus = [box for box in scene.layout.boxes if box.is_host]
    for start in range(0, len(gpus), topology.gpus_per_server):
        own = gpus[start : start + topology.gpus_per_server]
        left, right = own[0].x - own[0].width, own[-1].x + own[-1].width
        y, number = own[0].y, start // topology.gpus_per_server
        width = right - left
        yield el("rect", class_="server", x=left, y=y - 11, width=width, height=22, rx=3)
        words = _workers_text(scene, range(own[0].nodes.start, own[-1].nodes.stop))
        middle = (left + right) / 2
        yield el("text", f"server {number}" if width > 60 else number, x=middle, y=y + 27)
        yield el("text", words, class_="worker", x=middle, y=y + 43)


def _workers_text(scene: Scene, gpus: range) -> str:
    """Return the workers of some GPUs, such as ``P3, D0``; several in a row as a range."""
    names = [n for n in dict.fromkeys(scene.workers[gpu] for gpu in gpus) if n]
    parts = []
    for letter in dict.fromkeys(name[0] for name in names):
        numbers = [int(name[1:]) for name in names if name[0] == letter]
        first, last = min(numbers), max(numbers)
        parts.append(f"{letter}{first}" + (f"{EN_DASH}{last}" if last > first else ""))
    return ", ".join(parts)


def _roles(scene: Scene, gpus: Sequence[int]) -> str:
    letters = {scene.workers[gpu][:1] for gpu in gpus}
    return (
        {"P": " prefill", "D": " decode"}.get(next(iter(letters), ""), "")
        if len(letters) == 1
        else ""
    )


def _box(scene: Scene, index: int) -> Markup:
    box = scene.layout.boxes[index]
    has_failed = box.nodes.start in scene.failed_switches
    css = "host" if box.is_host else "switch"
    if box.is_host:
        css += _roles(scene, box.nodes)
    left, top = box.x - box.width / 2, box.y - box.height / 2
    shape = el("rect", class_="body", x=left, y=top, width=box.width, height=box.height, rx=2)
    parts = [el("title", _box_text(scene, index)), shape]
    if has_failed:
        css += " failed"
        cross = f"M{left:.1f} {top:.1f}l{box.width:.1f} {box.height:.1f}m0 {-box.height:.1f}"
        parts.append(el("path", class_="cross", d=f"{cross}l{-box.width:.1f} {box.height:.1f}"))
        parts.append(_tag(box.x, box.y, "\u2715 failed", "failed"))
    elif len(box.label) * _CHAR <= box.width:
        is_tight = len(box.label) * 1.25 * _CHAR > box.width
        css_label = "tight" if is_tight else None
        parts.append(el("text", box.label, class_=css_label, x=box.x, y=box.y + 4.5))
    if box.is_host and not scene.layout.is_full:
        words = _workers_text(scene, box.nodes)
        parts.append(el("text", words, class_="worker", x=box.x, y=box.y + 31))
    return el("g", *parts, id=f"{scene.anchor}-n{index}", class_=f"n {css}")


def _box_text(scene: Scene, index: int) -> str:
    box, figures = scene.layout.boxes[index], scene.figures
    topology = figures.topology
    text = f"{box.name}."
    if box.is_host:
        words = _workers_text(scene, box.nodes)
        text += f" Workers: {words}." if words else ""
    elif box.nodes.start in scene.failed_switches:
        return f"{text} Failed."
    else:
        used, radix = _ports(topology, box)
        text += f" {used:,} of {radix:,} ports used."
    into, out = _traffic(figures, box)
    text += f" In {format_bytes(into)}, out {format_bytes(out)}."
    inside = scene.layout.inside.get(index)
    if inside is not None:
        busiest = measures_of(figures, inside).load
        text += f" {plural(len(inside), 'cable')} between its own parts, busiest {busiest:.1%}."
    return text


def _ports(topology: Topology, box: Box) -> tuple[int, int]:
    numbers = [node - topology.num_gpus for node in box.nodes]
    used = topology.ports_used()
    return sum(int(used[n]) for n in numbers), sum(topology.switches[n].radix for n in numbers)


def _traffic(figures: CableFigures, box: Box) -> tuple[int, int]:
    """Return bytes into and out of a box, cables between its own parts left out."""
    links = figures.topology.links

    def is_in(ends: IntArray) -> IntArray:
        return ((ends >= box.nodes.start) & (ends < box.nodes.stop)).astype(np.int64)

    at_a, at_b = is_in(links.end_a), is_in(links.end_b)
    only_a, only_b = (at_a > at_b).nonzero(), (at_b > at_a).nonzero()
    carried = figures.carried_bytes
    into = carried[only_a, 1].sum() + carried[only_b, 0].sum()
    out = carried[only_a, 0].sum() + carried[only_b, 1].sum()
    return round(float(into)), round(float(out))


def _labels(scene: Scene, order: list[int]) -> Iterator[Markup]:
    """Yield words at what stands out: the busiest lines, those paused most, those that failed."""
    lines, figures = scene.layout.lines, scene.figures
    failed = [i for i in order if _failed_alone(scene, lines[i])]
    for place, index in enumerate(failed[:_LABELS_AT_MOST]):
        count, num = int(figures.failed[lines[index].links].sum()), len(lines[index].links)
        words = "failed" if num == 1 else f"{count} of {num} failed"
        yield _label(scene, index, words, "failed", 0.36 + 0.09 * (place % 4), mark="\u2715 ")
    working = [i for i in order if not figures.failed[lines[i].links].all()]
    loads = [(measures_of(figures, lines[i].links), i) for i in working]
    hot = [index for own, index in loads if own.load >= 0.5][-_LABELS_AT_MOST:]
    busiest = max(loads, key=lambda found: found[0].load, default=None)
    if not hot and busiest is not None and busiest[0].load > 0:
        hot = [busiest[1]]
    for place, index in enumerate(reversed(hot)):
        load = measures_of(figures, lines[index].links).load
        yield _label(scene, index, f"{load:.1%}", "load", 0.5 + 0.12 * (place % 3 - 1), mark="")
    yield from _pressure_labels(scene, loads)


def _failed_alone(scene: Scene, line: Line) -> bool:
    """Return whether a cable of a line failed other than with the switch at its end."""
    ends = (scene.layout.boxes[line.box_a], scene.layout.boxes[line.box_b])
    with_switch = any(box.nodes.start in scene.failed_switches for box in ends)
    return bool(scene.figures.failed[line.links].any()) and not with_switch


def _pressure_labels(scene: Scene, loads: list[tuple[Measures, int]]) -> Iterator[Markup]:
    paused = max(loads, key=lambda found: found[0].paused or 0.0, default=None)
    if paused is not None and paused[0].paused:
        yield _label(scene, paused[1], f"paused {paused[0].paused:.1%}", "paused", 0.5, mark="")
    queue = max(loads, key=lambda found: found[0].queue or 0.0, default=None)
    if queue is not None and queue[0].queue:
        words = f"queue {format_bytes(round(queue[0].queue))}"
        yield _label(scene, queue[1], words, "queue", 0.5, mark="")


def _label(scene: Scene, index: int, words: str, kind: str, share: float, *, mark: str) -> Markup:
    line: Line = scene.layout.lines[index]
    x, y = _point_on(line, scene.layout.boxes, share)
    return _tag(x, y, f"{mark}{words}", kind)


def _tag(x: float, y: float, text: str, kind: str) -> Markup:
    """Return words in a box of their own."""
    width = 7.2 * len(text) + 8
    return el(
        "g",
        el("rect", x=x - width / 2, y=y - 9, width=width, height=18, rx=2),
        el("text", text, x=x, y=y + 4.5),
        class_=f"lab {kind}",
    )
