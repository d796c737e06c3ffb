"""Exact sums of rounded-down linear terms."""

import pytest

from kvfabric.perf.floor_sum import FloorSums, floor_sum, least_terms


@pytest.mark.parametrize(
    ("num_terms", "modulus", "slope", "start", "expected"),
    [
        (0, 7, 3, 5, 0),
        (1, 7, 3, 5, 0),
        (4, 3, 2, 1, 0 + 1 + 1 + 2),
        (5, 1, 2, 3, 3 + 5 + 7 + 9 + 11),
        (6, 1000, 0, 2999, 6 * 2),
        # 0..99 over 7: 14 whole weeks of values 0..13 and two of value 14.
        (100, 7, 1, 0, 7 * 91 + 2 * 14),
    ],
)
def test_floor_sum_equals_hand_count(
    num_terms: int, modulus: int, slope: int, start: int, expected: int
) -> None:
    assert floor_sum(num_terms, modulus, slope, start) == expected
    assert FloorSums(modulus, slope).first(num_terms, start) == expected


def test_floor_sum_is_exact_far_beyond_64_bits() -> None:
    # With the modulus a divisor of both coefficients nothing is rounded.
    big = 10**30
    assert floor_sum(10**12, 1000, 1000 * big, 1000) == big * (10**12 - 1) * 10**12 // 2 + 10**12


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(-5, 0), (0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (6, 3), (7, 4)],
)
def test_least_terms_counts_terms_1_2_3(limit: int, expected: int) -> None:
    # Terms floor((10 i + 10) / 10) = 1, 2, 3...; sums 1, 3, 6, 10.
    assert least_terms(limit, 10, 10, 10) == expected


def test_least_terms_sees_what_rounding_takes() -> None:
    # Each term is floor(1999 / 1000) = 1, not 1.999.
    assert least_terms(100, 1000, 0, 1999) == 100
