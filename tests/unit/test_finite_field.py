import numpy as np
import pytest

from kvfabric.fabric.topologies.finite_field import finite_field, prime_power


def test_prime_powers_below_fifty_are_found() -> None:
    # OEIS A246655
    known = [2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 32, 37, 41, 43, 47, 49]
    assert [n for n in range(50) if prime_power(n)] == known


def test_prime_power_is_taken_apart() -> None:
    assert prime_power(27) == (3, 3)
    assert prime_power(29) == (29, 1)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 8, 9, 16, 25, 27])
def test_field_axioms_hold_for_all_elements(order: int) -> None:
    gf = finite_field(order)
    a, b = np.indices((order, order))
    zero = np.zeros_like(a)
    sums = gf.subtract(a, gf.subtract(zero, b))
    products = gf.multiply(a, b)
    everything = list(range(order))
    assert (sums == sums.T).all()
    assert (products == products.T).all()
    assert (sums[0] == np.arange(order)).all()
    assert (products[1] == np.arange(order)).all()
    assert all(sorted(row) == everything for row in sums.tolist())
    assert all(sorted(row) == everything for row in products[1:].tolist())
    x, y, z = np.indices((order,) * 3)
    assert (products[x, sums[y, z]] == sums[products[x, y], products[x, z]]).all()
    assert (products[x, products[y, z]] == products[products[x, y], z]).all()
    assert (sums[x, sums[y, z]] == sums[sums[x, y], z]).all()


@pytest.mark.parametrize("order", [3, 9, 32, 49])
def test_powers_are_all_elements_but_zero(order: int) -> None:
    assert sorted(finite_field(order).powers.tolist()) == list(range(1, order))
