"""Axes: where a value stands in a chart, and which values get a tick."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvfabric.export.report.markup import Markup, el, join


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps ``low`` to ``start`` and ``high`` to ``end`` (pixels), linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value; values outside stay at the edge."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """Return round values between low and high, about ``count`` of them."""
        if not self.is_log:
            step = nice_step((self.high - self.low) / count)
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            return [index * step for index in range(first, last + 1)]
        found = list(_log_ticks(self.low, self.high, (1, 2, 5)))
        return found if len(found) <= 2 * count else list(_log_ticks(self.low, self.high, (1,)))


def nice_step(rough: float) -> float:
    """Return the smallest of 1, 2 or 5 times a power of ten that is not below ``rough``.

    >>> nice_step(0.3), nice_step(70)
    (0.5, 100.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def from_zero(highest: float, start: float, end: float) -> Scale:
    """Return a linear scale from 0 to a round value at or above ``highest``."""
    highest = highest or 1.0
    step = nice_step(highest / 6)
    return Scale(0, step * math.ceil(highest / step - 1e-9), start, end)


def _log_ticks(low: float, high: float, digits: Sequence[int]) -> Iterator[float]:
    for exponent in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for digit in digits:
            value = digit * 10.0**exponent
            if low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                yield value


@dataclass(frozen=True, slots=True)
class Frame:
    """The two scales of a chart; y counts down the page, so ``y.start`` is the bottom."""

    x: Scale
    y: Scale

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixels of a pair of values."""
        return self.x.at(x), self.y.at(y)


def x_axis(frame: Frame, label: str, show: Callable[[float], str], count: int = 6) -> Markup:
    """Return grid lines, ticks and the label below."""
    bottom, top = frame.y.start, frame.y.end
    parts = []
    for tick in frame.x.ticks(count):
        at = frame.x.at(tick)
        parts.append(el("line", class_="grid", x1=at, x2=at, y1=top, y2=bottom))
        parts.append(
            el("text", show(tick), class_="tick", x=at, y=bottom + 18, text_anchor="middle")
        )
    middle = (frame.x.start + frame.x.end) / 2
    parts.append(el("line", class_="axis", x1=frame.x.start, x2=frame.x.end, y1=bottom, y2=bottom))
    parts.append(el("text", label, class_="label", x=middle, y=bottom + 38, text_anchor="middle"))
    return join(*parts)


def y_axis(frame: Frame, label: str, show: Callable[[float], str], count: int = 5) -> Markup:
    """Return grid lines, ticks, and the label above the axis, to be read without turning."""
    left, right = frame.x.start, frame.x.end
    parts = []
    for tick in frame.y.ticks(count):
        at = frame.y.at(tick)
        parts.append(el("line", class_="grid", x1=left, x2=right, y1=at, y2=at))
        parts.append(
            el("text", show(tick), class_="tick", x=left - 8, y=at + 4.5, text_anchor="end")
        )
    parts.append(el("text", label, class_="label", x=2, y=frame.y.end - 14))
    return join(*parts)


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """Return path data through points, those that add nothing at this precision left out."""
    kept: list[str] = []
    for x, y in points:
        shown = f"{x:.1f} {y:.1f}"
        if not kept or kept[-1] != shown:
            kept.append(shown)
    return "M" + "L".join(kept)
