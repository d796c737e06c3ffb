"""The report as a page: whole, escaped, self-contained, the same every time, in its order."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from reports import COMMAND, EVIL, Element, elements, failed_comparison, plain_comparison, report_of

from kvfabric.plan.compare import Comparison
from kvfabric.plan.verdict import judge

MOST_BYTES = 2_000_000  # issue: at most 2 MB
SECTIONS = [
    "verdict",
    "comparison",
    "fabrics",
    "ttft-section",
    "stages-section",
    "kv-section",
    "cost-section",
    "sensitivity-section",
    "parts",
    "assumptions",
    "scenario",
]


@pytest.fixture(scope="module")
def plain() -> list[Element]:
    return elements(report_of(plain_comparison()))


@pytest.fixture(scope="module")
def failed() -> list[Element]:
    return elements(report_of(failed_comparison()))


def tagged(page: list[Element], tag: str) -> list[Element]:
    return [element for element in page if element.tag == tag]


@pytest.mark.parametrize("make", [plain_comparison, failed_comparison])
def test_report_is_the_same_twice(make: Callable[[], Comparison]) -> None:
    assert report_of(make()) == report_of(make())


def test_sections_stand_in_their_order(plain: list[Element]) -> None:
    assert [section.get("id") for section in tagged(plain, "section")] == SECTIONS


def test_every_verdict_is_told_first_and_in_order(plain: list[Element]) -> None:
    answers = [e.text for e in plain if e.tag == "dd" and "section" in e.path]
    verdicts = [verdict.text for verdict in judge(plain_comparison())]
    assert answers[: len(verdicts)] == verdicts


def test_nothing_is_fetched(plain: list[Element]) -> None:
    """No reference leaves the page: links go to its own sections, the icon is empty."""
    for element in plain:
        assert not element.attributes.keys() & {"src", "srcset", "action", "poster", "xlink:href"}
        href = element.get("href")
        assert not href or href.startswith("#") or href == "data:,"
    page = report_of(plain_comparison())
    assert re.search(r"url\(|@import|https?://|fetch\(|XMLHttpRequest|import\(", page) is None


def test_links_inside_the_page_lead_somewhere(plain: list[Element]) -> None:
    ids = [element.get("id") for element in plain if element.get("id")]
    assert len(ids) == len(set(ids)), "ids are unique"
    named = [element.get("href")[1:] for element in plain if element.get("href").startswith("#")]
    named += [one for e in plain for one in e.get("aria-labelledby").split()]
    named += [element.get("data-show") for element in plain if element.get("data-show")]
    assert set(named) <= set(ids)


def test_only_its_own_script_runs(failed: list[Element]) -> None:
    """A name that is a script is text: one script element, no attribute that is code."""
    assert len(tagged(failed, "script")) == 1
    assert len(tagged(failed, "style")) == 1
    assert not [n for e in failed for n in e.attributes if n.startswith("on")]
    assert "alert" not in tagged(failed, "script")[0].text


def test_text_is_shown_as_it_was_written(failed: list[Element]) -> None:
    assert tagged(failed, "h1")[0].text == EVIL
    assert EVIL in [element.text for element in tagged(failed, "h3")]
    assert EVIL in tagged(failed, "title")[0].text


def test_scenario_and_command_reproduce_it(plain: list[Element]) -> None:
    codes = [element.text for element in tagged(plain, "code")]
    assert codes == [COMMAND, "name: test  # <b>default</b>\n"]


def test_every_table_can_be_read_aloud(plain: list[Element]) -> None:
    tables = tagged(plain, "table")
    assert len(tables) == len(tagged(plain, "caption"))
    assert len(tables) >= 7
    heads = tagged(plain, "th")
    assert {head.get("scope") for head in heads} <= {"col", "row", "colgroup"}
    assert all(head.get("scope") for head in heads)


def test_every_drawing_has_a_name(plain: list[Element]) -> None:
    drawings = [e for e in tagged(plain, "svg") if e.get("class") != "sample"]
    assert len(drawings) == 4 + 5  # four designs with a fabric, five charts
    titles = {e.get("id"): e.text for e in tagged(plain, "title") if e.get("id")}
    for drawing in drawings:
        assert drawing.get("role") == "img"
        assert titles[drawing.get("aria-labelledby").split()[0]]
    samples = [e for e in tagged(plain, "svg") if e.get("class") == "sample"]
    assert all(e.get("aria-hidden") == "true" for e in samples)


def test_headings_leave_no_level_out(plain: list[Element]) -> None:
    levels = [int(e.tag[1]) for e in plain if re.fullmatch(r"h[1-6]", e.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_page_says_language_and_width(plain: list[Element]) -> None:
    assert tagged(plain, "html")[0].get("lang") == "en"
    assert "viewport" in [element.get("name") for element in tagged(plain, "meta")]


def test_numbers_in_the_page_are_numbers(failed: list[Element]) -> None:
    for element in failed:
        for name in ("d", "x", "y", "width", "height", "viewbox", "points"):
            assert not re.search("nan|inf|None", element.get(name)), element


def test_report_stays_small() -> None:
    assert len(report_of(failed_comparison()).encode()) < MOST_BYTES // 4
