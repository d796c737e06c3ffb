"""From the user's prices to a price book: a YAML file, or what a scenario says under ``prices``."""

from collections.abc import Mapping
from pathlib import Path

from kvfabric.app.scenario_file import parse_section
from kvfabric.app.scenario_prices import PriceBookFile, PriceRange, build_price
from kvfabric.catalog.prices import PRICE_BOOK, PriceBook, with_prices
from kvfabric.errors import ConfigError

_HINT = "Start with 'prices:' and a line such as '51.2t: {low: 25000, typical: 28000, high: 31000}'"


def load_price_book(
    prices: Path | str | Mapping[str, float | PriceRange] | None,
    *,
    folder: Path = Path(),
    where: str = "",
) -> PriceBook:
    """Return the public price book, with the user's prices in place of some of it.

    Args:
        prices: a file, or prices by part; None: the public ones alone.
        folder: what a relative path starts from.
        where: the key or flag that names the file, for messages.

    Raises:
        ConfigError: the file cannot be read, an unknown part, or no range; names file and line.
    """
    if prices is None:
        return PRICE_BOOK
    if isinstance(prices, Mapping):
        return with_prices(
            {key: build_price(entry) for key, entry in prices.items()}, name="the scenario"
        )
    path = folder / prices
    read = parse_section(
        _text(path, where), str(path), PriceBookFile, what="price book", hint=_HINT
    )
    return with_prices(
        {key: build_price(entry) for key, entry in read.prices.items()},
        name=read.name or path.name,
        date=read.date,
    )


def _text(path: Path, where: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the price book {path}: {reason}", where=where, hint="Name a YAML file"
        ) from None
