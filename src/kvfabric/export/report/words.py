"""Figures as the report writes them: units stand in heads, so cells hold bare numbers."""

import math
from collections.abc import Callable

MISSING = "\u2013"  # an en dash

_TIME_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def ms(duration_ns: float | None) -> str:
    """Return milliseconds, or a dash."""
    return MISSING if duration_ns is None else f"{duration_ns / 1e6:,.1f}"


def figure_of(value: float | None) -> str:
    """Return three digits, or a dash.

    >>> figure_of(1.7), figure_of(0.0225), figure_of(1234.5), figure_of(120.2)
    ('1.70', '0.0225', '1,234', '120')
    """
    if value is None:
        return MISSING
    return f"{value:,.0f}" if math.fabs(value) >= 100 else f"{value:#.3g}"


def sentence(text: str) -> str:
    """Return text with a capital at the start and a full stop.

    >>> sentence("no queue for GPU 3")
    'No queue for GPU 3.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def percent(share: float | None) -> str:
    """Return a share in percent with one decimal."""
    return MISSING if share is None else f"{100 * share:.1f}"


def usd(amount: float) -> str:
    """Return whole dollars without their sign."""
    return f"{amount:,.0f}"


def time_axis(longest_ns: float) -> tuple[str, Callable[[float], str]]:
    """Return the unit of an axis of times, and how its ticks are written."""
    unit, factor = next((found for found in _TIME_UNITS if longest_ns >= found[1]), _TIME_UNITS[-1])
    return unit, lambda value: short(value / factor)


def short(value: float) -> str:
    """Return a number without needless zeros.

    >>> short(0.5), short(2000.0), short(0)
    ('0.5', '2,000', '0')
    """
    if value and math.fabs(value) < 1:
        return f"{value:.3g}"
    return f"{value:,.6g}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "cable"), plural(2, "cable"), plural(3, "switch")
    ('1 cable', '2 cables', '3 switches')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"
