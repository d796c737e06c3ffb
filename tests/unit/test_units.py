"""Quantities: what is read, what is refused, and that text comes back as the same number."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.errors import ConfigError
from kvfabric.units import (
    ceil_div,
    exact_duration_text,
    exact_rate_text,
    format_bytes,
    format_ns,
    format_rate,
    parse_bytes,
    parse_bytes_per_s,
    parse_duration_ns,
    parse_frequency_hz,
    parse_rate_bps,
)

WHOLE = st.integers(min_value=1, max_value=2**53)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate_bps, "400 Gbit/s", 400 * 10**9),
        (parse_rate_bps, "400Gbps", 400 * 10**9),
        (parse_rate_bps, " 51.2 Tbit/s ", 51_200 * 10**9),
        (parse_rate_bps, "1e3 kbps", 10**6),
        (parse_bytes, "80 GB", 80 * 10**9),
        (parse_bytes, "79.19 GiB", 85_029_615_043),  # 79.19 x 2**30, rounded
        (parse_bytes, "2 KiB", 2048),
        (parse_bytes_per_s, "3.35 TB/s", 3_350 * 10**9),
        (parse_duration_ns, "50 ms", 50_000_000),
        (parse_duration_ns, "1.5 us", 1500),
        (parse_duration_ns, "2 min", 120 * 10**9),
        (parse_duration_ns, "1 h", 3600 * 10**9),
        (parse_frequency_hz, "2.5 /s", 2.5),
        (parse_frequency_hz, "90 /min", 1.5),
        (parse_frequency_hz, "7200 /h", 2.0),
    ],
)
def test_quantity_is_read(parse: Callable[[object], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (parse_rate_bps, 400, "bare number"),
        (parse_rate_bps, "400", "bare number"),
        (parse_rate_bps, "400 GB/s", "unknown unit"),
        (parse_rate_bps, "400 Gibit/s", "unknown unit"),
        (parse_rate_bps, "-400 Gbit/s", "cannot read"),
        (parse_rate_bps, "0 Gbit/s", "above 0"),
        (parse_rate_bps, "nan Gbit/s", "cannot read"),
        (parse_rate_bps, "1e999 Gbit/s", "not finite"),
        (parse_rate_bps, True, "expected a rate"),
        (parse_rate_bps, None, "expected a rate"),
        (parse_bytes, "80 Gbit", "unknown unit"),
        (parse_bytes, "80 G B", "cannot read"),
        (parse_duration_ns, "3 days", "unknown unit"),
        (parse_duration_ns, 0.05, "bare number"),
        (parse_frequency_hz, "20 Hz", "unknown unit"),
    ],
)
def test_unclear_quantity_is_refused(
    parse: Callable[[object], float], text: object, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


@given(WHOLE)
def test_exact_rate_text_is_read_back(rate_bps: int) -> None:
    assert parse_rate_bps(exact_rate_text(rate_bps)) == rate_bps


@given(st.integers(min_value=0, max_value=2**53))
def test_exact_duration_text_is_read_back(duration_ns: int) -> None:
    assert parse_duration_ns(exact_duration_text(duration_ns)) == duration_ns


@given(st.integers(min_value=-(10**18), max_value=10**18), st.integers(1, 10**9))
def test_ceil_div_is_the_smallest_that_holds(numerator: int, denominator: int) -> None:
    quotient = ceil_div(numerator, denominator)
    assert (quotient - 1) * denominator < numerator <= quotient * denominator


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(1_048_576_000_000), "1.049 TB"),
        (format_bytes(999), "999 B"),
        (format_rate(400 * 10**9), "400 Gbit/s"),
        (format_rate(12), "12 bit/s"),
        (format_ns(7_193_100_000), "7.193 s"),
        (format_ns(999), "999 ns"),
    ],
)
def test_figures_are_short(text: str, expected: str) -> None:
    assert text == expected
