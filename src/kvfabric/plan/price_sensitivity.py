"""Which prices decide: for the total of one fabric, and for which of two fabrics is cheaper.

A total is a sum of counts times prices, so a price moved from its low to its high end moves the
total by its count times its range, and the difference of two fabrics by the difference of their
counts times its range. Both fabrics are bought at the same prices: where they need the same number
of a part its price cannot decide between them, however uncertain it is.
"""

from collections import Counter
from dataclasses import dataclass

from kvfabric.catalog.prices import Price
from kvfabric.plan.bom import BillOfMaterials, Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSwing:
    """What one price does to a total or to a difference, all other prices typical.

    Attributes:
        key: of the price book.
        count: pieces it pays for; for a difference, those of the first fabric less the second's.
        price: with its range.
        low_usd: the amount with this price at its low end.
        high_usd: with this price at its high end.
    """

    key: str
    count: int
    price: Price
    low_usd: float
    high_usd: float

    @property
    def swing_usd(self) -> float:
        """Return how far the amount moves over the range of this price."""
        return abs(self.high_usd - self.low_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDifference:
    """What the first of two fabrics costs more than the second, at common prices.

    Attributes:
        first: topology name.
        second: topology name.
        range: least, typical and most, over all combinations of prices within their ranges.
        swings: what each price that differs in count does to the typical difference, most first.
    """

    first: str
    second: str
    range: Cost
    swings: tuple[PriceSwing, ...]

    @property
    def is_settled(self) -> bool:
        """Return whether no combination of prices within their ranges turns the ranking round."""
        return self.range.low_usd > 0 or self.range.high_usd < 0

    def turning_prices(self) -> tuple[tuple[str, float], ...]:
        """Return each price that turns the ranking round alone, with where it does (USD).

        The price at which both fabrics cost the same, all other prices typical; a price that only
        reaches it turns nothing. Equal totals at typical prices are no ranking.
        """
        typical = self.range.typical_usd
        if typical == 0:
            return ()
        return tuple(
            (swing.key, swing.price.typical_usd - typical / swing.count)
            for swing in self.swings
            if typical * swing.low_usd < 0 or typical * swing.high_usd < 0
        )


def price_swings(bom: BillOfMaterials) -> tuple[PriceSwing, ...]:
    """Return what each price does to the total, the largest swing first."""
    return _swings(_counts(bom), _prices(bom), bom.cost().typical_usd)


def price_difference(first: BillOfMaterials, second: BillOfMaterials) -> PriceDifference:
    """Return what decides which of two fabrics is cheaper; both have the same price book."""
    assert first.price_book == second.price_book, "prices are common to both"
    prices = {**_prices(second), **_prices(first)}
    counts = _counts(first)
    counts.subtract(_counts(second))
    differing = Counter({key: count for key, count in counts.items() if count})
    typical = sum(count * prices[key].typical_usd for key, count in differing.items())
    ends = [
        sorted((count * prices[key].low_usd, count * prices[key].high_usd))
        for key, count in differing.items()
    ]
    return PriceDifference(
        first=first.topology,
        second=second.topology,
        range=Cost(
            low_usd=sum(least for least, _ in ends),
            typical_usd=typical,
            high_usd=sum(most for _, most in ends),
        ),
        swings=_swings(differing, prices, typical),
    )


def _swings(
    counts: Counter[str], prices: dict[str, Price], typical: float
) -> tuple[PriceSwing, ...]:
    swings = [
        PriceSwing(
            key=key,
            count=count,
            price=prices[key],
            low_usd=typical + count * (prices[key].low_usd - prices[key].typical_usd),
            high_usd=typical + count * (prices[key].high_usd - prices[key].typical_usd),
        )
        for key, count in counts.items()
    ]
    return tuple(sorted(swings, key=lambda swing: (-swing.swing_usd, swing.key)))


def _counts(bom: BillOfMaterials) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in bom.lines:
        counts[line.priced_as] += line.count
    return counts


def _prices(bom: BillOfMaterials) -> dict[str, Price]:
    return {line.priced_as: line.unit_price for line in bom.lines}


def swing_to_dict(swing: PriceSwing) -> dict[str, object]:
    """Return a swing ready for JSON; money rounded to cents."""
    return {
        "price": swing.key,
        "count": swing.count,
        "unit_low_usd": swing.price.low_usd,
        "unit_typical_usd": swing.price.typical_usd,
        "unit_high_usd": swing.price.high_usd,
        "total_low_usd": round(swing.low_usd, 2),
        "total_high_usd": round(swing.high_usd, 2),
        "swing_usd": round(swing.swing_usd, 2),
        "source": str(swing.price.source),
    }


def difference_to_dict(difference: PriceDifference, *, num_prices: int = 3) -> dict[str, object]:
    """Return a difference ready for JSON, with the prices that matter most for it."""
    amounts = difference.range
    return {
        "first": difference.first,
        "second": difference.second,
        "low_usd": round(amounts.low_usd, 2),
        "typical_usd": round(amounts.typical_usd, 2),
        "high_usd": round(amounts.high_usd, 2),
        "is_settled": difference.is_settled,
        "prices": [swing_to_dict(swing) for swing in difference.swings[:num_prices]],
        "turning_prices": [
            {"price": key, "at_usd": round(usd, 2)} for key, usd in difference.turning_prices()
        ],
    }
