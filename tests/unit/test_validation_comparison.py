"""Errors of comparisons with published figures, and how they are said."""

import math

import pytest

from kvfabric.app.render_validate import error_text
from kvfabric.errors import ConfigError
from kvfabric.plan.validation.comparison import (
    Comparison,
    Errors,
    Figure,
    Limit,
    Role,
    Row,
    Unit,
    error_of,
    errors_of,
)
from kvfabric.plan.validation.registry import COMPARISONS, comparisons_of


def row(errors: Errors) -> Row:
    comparison = Comparison(
        part="part",
        what="what",
        source="source",
        role=Role.HELD_OUT,
        limit=Limit(mean=0.1, worst=0.2),
        recompute=lambda: [Figure("one", 1, 1)],
    )
    return Row(comparison, errors, (), is_recomputed=True)


def test_errors_are_told_with_their_signs() -> None:
    figures = [Figure("a", 100, 90), Figure("b", 10, 10.5), Figure("c", 5, 5)]
    found = errors_of(figures, Unit.RELATIVE)
    assert found.num == 3
    assert found.mean == pytest.approx(0.05)
    assert found.lowest == pytest.approx(-0.1)
    assert found.highest == pytest.approx(0.05)
    assert found.worst == pytest.approx(-0.1)


def test_units_other_than_percent_are_differences() -> None:
    assert error_of(Figure("memory", 58.11, 58.01), Unit.GIB) == pytest.approx(-0.1)


def test_anything_but_nothing_is_infinitely_far_from_nothing() -> None:
    assert error_of(Figure("none", 0, 0), Unit.RELATIVE) == 0
    assert error_of(Figure("some", 0, 1), Unit.RELATIVE) == math.inf


@pytest.mark.parametrize(
    ("errors", "is_within"),
    [
        (Errors(2, 0.1, -0.2, 0.2), True),
        (Errors(2, 0.101, -0.1, 0.1), False),
        (Errors(2, 0.1, -0.201, 0.1), False),
        (Errors(2, 0.1, -0.1, 0.201), False),
    ],
)
def test_row_is_within_both_limits_or_it_is_not(errors: Errors, is_within: bool) -> None:
    assert row(errors).is_within is is_within


@pytest.mark.parametrize(
    ("error", "unit", "text"),
    [
        (0.0, Unit.RELATIVE, "none"),
        (-0.0678, Unit.RELATIVE, "-6.8 %"),
        (0.00084, Unit.RELATIVE, "+0.084 %"),
        (2.07e-12, Unit.RELATIVE, "+2.1e-12"),
        (-1e-16, Unit.RELATIVE, "< 1e-12"),
        (3.168, Unit.GIB, "+3.17 GiB"),
        (0.0, Unit.POINTS, "none"),
    ],
)
def test_error_is_said_for_people(error: float, unit: Unit, text: str) -> None:
    assert error_text(error, unit, signed=True) == text


def test_parts_are_picked_in_the_order_of_the_table() -> None:
    picked = comparisons_of(["prices", "max-min"])
    assert list(picked) == [one for one in COMPARISONS if one.part in {"max-min", "prices"}]
    with pytest.raises(ConfigError, match="Write one of kv-cache"):
        comparisons_of(["nothing"])
