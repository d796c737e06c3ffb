"""The load of the sweep: what it is set to is what comes out."""

from dataclasses import replace

import pytest

from kvfabric.plan.claims.run import request_of, run_settings
from kvfabric.plan.claims.settings import BASE, RunSettings
from kvfabric.plan.claims.traffic import BLOCK_TOKENS, CodingLoad

SMALL = replace(BASE, num_prefill=4, num_decode=4, num_contexts=2, num_requests=200, load=0.5)


def load_of(settings: RunSettings) -> CodingLoad:
    return request_of(settings)[1]


def test_same_seed_gives_the_same_load_on_every_fabric() -> None:
    first = load_of(SMALL)
    assert load_of(replace(SMALL, fabric="zcube", balancing="assigned", nic_gbps=100)) == first
    assert load_of(replace(SMALL, seed=1)) != first


def test_arrivals_do_not_wait_for_answers() -> None:
    requests = load_of(SMALL).workload.requests
    assert all(request.after_request_id is None for request in requests)
    arrivals = [request.arrival_ns for request in requests]
    assert arrivals == sorted(arrivals)


def test_closed_loop_has_its_users_open() -> None:
    load = load_of(replace(SMALL, users=10))
    measured = load.workload.requests[load.num_fillers :]
    assert sum(request.after_request_id is None for request in measured) == 10
    assert load.workload.num_users == 10


def test_more_load_is_the_same_requests_sooner() -> None:
    slow, fast = load_of(SMALL), load_of(replace(SMALL, load=1.0))
    assert fast.rate_per_s == pytest.approx(2 * slow.rate_per_s)
    lengths = [[r.num_prompt_tokens for r in one.workload.requests] for one in (slow, fast)]
    assert lengths[0] == lengths[1]


def test_bursts_change_arrivals_only() -> None:
    even, bursty = load_of(SMALL), load_of(replace(SMALL, burst_cv=5.0))
    assert even.rate_per_s == bursty.rate_per_s
    for first, second in zip(even.workload.requests, bursty.workload.requests, strict=True):
        assert first.block_hashes == second.block_hashes


def test_cold_prompts_share_nothing() -> None:
    load = load_of(replace(SMALL, cold_share=0.3))
    assert 0.2 < len(load.cold_ids) / SMALL.num_requests < 0.4
    seen: set[int] = set()
    for request in load.workload.requests:
        if request.request_id in load.cold_ids:
            assert not seen & set(request.block_hashes)
        seen |= set(request.block_hashes)


def test_hit_rate_comes_out_as_it_was_set() -> None:
    figures = run_settings(replace(SMALL, cold_share=0.0), lambda _: None)
    assert figures.num_finished == figures.num_measured == 200
    assert figures.hit_rate == pytest.approx(0.9, abs=0.03)
    assert figures.pressure == "stable"


def test_one_rank_of_each_worker_sends_the_latent() -> None:
    figures = run_settings(replace(SMALL, cold_share=0.0), lambda _: None)
    assert figures.nic_utilization > 4 * figures.mean_nic_utilization
    spread = run_settings(replace(SMALL, cold_share=0.0, senders="all"), lambda _: None)
    assert spread.nic_utilization < figures.nic_utilization / 4
    assert spread.mean_nic_utilization == pytest.approx(figures.mean_nic_utilization, rel=0.1)


def test_contexts_are_whole_blocks() -> None:
    load = load_of(SMALL)
    fillers = load.workload.requests[: load.num_fillers]
    assert len(fillers) == 2 * 4
    assert all(request.num_prompt_tokens % BLOCK_TOKENS == 0 for request in fillers)
