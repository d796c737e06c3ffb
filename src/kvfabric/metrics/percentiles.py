"""Nearest-rank percentiles and exact means of integers, with the sample counts they need."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvfabric.errors import ConfigError


def nearest_rank(sorted_values: Sequence[int], percent: float) -> int:
    """Return the smallest value that at least ``percent`` % of the values do not exceed.

    The value at rank ``ceil(percent / 100 * n)``, counted from 1: always one that occurred. Exact:
    the percent is taken as it is written, so 7 % of 100 values is rank 7.

    >>> nearest_rank([15, 20, 35, 40, 50], 40)
    20

    Args:
        sorted_values: ascending, not empty.
        percent: above 0, at most 100.
    """
    assert sorted_values, "a percentile of nothing"
    rank = math.ceil(_share(percent) * len(sorted_values))
    return sorted_values[rank - 1]


def samples_needed(percent: float) -> int:
    """Return how many samples a percentile needs before it is told without a warning.

    ``10 / (1 - p)``, so that ten samples lie above it: 20 for p50, 100 for p90, 1000 for p99.
    """
    share = _share(percent)
    if share == 1:
        raise ConfigError("no number of samples is enough for p100", where="percent")
    return math.ceil(10 / (1 - share))


def _share(percent: float) -> Fraction:
    if isinstance(percent, bool) or not math.isfinite(percent) or not 0 < percent <= 100:
        raise ConfigError(
            f"read {percent!r}", where="percent", hint="Write a number above 0, at most 100"
        )
    return Fraction(str(percent)) / 100


def rounded_div(numerator: int, denominator: int) -> int:
    """Return the quotient rounded to the nearest integer, halves up; exact for any size."""
    return (2 * numerator + denominator) // (2 * denominator)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyDistribution:
    """Mean and nearest-rank percentiles of durations in ns; all None without samples."""

    num_samples: int
    mean_ns: int | None = None
    p50_ns: int | None = None
    p90_ns: int | None = None
    p99_ns: int | None = None


def describe_latencies(durations_ns: Iterable[int]) -> LatencyDistribution:
    """Return the distribution of durations in any order."""
    ordered = sorted(durations_ns)
    if not ordered:
        return LatencyDistribution(num_samples=0)
    return LatencyDistribution(
        num_samples=len(ordered),
        mean_ns=rounded_div(sum(ordered), len(ordered)),
        p50_ns=nearest_rank(ordered, 50),
        p90_ns=nearest_rank(ordered, 90),
        p99_ns=nearest_rank(ordered, 99),
    )


def thin_percentiles(
    name: str, num_samples: int, percents: Sequence[float] = (50, 90, 99)
) -> tuple[str, ...]:
    """Return one warning per percentile that is told from too few samples; none for none."""
    return tuple(
        f"{name} p{percent:g} from {num_samples} samples; {samples_needed(percent)} are needed"
        for percent in percents
        if 0 < num_samples < samples_needed(percent)
    )
