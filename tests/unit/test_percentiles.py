"""Nearest-rank percentiles on small tables that can be counted by hand."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.metrics.percentiles import (
    LatencyDistribution,
    describe_latencies,
    nearest_rank,
    rounded_div,
    samples_needed,
    thin_percentiles,
)


# The worked example of https://en.wikipedia.org/wiki/Percentile (nearest-rank method).
@pytest.mark.parametrize(("percent", "value"), [(5, 15), (30, 20), (40, 20), (50, 35), (100, 50)])
def test_nearest_rank_gives_the_published_example(percent: float, value: int) -> None:
    assert nearest_rank([15, 20, 35, 40, 50], percent) == value


def test_nearest_rank_takes_the_percent_as_written() -> None:
    # 0.07 * 100 is 7.000000000000001 in floating point: rank 8 would be wrong
    assert nearest_rank(range(1, 101), 7) == 7
    assert nearest_rank(range(1, 1001), 99.9) == 999


def test_nearest_rank_of_one_sample_is_that_sample() -> None:
    assert [nearest_rank([7], percent) for percent in (0.1, 50, 99, 100)] == [7, 7, 7, 7]


@pytest.mark.parametrize("percent", [0, -1, 100.1, float("nan"), float("inf"), True])
def test_nearest_rank_refuses_a_percent_out_of_range(percent: float) -> None:
    with pytest.raises(ConfigError, match="above 0, at most 100"):
        nearest_rank([1], percent)


@pytest.mark.parametrize(("percent", "needed"), [(50, 20), (90, 100), (99, 1000), (99.9, 10_000)])
def test_samples_needed_leaves_ten_above(percent: float, needed: int) -> None:
    assert samples_needed(percent) == needed


def test_samples_needed_refuses_p100() -> None:
    with pytest.raises(ConfigError, match="p100"):
        samples_needed(100)


def test_thin_percentiles_names_those_without_enough_samples() -> None:
    assert thin_percentiles("TTFT", 100) == ("TTFT p99 from 100 samples; 1000 are needed",)
    assert [text.split()[1] for text in thin_percentiles("TTFT", 99)] == ["p90", "p99"]


@pytest.mark.parametrize("num_samples", [0, 1000])
def test_thin_percentiles_is_silent_about_none_and_about_enough(num_samples: int) -> None:
    assert thin_percentiles("TTFT", num_samples) == ()


def test_describe_latencies_sorts_first() -> None:
    assert describe_latencies([40, 10, 30, 20]) == LatencyDistribution(
        num_samples=4, mean_ns=25, p50_ns=20, p90_ns=40, p99_ns=40
    )


def test_describe_latencies_of_nothing_has_no_figures() -> None:
    assert describe_latencies([]) == LatencyDistribution(num_samples=0)


def test_rounded_div_is_exact_beyond_floats() -> None:
    assert rounded_div(10**30 + 1, 2) == 5 * 10**29 + 1
    assert [rounded_div(n, 4) for n in (1, 2, 3, 5)] == [0, 1, 1, 1]
