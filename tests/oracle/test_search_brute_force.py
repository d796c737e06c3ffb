"""A search gives what trying every design gives."""

from dataclasses import replace
from functools import cache

import pytest
from plan_requests import plain_workload
from search_requests import MS, Tried, brute_force, meeting, small_search, ttft_p99

from kvfabric.metrics.latency import Slo
from kvfabric.plan.search.search import search
from kvfabric.plan.search.space import Mode, SearchRequest
from kvfabric.plan.verdict import SAME_WITHIN
from kvfabric.workload.rescale import speed_up

LOAD = plain_workload(60)
CASES = {
    "loose": (1.0, Slo(ttft_ns=2_000 * MS, tpot_ns=60 * MS)),
    "prefill-bound": (3.0, Slo(ttft_ns=400 * MS, tpot_ns=60 * MS)),
    "tight": (2.0, Slo(ttft_ns=180 * MS, tpot_ns=25 * MS)),
    "decode-bound": (1.0, Slo(ttft_ns=2_000 * MS, tpot_ns=12 * MS)),
    "impossible": (1.0, Slo(ttft_ns=15 * MS)),
    "no-ttft": (2.0, Slo(tpot_ns=15 * MS)),
}


@cache
def everything(name: str) -> list[Tried]:
    """Return every design of a case with the whole load."""
    return brute_force(case(name))


def case(name: str, *, cost_limit: float = 1.25) -> SearchRequest:
    speed, slo = CASES[name]
    return small_search(workload=speed_up(LOAD, speed), slo=slo, cost_limit=cost_limit)


@pytest.mark.parametrize("name", CASES)
def test_cheapest_design_is_that_of_trying_all(name: str) -> None:
    request = case(name)
    result, best = search(request), meeting(request, everything(name))
    assert (result.winner is None) == (not best)
    if result.winner is None:
        return
    assert result.winner.usd == best[0].usd
    # equal cost: a fabric that gains less than the models' error is not looked for
    assert result.winner.point.ttft_ns <= (1 + SAME_WITHIN) * ttft_p99(best[0].outcome)
    for mode in Mode:
        of_mode = [one for one in best if one.shape.is_aggregated == (mode is Mode.AGGREGATED)]
        cheapest = result.cheapest(mode)
        assert (cheapest is None) == (not of_mode)
        assert cheapest is None or cheapest.usd == of_mode[0].usd


@pytest.mark.parametrize("name", ["loose", "prefill-bound"])
def test_front_is_that_of_trying_all_within_the_error_of_the_models(name: str) -> None:
    request = case(name, cost_limit=100)
    result, good = search(request), meeting(request, everything(name))
    for one in good:
        ttft_ns = ttft_p99(one.outcome)
        assert any(
            found.usd <= one.usd and found.point.ttft_ns <= (1 + SAME_WITHIN) * ttft_ns
            for found in result.front
        ), one


@pytest.mark.parametrize("name", ["tight", "prefill-bound"])
def test_number_of_processes_changes_nothing(name: str) -> None:
    request = case(name)
    assert search(request, num_processes=1) == search(request, num_processes=2)


def test_every_design_is_accounted_for() -> None:
    for name in CASES:
        result = search(case(name))
        pruned = sum(one.count for one in result.pruned)
        assert pruned + len(result.found) == result.num_designs


def test_runs_that_are_given_up_would_have_missed() -> None:
    request = case("tight")
    by_name = {
        (one.shape, None if one.option is None else one.option.idx): one
        for one in everything("tight")
    }
    found = {
        (design.shape, None if design.option is None else design.option.idx)
        for design in search(replace(request, cost_limit=100)).found
    }
    for key in found:
        assert by_name[key].outcome.num_missed <= request.num_allowed
