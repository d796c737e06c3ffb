"""The table of ``kvfabric validate``: no row is worse than its limit, and no limit is loose.

A limit may lie above the recorded error by a tenth of it and 0.2 points (0.05 GiB), no more.
"""

import re
from functools import cache
from pathlib import Path

import pytest
from reference import reference_path

from kvfabric.app.render_validate import render_markdown
from kvfabric.app.scenario_file import parse_scenario
from kvfabric.app.validate_cli import PARTS
from kvfabric.app.validate_reference import ReferenceFolder
from kvfabric.app.validate_scenarios import VLLM_SCENARIOS
from kvfabric.plan.validation.comparison import (
    Comparison,
    Row,
    Unit,
    errors_of,
    run_comparison,
)
from kvfabric.plan.validation.packet_level import CARRIED, carried_flows, hosts_per_leaf, run_of
from kvfabric.plan.validation.registry import COMPARISONS, part_names

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"<!-- accuracy -->\n(.*?)<!-- end of accuracy -->", re.DOTALL)
SLACK = {Unit.RELATIVE: 0.002, Unit.GIB: 0.05, Unit.POINTS: 0.0}
CARRIED_ROWS = [one for one in COMPARISONS if not one.needs]
REFERENCED_ROWS = [one for one in COMPARISONS if one.needs]


def label(comparison: Comparison) -> str:
    return f"{comparison.part}: {comparison.what}"


@cache
def row_without_reference(comparison: Comparison) -> Row:
    return run_comparison(comparison, None)


@pytest.mark.parametrize("comparison", CARRIED_ROWS, ids=label)
def test_row_is_no_worse_than_its_limit(comparison: Comparison) -> None:
    row = row_without_reference(comparison)
    assert row.is_recomputed
    assert row.is_within, row.errors


@pytest.mark.parametrize("comparison", REFERENCED_ROWS, ids=label)
def test_row_from_reference_data_is_as_recorded(comparison: Comparison) -> None:
    roots = [reference_path(need).parents[need.count("/")] for need in comparison.needs]
    row = run_comparison(comparison, ReferenceFolder(roots[0]))
    assert row.is_recomputed
    assert row.is_within, row.errors
    record = comparison.record
    assert record is not None
    assert row.errors.num == record.errors.num
    for found, recorded in (
        (row.errors.mean, record.errors.mean),
        (row.errors.lowest, record.errors.lowest),
        (row.errors.highest, record.errors.highest),
    ):
        # Sums of 1e-13 and less differ between machines.
        assert found == pytest.approx(recorded, rel=0.01, abs=1e-5)


@pytest.mark.parametrize("comparison", REFERENCED_ROWS, ids=label)
def test_row_without_its_data_says_that_it_is_recorded(comparison: Comparison) -> None:
    row = row_without_reference(comparison)
    assert not row.is_recomputed
    assert row.is_within
    if row.figures:
        found = errors_of(row.figures, comparison.unit)
        assert found.mean == pytest.approx(row.errors.mean, rel=1e-4)
        assert found.worst == pytest.approx(row.errors.worst, rel=1e-4)


@pytest.mark.parametrize("comparison", COMPARISONS, ids=label)
def test_limit_is_tight(comparison: Comparison) -> None:
    errors, limit = row_without_reference(comparison).errors, comparison.limit
    slack = SLACK[comparison.unit]
    assert limit.mean <= 1.1 * errors.mean + slack
    assert limit.worst <= 1.1 * abs(errors.worst) + slack


def test_every_comparison_is_named_once_and_parts_stand_together() -> None:
    assert len({label(one) for one in COMPARISONS}) == len(COMPARISONS)
    assert part_names() == PARTS
    places = [part_names().index(one.part) for one in COMPARISONS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", CARRIED)
def test_carried_packet_flows_are_those_of_the_reference_data(name: str) -> None:
    folder = ReferenceFolder(reference_path("fabric/packet_level").parents[1])
    half = hosts_per_leaf(name)
    ours, theirs = run_of(carried_flows(name), half), run_of(folder.packet_flows(name), half)
    assert ours.channel_names == theirs.channel_names
    assert ours.paths == theirs.paths
    assert ours.size_bytes.tolist() == theirs.size_bytes.tolist()
    assert ours.start_s == pytest.approx(theirs.start_s)
    assert ours.fct_s == pytest.approx(theirs.fct_s, abs=1e-9)  # carried in whole ns


@pytest.mark.parametrize("name", VLLM_SCENARIOS)
def test_scenarios_of_recorded_runs_are_the_examples(name: str) -> None:
    recorded, by_roofline, _ = name.partition("-roofline")
    text = (ROOT / "examples" / f"vllm-{recorded}.yaml").read_text("utf-8")
    if by_roofline:
        text = text.replace("perf: {kind: profile}", "perf: {kind: roofline}")
    assert parse_scenario(VLLM_SCENARIOS[name], name) == parse_scenario(text, name)


def rendered() -> list[str]:
    rows = [row_without_reference(comparison) for comparison in COMPARISONS]
    return render_markdown(rows).splitlines()


def shown(page: str) -> list[str]:
    (table,) = TABLE.findall((ROOT / page).read_text("utf-8"))
    lines: list[str] = table.strip().splitlines()
    return lines


def test_how_to_shows_the_whole_table() -> None:
    assert shown("docs/how-to/validate.md") == rendered()


def test_readme_shows_rows_of_the_table_in_order() -> None:
    table, lines = rendered(), shown("README.md")
    places = [table.index(line) for line in lines]
    assert places[:2] == [0, 1]
    assert places == sorted(set(places))


def test_readme_shows_the_worst_row_of_every_part() -> None:
    """Of those whose errors are fractions; where all are 0, any row that is off by nothing."""
    table, lines = rendered()[2:], shown("README.md")
    for part in part_names():
        errors = {
            line: abs(row_without_reference(one).errors.worst)
            for line, one in zip(table, COMPARISONS, strict=True)
            if one.part == part and one.unit is not Unit.GIB
        }
        worst = max(errors.values())
        assert any(line in lines for line, error in errors.items() if error == worst), part
