"""Points in a plane, drawn with letters."""

from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 84
HEIGHT = 14


class Mark(NamedTuple):
    """A point and its letter; later marks cover earlier ones."""

    x: float
    y: float
    letter: str


def scatter(marks: Sequence[Mark], *, level: float | None = None) -> str:
    """Return the points on a grid with the ends of both axes.

    Args:
        marks: at least one.
        level: height of a line across, if it lies between the points or near them.
    """
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    if level is not None and min(ys) / 2 <= level <= 2 * max(ys):
        ys.append(level)
    else:
        level = None
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    if level is not None:
        grid[_place(level, ys, HEIGHT)] = ["-"] * WIDTH
    for x, y, letter in marks:
        grid[_place(y, ys, HEIGHT)][_place(x, xs, WIDTH)] = letter
    labels = [""] * HEIGHT
    labels[0], labels[-1] = f"{min(ys):,.0f}", f"{max(ys):,.0f}"
    side = max(map(len, labels))
    lines = [
        f"  {label.rjust(side)} |{''.join(row)}".rstrip()
        for label, row in zip(reversed(labels), reversed(grid), strict=True)
    ]
    low, high = f"{min(xs):.3g}", f"{max(xs):.3g}"
    axis = f"  {' ' * side} +{'-' * WIDTH}"
    return "\n".join((*lines, axis, f"  {' ' * side}  {low}{high.rjust(WIDTH - len(low))}"))


def _place(value: float, values: Sequence[float], cells: int) -> int:
    span = max(values) - min(values)
    return 0 if span == 0 else round((value - min(values)) / span * (cells - 1))
