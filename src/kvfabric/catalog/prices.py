"""A dated price book: low, typical and high price of each network part and GPU, with a source each.

Street prices move and few are public. A range is part of the answer; so is the word "assumed".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from kvfabric.catalog.optics import CABLE_PARTS, CableKind, Reach
from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind

_READ = "2026-11-30"

USD_PER_EUR = 1.16
"""Stated, not read from a market; it moves the 51.2T switch by as much as it moves itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One part's price in USD without tax, per piece."""

    low_usd: float
    typical_usd: float
    high_usd: float
    source: Source

    def __post_init__(self) -> None:
        """Refuse a range that is not one."""
        if not 0 <= self.low_usd <= self.typical_usd <= self.high_usd < float("inf"):
            raise ConfigError(
                f"price range {self.low_usd} / {self.typical_usd} / {self.high_usd} USD",
                where="price book",
                hint="Write 0 <= low <= typical <= high",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices by catalog key, as of one date.

    Attributes:
        name: what reports call it.
        date: ISO date of the newest entry.
        prices: by the key of a switch, NIC or cable part of the catalog, or the name of a GPU; an
            optical module may also be priced by reach, as ``optic-400g-dr``.
        given: the keys whose price is the user's.
    """

    name: str
    date: str
    prices: Mapping[str, Price]
    given: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to other processes as plain values: a read-only view of a mapping cannot."""
        values = (self.name, self.date, dict(self.prices), self.given)
        return (_rebuilt, values)

    def key_of(self, part: str, reach: Reach | None = None) -> str:
        """Return the key under which a part is priced: with its reach where the book has that."""
        with_reach = part if reach is None else f"{part}-{reach.value}"
        return with_reach if with_reach in self.prices else part

    def price(self, key: str) -> Price:
        """Return the price of one part."""
        if key not in self.prices:
            raise ConfigError(
                f"no price for {key!r} in price book {self.name!r}",
                where="price book",
                hint=f"Add it; priced parts are {', '.join(sorted(self.prices))}",
            )
        return self.prices[key]


def _rebuilt(name: str, date: str, prices: dict[str, Price], given: frozenset[str]) -> PriceBook:
    return PriceBook(name=name, date=date, prices=MappingProxyType(prices), given=given)


def _price(low: float, typical: float, high: float, source: Source) -> Price:
    return Price(low_usd=low, typical_usd=typical, high_usd=high, source=source)


def _published(text: str) -> Source:
    return Source(SourceKind.PUBLISHED, text, _READ)


def _fitted(text: str) -> Source:
    fit = "bounded least-squares fit to the costs in Fig. 9 of From ATOP to ZCube (SIGCOMM 2025)"
    return Source(SourceKind.DERIVED, f"{fit}: {text}", _READ)


def _assumed(reason: str) -> Source:
    return Source(SourceKind.ASSUMED, f"{reason}; wide range on purpose", _READ)


_SWITCHES = {
    "6.4t": _price(3_000, 6_000, 14_000, _assumed("no citable price; below half of 12.8T")),
    "12.8t": _price(6_000, 10_000, 25_000, _assumed("no citable price; about half of 25.6T")),
    "25.6t": _price(
        14_000, 21_000, 45_000, _fitted("about 21 thousand; the ends of the range are assumed")
    ),
    "51.2t": _price(
        29_000,
        round(33_894 * USD_PER_EUR, -2),
        87_125,
        _published(
            f"FS.COM product 250955 EUR 33,894 at {USD_PER_EUR} USD per EUR; low: lower bound of a "
            "fit to published cluster costs; high: NVIDIA SN5600 list price (secondary copy)"
        ),
    ),
}
_OPTICS = {
    "optic-200g": _price(
        130, 250, 400, _fitted("130 to 300 per end; the top of the range is assumed")
    ),
    "optic-400g": _price(
        600,
        750,
        900,
        _published(
            "luxoptx.com 800G TCO post: 400G QSFP-DD 600 to 800; ascentoptics.com: about 730 per "
            "end at NVIDIA list; high end from a fit to published cluster costs"
        ),
    ),
    "optic-800g": _price(
        700,
        1_250,
        1_900,
        _published(
            "luxoptx.com 800G TCO post: OSFP DR8 1,100 to 1,400, LPO 700 to 900, 2xFR4 up to 1,900"
        ),
    ),
}
_CABLES = {
    "mpo-trunk": _price(50, 100, 150, _published("luxoptx.com 800G TCO post: MPO-16 50 to 150")),
    "dac-200g": _price(40, 90, 200, _assumed("no citable price for copper cables")),
    "dac-400g": _price(60, 130, 300, _assumed("no citable price for copper cables")),
    "dac-800g": _price(100, 220, 500, _assumed("no citable price for copper cables")),
    "aoc-200g": _price(200, 450, 900, _assumed("no citable price for active optical cables")),
    "aoc-400g": _price(500, 1_000, 1_900, _assumed("no citable price for active optical cables")),
    "aoc-800g": _price(900, 1_900, 3_800, _assumed("no citable price for active optical cables")),
}
_NICS = {
    "1x200g": _price(500, 850, 1_600, _assumed("no citable price; below the 400G NIC")),
    "1x400g": _price(
        900, 1_050, 2_000, _fitted("ConnectX-7 900 to 1,100; the top of the range is assumed")
    ),
    "1x800g": _price(1_300, 2_200, 4_500, _assumed("no citable price; above the 400G NIC")),
    "2x100g": _price(500, 1_000, 2_000, _assumed("no citable price; below the 2 x 200G NICs")),
    "2x200g": _price(
        900,
        2_300,
        3_000,
        _fitted(
            "2,200 to 2,500 for two 200G NICs; low: one 400G NIC split in two; "
            "the top of the range is assumed"
        ),
    ),
    "2x400g": _price(1_300, 3_500, 6_500, _assumed("no citable price; above the 2 x 200G NICs")),
}

_SHARE = (
    "no citable price; per GPU with its share of a server (processors, memory, baseboard, disks, "
    "chassis; without the NIC of the fabric)"
)
_H100 = "from the 30,000 per GPU named by the luxoptx.com 800G TCO post"
_GPUS = {
    "a100-sxm-80gb": _price(8_000, 15_000, 26_000, _assumed(f"{_SHARE}; about half of an H100")),
    "h20-sxm-96gb": _price(9_000, 16_000, 28_000, _assumed(f"{_SHARE}; about half of an H100")),
    "h100-sxm-80gb": _price(20_000, 35_000, 50_000, _assumed(f"{_SHARE}; {_H100}, plus the share")),
    "h200-sxm-141gb": _price(24_000, 40_000, 58_000, _assumed(f"{_SHARE}; above an H100")),
    "b200-sxm-180gb": _price(28_000, 48_000, 76_000, _assumed(f"{_SHARE}; above an H200")),
    "l40s": _price(6_500, 11_000, 18_000, _assumed(f"{_SHARE}; about a third of an H100")),
    "rtx-4090": _price(1_800, 3_500, 7_000, _assumed(f"{_SHARE}; about a tenth of an H100")),
}

PRICE_BOOK = PriceBook(
    name="public sources 2026-11",
    date=_READ,
    prices=MappingProxyType({**_SWITCHES, **_OPTICS, **_CABLES, **_NICS, **_GPUS}),
)

_BY_REACH = tuple(
    f"{part.key}-{reach.value}"
    for part in CABLE_PARTS.values()
    if part.kind in {CableKind.OPTIC_END, CableKind.FIBRE_TRUNK}
    for reach in Reach
)


def priced_keys() -> tuple[str, ...]:
    """Return every key that a price book may hold."""
    return (*PRICE_BOOK.prices, *_BY_REACH)


def with_prices(prices: Mapping[str, Price], *, name: str, date: str = "") -> PriceBook:
    """Return the public price book with some prices replaced by the user's.

    Args:
        prices: by key of ``priced_keys``.
        name: what reports call them, such as a file's name.
        date: ISO date of theirs, where known.

    Raises:
        ConfigError: an unknown key; names the closest.
    """
    for key in prices:
        if key not in priced_keys():
            close = get_close_matches(key.lower(), priced_keys(), n=3, cutoff=0.4)
            raise ConfigError(
                f"unknown part {key!r}",
                hint=f"Did you mean {', '.join(close)}?"
                if close
                else f"Known parts: {', '.join(PRICE_BOOK.prices)}",
            )
    count = f"{len(prices)} price{'' if len(prices) == 1 else 's'}"
    return PriceBook(
        name=f"{PRICE_BOOK.name}, with {count} of {name}",
        date=max(PRICE_BOOK.date, date),
        prices=MappingProxyType({**PRICE_BOOK.prices, **prices}),
        given=frozenset(prices),
    )
