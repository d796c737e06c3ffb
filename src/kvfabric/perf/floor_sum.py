"""Exact sums of rounded-down linear terms: what many steps take together, without adding them up.

Terms are ``floor((slope * i + start) / modulus)`` for i = 0, 1, 2, ... in Python integers.
"""

from itertools import accumulate, count, islice, repeat
from math import gcd, isqrt
from operator import mod


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


class FloorSums:
    """``floor_sum`` for one modulus and slope, asked for again and again: O(1) a sum.

    The remainders that rounding takes off come round after ``modulus / gcd(slope, modulus)`` terms;
    their sums are kept, in O(modulus) memory.
    """

    __slots__ = ("_common", "_modulus", "_period", "_places", "_slope", "_sums")

    def __init__(self, modulus: int, slope: int) -> None:
        """Walk once round the remainders; needs ``modulus >= 1`` and ``slope >= 0``."""
        self._modulus, self._slope = modulus, slope
        self._common = gcd(slope, modulus)
        self._period = period = modulus // self._common
        # Twice round, so that every stretch of them lies in one piece.
        multiples = islice(count(0, slope % modulus), 2 * period)
        remainders: list[int] = list(map(mod, multiples, repeat(modulus)))
        self._sums = list(accumulate(remainders, initial=0))
        self._places = dict(zip(remainders[:period], range(period), strict=True))

    def first(self, num_terms: int, start: int) -> int:
        """Return ``floor_sum(num_terms, modulus, slope, start)``; needs ``start >= 0``."""
        sums = self._sums
        above = start % self._common  # by so much each remainder lies above a multiple of common
        place = self._places[start % self._modulus - above]
        rounds, left = divmod(num_terms, self._period)
        taken_off = num_terms * above + rounds * sums[self._period] + sums[place + left]
        unrounded = num_terms * start + self._slope * (num_terms * (num_terms - 1) // 2)
        return (unrounded - taken_off + sums[place]) // self._modulus


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
