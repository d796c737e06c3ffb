"""The text of a plan: bounded lines, no color codes, nothing for what is not known."""

import re

import pytest
from plan_requests import plain_workload, plan_request

from kvfabric.app.layout import WIDTH
from kvfabric.app.render import render_mapping, render_plan
from kvfabric.plan.compare import Comparison, compare
from kvfabric.plan.verdict import judge


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(plan_request(workload=plain_workload(12), fabrics=("roft",)))


def test_plan_text_is_the_same_twice(comparison: Comparison) -> None:
    verdicts = judge(comparison)
    assert render_plan(comparison, verdicts) == render_plan(comparison, verdicts)


def test_plan_text_keeps_to_its_width(comparison: Comparison) -> None:
    lines = render_plan(comparison, judge(comparison)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert not any(line != line.rstrip() for line in lines if line.strip())


def test_plan_text_has_no_control_codes(comparison: Comparison) -> None:
    text = render_plan(comparison, judge(comparison))
    assert re.search(r"[^\x20-\x7e\n]", text) is None


def test_plan_text_has_a_row_for_every_design(comparison: Comparison) -> None:
    text = render_plan(comparison, judge(comparison))
    names = [design.name for design in comparison.designs] + ["aggregated"]
    for name in names:
        assert len(re.findall(rf"^ {re.escape(name)} ", text, re.MULTILINE)) == 2


def test_plan_text_has_every_verdict(comparison: Comparison) -> None:
    verdicts = judge(comparison)
    words = render_plan(comparison, verdicts).split()
    for verdict in verdicts:
        assert " ".join(verdict.text.split()) in " ".join(words)


def test_mapping_is_aligned_and_nested() -> None:
    text = render_mapping({"gpus": 1024, "by_role": {"leaf": 64}, "list": [1], "hops": 2.5})
    assert text == "gpus     1,024\nby_role\n  leaf  64\nhops     2.5\n"
