"""Which prices decide, against bills that are priced anew with one price moved (brute force)."""

import json
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from kvfabric.catalog.prices import PRICE_BOOK, Price, PriceBook, with_prices
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.plan.bom import BillOfMaterials, bill_of_materials
from kvfabric.plan.price_sensitivity import (
    difference_to_dict,
    price_difference,
    price_swings,
    swing_to_dict,
)
from kvfabric.protocol.provenance import Source, SourceKind

GBIT = 10**9
KINDS = ("clos", "roft", "zcube", "hpn", "bcube", "dragonfly")
A_TEST = Source(SourceKind.ASSUMED, "a test")


@cache
def fabric(kind: str) -> Topology:
    return build_topology(kind, 64, nic_rate_bps=400 * GBIT)


def bill(kind: str, book: PriceBook = PRICE_BOOK) -> BillOfMaterials:
    return bill_of_materials(fabric(kind), book)


def total(kind: str, prices: dict[str, float]) -> float:
    """Return the total at prices that replace the typical ones."""
    book = replace(
        PRICE_BOOK,
        prices={
            key: price if key not in prices else _fixed(prices[key])
            for key, price in PRICE_BOOK.prices.items()
        },
    )
    return bill(kind, book).cost().typical_usd


def _fixed(usd: float) -> Price:
    return Price(low_usd=usd, typical_usd=usd, high_usd=usd, source=A_TEST)


@pytest.mark.parametrize("kind", KINDS)
def test_swing_is_what_pricing_anew_gives(kind: str) -> None:
    swings = price_swings(bill(kind))
    assert {swing.key for swing in swings} == {line.key for line in bill(kind).lines}
    for swing in swings:
        price = PRICE_BOOK.price(swing.key)
        assert swing.low_usd == pytest.approx(total(kind, {swing.key: price.low_usd}))
        assert swing.high_usd == pytest.approx(total(kind, {swing.key: price.high_usd}))
    assert [swing.swing_usd for swing in swings] == sorted(
        (swing.swing_usd for swing in swings), reverse=True
    )


@pytest.mark.parametrize(("first", "second"), [p for p in product(KINDS, KINDS) if p[0] != p[1]])
def test_difference_and_what_turns_it_are_what_pricing_anew_gives(first: str, second: str) -> None:
    difference = price_difference(bill(first), bill(second))
    typical = total(first, {}) - total(second, {})
    assert difference.range.typical_usd == pytest.approx(typical)
    turning = set()
    for key, price in PRICE_BOOK.prices.items():
        moved = [
            total(first, {key: usd}) - total(second, {key: usd})
            for usd in (price.low_usd, price.high_usd)
        ]
        known = [swing for swing in difference.swings if swing.key == key]
        if known:
            assert [known[0].low_usd, known[0].high_usd] == pytest.approx(moved)
        else:
            assert moved == pytest.approx([typical, typical])
        if min(moved) * typical < 0 or max(moved) * typical < 0:
            turning.add(key)
    assert {key for key, _ in difference.turning_prices()} == turning
    for key, usd in difference.turning_prices():
        assert total(first, {key: usd}) == pytest.approx(total(second, {key: usd}))
        assert PRICE_BOOK.price(key).low_usd <= usd <= PRICE_BOOK.price(key).high_usd


def test_range_of_a_difference_is_over_all_corners_of_common_prices() -> None:
    keys = sorted({line.key for kind in ("roft", "zcube") for line in bill(kind).lines})
    corners = [
        total("roft", dict(zip(keys, prices, strict=True)))
        - total("zcube", dict(zip(keys, prices, strict=True)))
        for prices in product(
            *((PRICE_BOOK.price(key).low_usd, PRICE_BOOK.price(key).high_usd) for key in keys)
        )
    ]
    difference = price_difference(bill("roft"), bill("zcube"))
    assert difference.range.low_usd == pytest.approx(min(corners))
    assert difference.range.high_usd == pytest.approx(max(corners))
    assert difference.is_settled == (min(corners) > 0 or max(corners) < 0)


def test_common_parts_do_not_decide() -> None:
    swings = price_difference(bill("roft"), bill("rail-only")).swings
    assert {swing.key for swing in swings}.isdisjoint({"1x400g"})


def test_a_fabric_does_not_differ_from_itself() -> None:
    difference = price_difference(bill("zcube"), bill("zcube"))
    assert difference.swings == ()
    assert difference.turning_prices() == ()
    assert difference.range.typical_usd == 0
    assert not difference.is_settled


def test_price_of_one_reach_is_a_price_of_its_own() -> None:
    book = with_prices({"optic-400g-sr": _fixed(500)}, name="a test")
    optic = next(line for line in bill("roft", book).lines if line.category == "optic")
    assert (optic.key, optic.priced_as, optic.unit_price.typical_usd) == (
        "optic-400g",
        "optic-400g-sr",
        500,
    )
    assert "optic-400g-sr" in {swing.key for swing in price_swings(bill("roft", book))}


def test_dictionaries_are_json() -> None:
    difference = difference_to_dict(price_difference(bill("roft"), bill("zcube")))
    assert json.loads(json.dumps(difference)) == difference
    swing = swing_to_dict(price_swings(bill("roft"))[0])
    assert json.loads(json.dumps(swing)) == swing
