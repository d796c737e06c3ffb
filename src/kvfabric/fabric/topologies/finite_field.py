"""Finite fields GF(q) for any prime power q, as tables over integer codes.

Element ``c`` of GF(p^m) is the polynomial whose coefficients are the digits of ``c`` in base p.
"""

from dataclasses import dataclass, field

import numpy as np

from kvfabric.fabric.graph import IntArray


def prime_power(number: int) -> tuple[int, int] | None:
    """Return (p, m) with p prime and ``number`` = p^m, or None."""
    if number < 2:
        return None
    prime = next((p for p in range(2, int(number**0.5) + 1) if number % p == 0), number)
    rest, exponent = number, 0
    while rest % prime == 0:
        rest, exponent = rest // prime, exponent + 1
    return (prime, exponent) if rest == 1 else None


@dataclass(frozen=True, slots=True, eq=False)
class FiniteField:
    """The field of one order; operations take and return arrays of codes ``[0, order)``.

    Attributes:
        order: number of elements, a prime power.
        characteristic: its prime.
        powers: ``[order - 1]`` powers 0, 1, 2, ... of one primitive element: all but zero.
    """

    order: int
    characteristic: int
    powers: IntArray = field(repr=False)

    def subtract(self, minuend: IntArray, subtrahend: IntArray) -> IntArray:
        """Return the difference, digit by digit modulo the prime."""
        result = np.zeros(np.broadcast_shapes(minuend.shape, subtrahend.shape), dtype=np.int64)
        place = 1
        while place < self.order:
            digit = (minuend // place - subtrahend // place) % self.characteristic
            result += place * digit
            place *= self.characteristic
        return result

    def multiply(self, left: IntArray, right: IntArray) -> IntArray:
        """Return the product, by adding exponents of the primitive element."""
        exponent = np.zeros(self.order, dtype=np.int64)
        exponent[self.powers] = np.arange(self.order - 1)
        product = self.powers[(exponent[left] + exponent[right]) % (self.order - 1)]
        return np.where((left == 0) | (right == 0), 0, product)


def finite_field(order: int) -> FiniteField:
    """Return GF(order).

    The first polynomial modulo which x has order ``order - 1`` is taken; then the powers of x are
    all elements but zero, so the ring is a field and x a primitive element.
    """
    factors = prime_power(order)
    assert factors is not None, "the caller asks for prime powers only"
    prime, degree = factors
    candidates = (_powers_of_x(prime, degree, tail) for tail in range(1, order))
    powers = next(powers for powers in candidates if len(powers) == order - 1)
    return FiniteField(order, prime, np.array(powers, dtype=np.int64))


def _powers_of_x(prime: int, degree: int, tail: int) -> list[int]:
    """Return 1, x, x^2, ... until one repeats, with x^degree = the polynomial of code ``tail``."""
    order = prime**degree
    powers, seen, element = [], set[int](), 1
    while element not in seen:
        seen.add(element)
        powers.append(element)
        carry, shifted = divmod(element * prime, order)
        element = sum(
            (shifted // place + carry * (tail // place)) % prime * place
            for place in (prime**i for i in range(degree))
        )
    return powers
