"""Exact sums of rounded-down linear terms: what many steps take together, without adding them up.

Terms are ``floor((slope * i + start) / modulus)`` for i = 0, 1, 2, ... in Python integers.
"""

from math import isqrt


def floor_sum(num_terms: int, modulus: int, slope: int, start: int) -> int:
    """Return the sum of ``floor((slope * i + start) / modulus)`` over ``0 <= i < num_terms``.

    Exact for any size; O(log modulus). Needs ``modulus >= 1`` and the rest not negative.

    >>> floor_sum(4, 3, 2, 1)
    4

    Source: the lattice-point recurrence of the Euclidean algorithm (Graham, Knuth, Patashnik,
    Concrete Mathematics, section 3.5).
    """
    total = 0
    while True:
        total += num_terms * (num_terms - 1) // 2 * (slope // modulus)
        total += num_terms * (start // modulus)
        slope %= modulus
        start %= modulus
        # The points below the line, counted by rows from here on instead of by columns.
        top = slope * num_terms + start
        if top < modulus:
            return total
        num_terms, start = divmod(top, modulus)
        modulus, slope = slope, modulus


def least_terms(limit: int, modulus: int, slope: int, start: int) -> int:
    """Return the least j with ``floor_sum(j, modulus, slope, start) >= limit`` (0 for none).

    Needs ``start >= modulus >= 1``: every term is at least 1, so that the sum gets there. O(log)
    floor sums, and none in the common case.
    """
    if limit <= 0:
        return 0
    # Rounding down takes less than 1 from each term, so the answer lies between the counts that
    # the terms need unrounded, and with (modulus - 1) / modulus taken off each of them.
    target, lowered_start = limit * modulus, start - (modulus - 1)
    low = _least_unrounded(target, slope, start)
    if low * (2 * lowered_start + slope * (low - 1)) >= 2 * target:
        return low
    high = _least_unrounded(target, slope, lowered_start)
    while low < high:
        middle = (low + high) // 2
        if floor_sum(middle, modulus, slope, start) >= limit:
            high = middle
        else:
            low = middle + 1
    return low


def _least_unrounded(target: int, slope: int, start: int) -> int:
    """Return the least j >= 0 with ``start * j + slope * j * (j - 1) / 2 >= target > 0``."""
    if slope == 0:
        return -(-target // start)
    # slope j^2 + (2 start - slope) j - 2 target >= 0; the integer root can be one short.
    linear = 2 * start - slope
    root = (isqrt(linear * linear + 8 * slope * target) - linear) // (2 * slope)
    while root * (linear + slope * root) < 2 * target:
        root += 1
    return root
