"""Prices of the user: files, inline prices, and every mistake with its line."""

import pickle
from pathlib import Path

import pytest

from kvfabric.app.price_book_file import load_price_book
from kvfabric.app.scenario_file import parse_scenario
from kvfabric.app.scenario_prices import PriceRange
from kvfabric.catalog.optics import Reach
from kvfabric.catalog.prices import PRICE_BOOK, priced_keys
from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import SourceKind


def book_of(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text)
    return path


def test_a_file_replaces_what_it_names_and_keeps_the_rest(tmp_path: Path) -> None:
    path = book_of(
        tmp_path,
        "name: spring quotes\n"
        "date: 2026-12-24\n"
        "prices:\n"
        "  51.2t: {low: 25000, typical: 28000, high: 31000, source: quote 4711}\n"
        "  optic-400g: 610\n",
    )
    book = load_price_book(path)
    price = book.price("51.2t")
    assert (price.low_usd, price.typical_usd, price.high_usd) == (25_000, 28_000, 31_000)
    assert (price.source.kind, price.source.text) == (SourceKind.GIVEN, "quote 4711")
    fixed = book.price("optic-400g")
    assert (fixed.low_usd, fixed.typical_usd, fixed.high_usd) == (610, 610, 610)
    assert book.given == {"51.2t", "optic-400g"}
    assert (book.name, book.date) == (
        "public sources 2026-11, with 2 prices of spring quotes",
        "2026-12-24",
    )
    others = PRICE_BOOK.prices.keys() - book.given
    assert all(book.price(key) == PRICE_BOOK.price(key) for key in others)


def test_without_prices_the_public_book_is_taken() -> None:
    assert load_price_book(None) is PRICE_BOOK


def test_a_missing_end_of_a_range_is_the_typical_price(tmp_path: Path) -> None:
    price = load_price_book(book_of(tmp_path, "prices: {1x400g: {typical: 7}}")).price("1x400g")
    assert (price.low_usd, price.typical_usd, price.high_usd) == (7, 7, 7)


def test_a_path_starts_from_the_folder(tmp_path: Path) -> None:
    book_of(tmp_path, "prices: {1x400g: 7}")
    assert load_price_book("prices.yaml", folder=tmp_path).given == {"1x400g"}


def test_a_module_may_be_priced_by_its_reach(tmp_path: Path) -> None:
    book = load_price_book(book_of(tmp_path, "prices: {optic-400g-dr: 700, mpo-trunk-dr: 90}"))
    assert book.key_of("optic-400g", Reach.DR) == "optic-400g-dr"
    assert book.key_of("optic-400g", Reach.SR) == "optic-400g"
    assert book.price("mpo-trunk-dr").typical_usd == 90
    assert set(book.given) <= set(priced_keys())


def test_a_price_book_travels_to_other_processes(tmp_path: Path) -> None:
    book = load_price_book(book_of(tmp_path, "prices: {1x400g: 7}"))
    assert pickle.loads(pickle.dumps(book)) == book  # noqa: S301 - our own bytes


def test_prices_of_a_scenario_need_no_file() -> None:
    book = load_price_book({"51.2t": 30_000.0, "1x400g": PriceRange(typical=5, high=9)})
    assert book.price("1x400g").high_usd == 9
    assert book.name.endswith("with 2 prices of the scenario")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prices:\n  51.2T: 5", "prices.yaml:2: prices.51.2T: unknown part '51.2T'. Did you mean"),
        ("prices:\n  gold: 5", "unknown part 'gold'. Known parts: 6.4t, 12.8t"),
        ("prices:\n  51.2t: {low: 5, typical: 3}", "Write 0 <= low <= typical <= high"),
        ("prices:\n  51.2t: -1", ":2: prices.51.2t: price range"),
        ("prices:\n  51.2t: .nan", "Write 0 <= low <= typical <= high"),
        ("prices:\n  51.2t: {lo: 5, typical: 3}", "unknown key 'lo'. Did you mean 'low'?"),
        ("prices:\n  51.2t: {low: 5}", ":2: prices.51.2t.typical: the key is missing"),
        ("prices:\n  51.2t: cheap", "read 'cheap': input should be a valid number"),
        ("prices:\n  51.2t: true", "Write a number"),
        ("prices:\n  51.2t: 1\n  51.2t: 2", "prices.yaml:3: cannot read the price book"),
        ("date: soon\nprices: {51.2t: 1}", "Write a date, such as 2026-11-30"),
        ("prices: {}", "Write at least 1"),
        ("name: mine", "prices.yaml:1: prices: the key is missing"),
        ("- 51.2t", "the price book holds no mapping of keys. Start with 'prices:'"),
        ("", "the price book holds no mapping of keys"),
        ("{", "cannot read the price book"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as told:
        load_price_book(book_of(tmp_path, text))
    assert message in str(told.value)


def test_a_missing_file_is_told_by_its_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--prices: cannot read the price book .*No such file"):
        load_price_book(tmp_path / "none.yaml", where="--prices")


SCENARIO = """
schema_version: 1
name: priced
model: llama-3.1-8b
workers: {{prefill: 1, decode: 1}}
workload:
  kind: generated
  arrivals: {{kind: poisson, rate: 2 /s}}
  prompt: {{kind: constant, tokens: 1000}}
  output: {{kind: constant, tokens: 10}}
  requests: 2
prices: {prices}
"""


def test_a_scenario_names_a_file_or_prices() -> None:
    assert parse_scenario(SCENARIO.format(prices="quotes.yaml"), "a").prices == "quotes.yaml"
    inline = parse_scenario(SCENARIO.format(prices="{51.2t: 7}"), "a").prices
    assert inline == {"51.2t": 7}


def test_a_mistake_in_prices_of_a_scenario_is_told_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"a:12: prices\.51: unknown part '51'"):
        parse_scenario(SCENARIO.format(prices="{'51': 7}"), "a")
    with pytest.raises(ConfigError, match=r"a:12: prices"):
        parse_scenario(SCENARIO.format(prices="[51.2t]"), "a")
