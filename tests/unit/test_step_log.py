"""What workers did, step by step, against records of the same run."""

from dataclasses import replace

import pytest
from plan_requests import plain_workload, plan_request

from kvfabric.metrics.percentiles import describe_latencies
from kvfabric.plan.failures import WorkerFailure
from kvfabric.plan.request import NO_FABRIC, WorkerRequest
from kvfabric.plan.simulate import SimulatedRun, simulate
from kvfabric.plan.step_log import weighted_latencies
from kvfabric.protocol.record import Outcome

ALONE = WorkerRequest(num_prefill=1, num_decode=0, tp=4)


def run(workers: WorkerRequest = ALONE, *, num_output_tokens: int | None = None) -> SimulatedRun:
    workload = plain_workload(20)
    if num_output_tokens is not None:
        longer = [replace(s, num_output_tokens=num_output_tokens) for s in workload.requests]
        workload = replace(workload, requests=tuple(longer))
    request = plan_request(workload=workload, workers=workers)
    return simulate(replace(request, network=NO_FABRIC))


def test_weighted_latencies_are_those_of_the_samples_written_out() -> None:
    counts = {5: 3, 1: 90, 700: 1, 30: 7}
    samples = [value for value, count in counts.items() for _ in range(count)]
    assert weighted_latencies(counts) == describe_latencies(samples)
    assert weighted_latencies({}) == describe_latencies([])


def test_inter_token_times_sum_to_the_decode_times_of_the_requests() -> None:
    """Without preemptions every token after the first waits for one step, and nothing else."""
    result = run()
    assert result.summary.num_preemptions == 0
    decode_ns = [
        record.finished_ns - record.first_token_ns
        for record in result.records
        if record.finished_ns is not None and record.first_token_ns is not None
    ]
    tokens = sum(record.num_output_tokens - 1 for record in result.records)
    assert result.itl.num_samples == tokens
    assert result.itl.mean_ns == pytest.approx(sum(decode_ns) / tokens, abs=2)


def test_busy_time_and_steps_are_counted_for_every_worker() -> None:
    result = run(replace(ALONE, num_prefill=2))
    assert [use.role for use in result.workers] == ["aggregated", "aggregated"]
    assert all(0 < use.utilization <= 1 for use in result.workers)
    assert sum(use.num_steps for use in result.workers) == result.num_iterations


def test_prompt_tokens_are_computed_once_or_found_in_the_cache() -> None:
    result = run()
    computed = sum(use.num_prefill_tokens for use in result.workers)
    assert result.num_recomputed_tokens == 0
    assert computed == sum(r.num_prompt_tokens - r.num_cached_tokens for r in result.records)


def test_preempted_requests_compute_tokens_again() -> None:
    result = run(replace(ALONE, num_blocks=110, max_model_len=3_000), num_output_tokens=400)
    assert result.summary.num_preemptions > 0
    assert result.num_recomputed_tokens > 0
    assert result.summary.counts.finished == 20


def test_steps_of_a_worker_that_died_and_came_back_are_all_counted() -> None:
    """The steps before its death and those after its return are in one log."""
    pair = replace(ALONE, num_prefill=2)
    plan = replace(plan_request(workload=plain_workload(20), workers=pair), network=NO_FABRIC)
    failure = WorkerFailure(worker="aggregated-0", at_ns=20_000_000, back_after_ns=1_000_000)
    result = simulate(replace(plan, failures=(failure,)))
    assert sum(record.num_restarts for record in result.records) > 0
    assert {record.outcome for record in result.records} == {Outcome.FINISHED}
    needed = sum(r.num_prompt_tokens - r.num_cached_tokens for r in result.records)
    assert sum(worker.num_prefill_tokens for worker in result.workers) > needed  # some twice
    assert result.itl.num_samples >= sum(r.num_output_tokens - 1 for r in result.records)
