"""Designs that no other beats in everything."""

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")


class Point(NamedTuple):
    """What a design costs and gives."""

    cost_usd: float
    ttft_ns: int
    tokens_per_s: float


def dominates(first: Point, second: Point) -> bool:
    """Return whether the first is at least as good in everything and better in something.

    >>> dominates(Point(1, 5, 9.0), Point(2, 5, 9.0))
    True
    """
    is_as_good = (
        first.cost_usd <= second.cost_usd
        and first.ttft_ns <= second.ttft_ns
        and first.tokens_per_s >= second.tokens_per_s
    )
    return is_as_good and first != second


def pareto_front(items: Sequence[Item], point_of: Callable[[Item], Point]) -> list[Item]:
    """Return the items that no other dominates, cheapest first; equal ones all stay.

    In order of cost, an item is dominated by one before it. Those before are kept as a staircase of
    TTFT and throughput, so that each item is one search in it.
    """
    ordered = sorted(items, key=lambda item: _key(point_of(item)))
    stairs: list[tuple[int, float]] = []  # (TTFT, most tokens/s up to it), both ascending
    kept: list[Item] = []
    last: Point | None = None
    for item in ordered:
        point = point_of(item)
        if point == last:
            kept.append(item)
            continue
        below = bisect_right(stairs, (point.ttft_ns, float("inf")))
        if below and stairs[below - 1][1] >= point.tokens_per_s:
            continue
        kept.append(item)
        last = point
        _add(stairs, point)
    return kept


def _key(point: Point) -> tuple[float, int, float]:
    return point.cost_usd, point.ttft_ns, -point.tokens_per_s


def _add(stairs: list[tuple[int, float]], point: Point) -> None:
    """Put a step in; those above it in TTFT that give no more are of no use any longer."""
    step = (point.ttft_ns, point.tokens_per_s)
    at = bisect_right(stairs, step)
    while at < len(stairs) and stairs[at][1] <= point.tokens_per_s:
        del stairs[at]
    insort(stairs, step)


def thinned(front: Sequence[Item], point_of: Callable[[Item], Point], within: float) -> list[Item]:
    """Return the items of a front that beat every cheaper kept one by more than a share."""
    kept: list[Item] = []
    for item in front:
        point = point_of(item)
        if all(_gains(point, point_of(other), within) for other in kept):
            kept.append(item)
    return kept


def _gains(dearer: Point, cheaper: Point, within: float) -> bool:
    is_faster = dearer.ttft_ns < (1 - within) * cheaper.ttft_ns
    return is_faster or dearer.tokens_per_s > (1 + within) * cheaper.tokens_per_s
