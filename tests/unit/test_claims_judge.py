"""Verdicts on hand-made results: every kind, and that a number never stands alone."""

from dataclasses import replace

import pytest
from claims_cases import FIGURES, change, fabric_cell

from kvfabric.plan.claims.cells import NIC_CAP, Cell
from kvfabric.plan.claims.changes import Change, Evidence, changes_of
from kvfabric.plan.claims.judge import (
    Finding,
    judge_nic_cap,
    judge_throughput,
    judge_ttft,
)
from kvfabric.plan.claims.settings import BASE, RunSettings
from kvfabric.plan.claims.sweep import NotRun, Outcome

VARIED = fabric_cell("NIC rate", replace(BASE, nic_gbps=100))


def test_claim_is_reproduced_if_the_base_case_reaches_it_under_both_bounds() -> None:
    found = judge_ttft([change(-0.45, engine="max-min"), change(-0.41, engine="pfc")])
    assert found.finding is Finding.REPRODUCED
    assert "-45.0% to -41.0%" in found.text


def test_claim_is_conditional_if_one_bound_of_the_base_case_misses_it() -> None:
    found = judge_ttft([change(-0.05, engine="max-min"), change(-0.41, engine="pfc")])
    assert found.finding is Finding.CONDITIONAL
    assert len(found.conditions) == 1


def test_condition_names_baseline_engine_utilization_and_cold_share() -> None:
    found = judge_ttft([change(-0.01), change(-0.5, cell=VARIED)])
    assert found.finding is Finding.CONDITIONAL
    (condition,) = found.conditions
    for part in ("-50.0%", "NIC rate", "ecmp 1 qp to zcube", "pfc", "NIC 37%", "cold 0.5%", "10%"):
        assert part in condition


def test_claim_is_not_reproduced_if_nothing_reaches_it() -> None:
    found = judge_ttft([change(-0.01), change(-0.39, cell=VARIED)])
    assert found.finding is Finding.NOT_REPRODUCED
    assert found.conditions == ()
    assert "in 1 it is nothing" in found.text


def test_overload_by_computation_is_no_evidence() -> None:
    overload = change(-0.9, cell=VARIED, evidence=Evidence.COMPUTE_BOUND)
    found = judge_ttft([change(0.0), overload])
    assert found.finding is Finding.NOT_REPRODUCED
    assert "1 are overloaded" in found.text


def test_transfers_that_pile_up_count_and_are_told() -> None:
    found = judge_ttft([change(0.0), change(-0.6, cell=VARIED, evidence=Evidence.NETWORK_BOUND)])
    assert found.finding is Finding.CONDITIONAL
    assert "transfers pile up" in found.conditions[0]


def test_claim_without_a_run_is_not_tested_and_says_why() -> None:
    found = judge_ttft([change(0.0, evidence=Evidence.NOT_RUN)])
    assert found.finding is Finding.NOT_TESTED
    assert "x" in found.text


def test_more_throughput_is_a_gain_and_less_is_none() -> None:
    up = judge_throughput([change(0.2, field="requests_per_s", cell=VARIED)])
    down = judge_throughput([change(-0.2, field="requests_per_s", cell=VARIED)])
    assert (up.finding, down.finding) == (Finding.CONDITIONAL, Finding.NOT_REPRODUCED)


def test_nic_cap_is_judged_by_its_own_cells_only() -> None:
    before = replace(BASE, num_prefill=2, num_decode=2, nic_gbps=100)
    cell = Cell(kind=NIC_CAP, factor="NIC", value="", before=before,
                after=replace(before, nic_gbps=200), seeds=(0,))  # fmt: skip
    throughput, ttft = judge_nic_cap([change(-0.5), change(-0.3, field="ttft_mean_ns", cell=cell)])
    assert throughput.finding is Finding.NOT_REPRODUCED
    assert ttft.finding is Finding.CONDITIONAL
    assert "100 to 200 Gbit/s" in ttft.conditions[0]


def outcomes_of(cell: Cell, before: Outcome, after: Outcome) -> dict[RunSettings, Outcome]:
    found: dict[RunSettings, Outcome] = {}
    for engine in cell.engines:
        for first, second in cell.runs(engine):
            found |= {first: before, second: after}
    return found


def only(changes: tuple[Change, ...]) -> Change:
    assert {c.evidence for c in changes} == {changes[0].evidence}
    return changes[0]


@pytest.mark.parametrize(
    ("before", "after", "evidence"),
    [
        ({}, {}, Evidence.GOOD),
        ({"wire_growth": 5.0}, {}, Evidence.NETWORK_BOUND),
        ({"wire_growth": 5.0, "wire_share": 0.1}, {}, Evidence.GOOD),
        ({"pressure": "overloaded"}, {"pressure": "overloaded"}, Evidence.COMPUTE_BOUND),
        ({"pressure": "overloaded"}, {}, Evidence.COMPUTE_BOUND),
        ({"pressure": "overloaded", "wire_growth": 5.0}, {}, Evidence.NETWORK_BOUND),
    ],
)
def test_evidence_follows_from_both_runs(
    before: dict[str, object], after: dict[str, object], evidence: Evidence
) -> None:
    cell = fabric_cell()
    runs = outcomes_of(cell, replace(FIGURES, **before), replace(FIGURES, **after))  # type: ignore[arg-type]
    assert only(changes_of([cell], runs)).evidence is evidence


def test_run_that_was_left_out_leaves_its_cell_out() -> None:
    cell = fabric_cell()
    found = only(changes_of([cell], outcomes_of(cell, FIGURES, NotRun("too busy"))))
    assert (found.evidence, found.reason) == (Evidence.NOT_RUN, "too busy")


def test_changes_are_means_over_seeds_of_equal_loads() -> None:
    two = replace(fabric_cell(), seeds=(0, 1))
    halves = (replace(FIGURES, ttft_p99_ns=500), replace(FIGURES, ttft_p99_ns=900))
    wholes = (replace(FIGURES, ttft_p99_ns=1_000), replace(FIGURES, ttft_p99_ns=1_000))
    found = Change(cell=two, engine="pfc", evidence=Evidence.GOOD, before=wholes, after=halves)
    assert found.of("ttft_p99_ns") == pytest.approx(-0.3)
