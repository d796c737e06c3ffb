"""The user's prices as pydantic models: the key ``prices`` of a scenario, and price book files."""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from kvfabric.app.quantities import Section, as_mistake
from kvfabric.catalog.prices import Price, with_prices
from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind


class PriceRange(Section):
    """One part's price in USD without tax, per piece; a missing end is the typical price."""

    typical: float
    low: float | None = None
    high: float | None = None
    source: str = "no source named"

    def build(self) -> Price:
        """Return the price; refuse a range that is none."""
        return Price(
            low_usd=self.typical if self.low is None else self.low,
            typical_usd=self.typical,
            high_usd=self.typical if self.high is None else self.high,
            source=Source(SourceKind.GIVEN, self.source),
        )


def _is_number(value: object) -> str:
    return "range" if isinstance(value, Mapping | PriceRange) else "number"


PriceEntry = Annotated[
    Annotated[float, Tag("number")] | Annotated[PriceRange, Tag("range")],
    Discriminator(_is_number),
]


def build_price(entry: float | PriceRange) -> Price:
    """Return the price of an entry: one number is a price without a range."""
    return (entry if isinstance(entry, PriceRange) else PriceRange(typical=entry)).build()


def _all_sound(entries: dict[str, float | PriceRange]) -> dict[str, float | PriceRange]:
    for key, entry in entries.items():
        try:
            with_prices({key: build_price(entry)}, name="")
        except ConfigError as error:
            raise as_mistake(error, key) from None
    return entries


Prices = Annotated[dict[str, PriceEntry], Field(min_length=1), AfterValidator(_all_sound)]


def _is_file(value: object) -> str:
    return "file" if isinstance(value, str) else "prices"


PricesOrFile = Annotated[
    Annotated[str, Tag("file")] | Annotated[Prices, Tag("prices")], Discriminator(_is_file)
]


def _iso_date(value: object) -> str:
    """Return a date as text; YAML reads an unquoted one as a date."""
    try:
        return (
            value.isoformat()
            if isinstance(value, dt.date)
            else dt.date.fromisoformat(str(value)).isoformat()
        )
    except ValueError:
        error = ConfigError(f"read {value!r}", hint="Write a date, such as 2026-11-30")
        raise as_mistake(error) from None


class PriceBookFile(Section):
    """A price book file."""

    name: str | None = None
    date: Annotated[str, BeforeValidator(_iso_date)] = ""
    prices: Prices
