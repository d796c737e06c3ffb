"""The figures of one line of a drawing: of its cables together, towards either end."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvfabric.export.report.link_figures import HOT_FROM, CableFigures
from kvfabric.export.report.topology_layout import EN_DASH, Box, Line
from kvfabric.export.report.words import plural
from kvfabric.fabric.graph import FloatArray, IntArray
from kvfabric.units import format_bytes, format_rate

NUM_STEPS = 5


@dataclass(frozen=True, slots=True)
class Measures:
    """The largest value of one line, or of a whole report: what a color stands for.

    Attributes:
        load: mean share of a channel's capacity.
        paused: share of the run that a sender was held back; None where unknown.
        queue: longest queue in bytes; None where unknown.
    """

    load: float
    paused: float | None
    queue: float | None


def measures_of(figures: CableFigures, links: IntArray | None = None) -> Measures:
    """Return the largest values over some cables, or over all."""

    def most(values: FloatArray | None) -> float | None:
        if values is None:
            return None
        chosen = values if links is None else values[links]
        return float(chosen.max()) if chosen.size else 0.0

    return Measures(
        most(figures.utilization) or 0.0, most(figures.paused_share), most(figures.peak_queue_bytes)
    )


def most_of(several: list[Measures]) -> Measures:
    """Return the largest of each value; None where none is known."""
    paused = [m.paused for m in several if m.paused is not None]
    queue = [m.queue for m in several if m.queue is not None]
    load = max((m.load for m in several), default=0.0)
    return Measures(load, max(paused) if paused else None, max(queue) if queue else None)


def step(value: float | None, highest: float | None) -> int:
    """Return 0 for nothing, else 1 to ``NUM_STEPS`` by fifths of the highest value.

    >>> step(0.0, 0.5), step(0.01, 0.5), step(0.5, 0.5)
    (0, 1, 5)
    """
    if not value or not highest:
        return 0
    return min(NUM_STEPS, int(np.ceil(NUM_STEPS * value / highest - 1e-9)))


def is_hot(figures: CableFigures, links: IntArray) -> bool:
    """Return whether a channel of these cables is busy enough to stand out."""
    return bool((figures.utilization[links] >= HOT_FROM).any())


def line_text(figures: CableFigures, line: Line, boxes: tuple[Box, ...]) -> str:
    """Return everything known of a line in sentences."""
    return " ".join(_sentences(figures, line, boxes))


def _sentences(figures: CableFigures, line: Line, boxes: tuple[Box, ...]) -> Iterator[str]:
    links = line.links
    yield _what(figures, line, boxes)
    num_failed = int(figures.failed[links].sum())
    if num_failed == len(links):
        yield "Failed: carries nothing."
        return
    if num_failed:
        yield f"{num_failed} of {len(links)} failed."
    for direction, target in ((0, line.box_b), (1, line.box_a)):
        yield _towards(figures, links, direction, boxes[target].name)


def _what(figures: CableFigures, line: Line, boxes: tuple[Box, ...]) -> str:
    rates = np.unique(figures.topology.links.rate_bps[line.links]).tolist()
    rate = format_rate(rates[0]) if len(rates) == 1 else "mixed rates"
    if len(line.links) == 1:
        name = figures.channel_name(int(line.links[0]), 0).replace(" -> ", f" {EN_DASH} ")
        return f"{name}, {rate}."
    ends = f"{boxes[line.box_a].name} {EN_DASH} {boxes[line.box_b].name}"
    return f"{ends}: {plural(len(line.links), 'cable')} of {rate}."


def _towards(figures: CableFigures, links: IntArray, direction: int, target: str) -> str:
    use = figures.utilization[links, direction]
    carried = format_bytes(round(float(figures.carried_bytes[links, direction].sum())))
    if len(links) == 1:
        text = f"To {target}: load {use[0]:.1%}, {carried}"
    else:
        busiest = figures.channel_name(int(links[use.argmax()]), direction)
        text = f"To {target}: load {use.mean():.1%} on average, {carried}"
        if use.max() > 0:
            text += f"; busiest {use.max():.1%}, {busiest}"
    return text + _pressure(figures, links, direction) + "."


def _pressure(figures: CableFigures, links: IntArray, direction: int) -> str:
    if figures.paused_share is None or figures.peak_queue_bytes is None:
        return ""
    paused = float(figures.paused_share[links, direction].max())
    queue = round(float(figures.peak_queue_bytes[links, direction].max()))
    held = f"paused {paused:.1%} of the time" if paused else "never paused"
    return f"; {held}, longest queue {format_bytes(queue)}"
