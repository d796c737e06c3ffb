"""Checks of the numbers in a configuration: type, finiteness and range."""

import math

from kvfabric.errors import ConfigError

MAX_NUM_REQUESTS = 10_000_000
MAX_NUM_TOKENS = 10_000_000
MAX_SPAN_NS = 10**17  # about three years; sums of ns stay far below 2**63


def require_int(value: object, name: str, *, low: int, high: int) -> int:
    """Return ``value`` if it is a whole number in ``[low, high]``, else refuse it by name."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"read {value!r}", where=name, hint=f"Write a whole number from {low} to {high}"
        )
    return value


def require_real(value: object, name: str, *, low: float, high: float) -> float:
    """Return ``value`` if it is a finite number in ``[low, high]``, else refuse it by name."""
    hint = f"Write a number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"read {value!r}", where=name, hint=hint)
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(f"read {value!r}", where=name, hint=hint)
    return float(value)
