"""Laws of the serving core, run through the simulator with every invariant checked each instant."""

from dataclasses import replace

import pytest
from clusters import BYTES_PER_TOKEN, GPUS_PER_WORKER, Cluster, ConstantNetwork, LinearModel, build
from clusters import workload_of as workload
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_scheduler import Job, Limits, simulate
from serving_cases import (
    HASH_TOKENS,
    assert_ordered,
    cancellations,
    clusters,
    limit,
    requests,
)

from kvfabric.protocol.record import Outcome
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.workload import RequestSpec
from kvfabric.sim.simulation import RunResult


@settings(max_examples=60)
@given(requests(), clusters())
def test_every_request_finishes_and_every_block_comes_back(
    specs: list[RequestSpec], cluster: Cluster
) -> None:
    """INV-1, INV-3, INV-4, INV-6, INV-8 (nothing is left waiting), checked at every instant."""
    network = ConstantNetwork()
    simulation = build(cluster, workload(specs, HASH_TOKENS), network)
    result = simulation.run(check=True)
    assert [record.request_id for record in result.records] == [s.request_id for s in specs]
    by_id = {spec.request_id: spec for spec in specs}
    for record in result.records:
        spec = by_id[record.request_id]
        assert record.outcome is Outcome.FINISHED
        assert record.num_output_tokens == min(spec.num_output_tokens, limit(spec, cluster))
        assert_ordered(record)
    assert simulation.num_held_blocks == 0


@settings(max_examples=40)
@given(requests(), clusters())
def test_bytes_moved_are_tokens_times_bytes_per_token(
    specs: list[RequestSpec], cluster: Cluster
) -> None:
    """INV-11: what leaves the source is what the layout says, for every hand-off."""
    network = ConstantNetwork()
    result = build(cluster, workload(specs, HASH_TOKENS), network).run()
    sent = 0
    for record in result.records:
        expected = record.num_prompt_tokens * BYTES_PER_TOKEN * GPUS_PER_WORKER
        assert record.transfer_bytes == (expected if cluster.num_decode else 0)
        sent += record.transfer_bytes
    assert network.moved_bytes == sent


@settings(max_examples=200)
@given(requests(), clusters(), cancellations)
def test_runs_of_iterations_give_the_same_result_as_single_steps(
    specs: list[RequestSpec], cluster: Cluster, cancels: list[tuple[int, int]]
) -> None:
    """Cost follows events: jumping over undisturbed decode iterations changes no decision."""
    results: list[RunResult] = []
    for max_iterations in (1 << 62, 1):
        stepping = replace(cluster, max_iterations=max_iterations)
        simulation = build(stepping, workload(specs, HASH_TOKENS), ConstantNetwork())
        for request_id, time_ns in cancels:
            simulation.cancel_at(request_id, time_ns)
        results.append(simulation.run())
    jump, single = results
    assert jump.records == single.records
    assert jump.log_digest == single.log_digest
    assert jump.num_iterations == single.num_iterations


@settings(max_examples=40)
@given(requests(), clusters())
def test_the_same_run_twice_gives_the_same_log(specs: list[RequestSpec], cluster: Cluster) -> None:
    """INV-7 and INV-18: two simulations in one process neither differ nor meet."""
    first = build(cluster, workload(specs, HASH_TOKENS), ConstantNetwork())
    second = build(cluster, workload(specs, HASH_TOKENS), ConstantNetwork())
    assert first.run().log_digest == second.run().log_digest


@settings(max_examples=60)
@given(requests(), clusters(), cancellations)
def test_cancelled_requests_leave_no_block_behind(
    specs: list[RequestSpec], cluster: Cluster, cancels: list[tuple[int, int]]
) -> None:
    """Cancelling at any instant, in any state, is counted and leaks nothing."""
    simulation = build(cluster, workload(specs, HASH_TOKENS), ConstantNetwork())
    for request_id, time_ns in cancels:
        simulation.cancel_at(request_id, time_ns)
    result = simulation.run(check=True)
    ended = {Outcome.FINISHED, Outcome.ABORTED}
    assert len(result.records) == len(specs)
    assert all(record.outcome in ended for record in result.records)
    assert simulation.num_held_blocks == 0


@settings(max_examples=60)
@given(requests(), clusters(), st.integers(0, 3000))
def test_hand_offs_past_their_deadline_end_both_sides(
    specs: list[RequestSpec], cluster: Cluster, deadline_ns: int
) -> None:
    """INV-10: a hand-off that is given up releases source and destination, and is counted."""
    tight = replace(cluster, handoff_deadline_ns=deadline_ns)
    simulation = build(tight, workload(specs, HASH_TOKENS), ConstantNetwork(latency_ns=1500))
    result = simulation.run(check=True)
    assert len(result.records) == len(specs)
    for record in result.records:
        assert record.outcome in {Outcome.FINISHED, Outcome.ABORTED}
        if record.outcome is Outcome.FINISHED and cluster.num_decode:
            assert record.prefill_end_ns is not None
            assert record.transferred_ns is not None
            assert record.transferred_ns <= record.prefill_end_ns + deadline_ns
    assert simulation.num_held_blocks == 0


@settings(max_examples=300)
@given(requests(), clusters())
def test_scheduler_decides_as_the_request_by_request_reference(
    specs: list[RequestSpec], cluster: Cluster
) -> None:
    """One aggregated worker gives the reference's token times and preemptions to the ns."""
    plain = [replace(s, block_hashes=(), after_request_id=None) for s in specs]
    single = replace(cluster, num_prefill=1, num_decode=0, prefix_caching=True, lockstep=())
    result = build(single, workload(plain), ConstantNetwork()).run()
    jobs = [
        Job(
            s.request_id,
            s.arrival_ns,
            s.num_prompt_tokens,
            s.num_output_tokens,
            limit(s, cluster),
        )
        for s in plain
    ]
    limits = Limits(
        cluster.num_blocks, cluster.block_size, cluster.max_num_seqs, cluster.max_num_batched_tokens
    )
    model = LinearModel()
    depth = 2 if cluster.async_scheduling else 1
    simulate(jobs, limits, lambda n, s, p: model.mixed_step_ns(StepShape(n, s, tuple(p))), depth)
    ours = [(r.first_token_ns, r.finished_ns, r.num_preemptions) for r in result.records]
    assert ours == [(job.first, job.last, job.preemptions) for job in jobs]


def test_preemption_happens_in_the_drawn_clusters() -> None:
    """The laws above are worth something only if the tight clusters really preempt."""
    specs = [
        RequestSpec(request_id=i, arrival_ns=0, num_prompt_tokens=20, num_output_tokens=50)
        for i in range(6)
    ]
    result = build(
        Cluster(num_blocks=29, max_model_len=112), workload(specs), ConstantNetwork()
    ).run()
    assert result.num_preemptions > 0


@pytest.mark.parametrize("num_decode", [0, 1])
def test_a_prompt_that_can_never_fit_is_rejected_and_counted(num_decode: int) -> None:
    specs = [
        RequestSpec(request_id=0, arrival_ns=0, num_prompt_tokens=112, num_output_tokens=1),
        RequestSpec(request_id=1, arrival_ns=0, num_prompt_tokens=10, num_output_tokens=3),
    ]
    cluster = Cluster(num_decode=num_decode, max_model_len=112)
    result = build(cluster, workload(specs), ConstantNetwork()).run(check=True)
    assert [r.outcome for r in result.records] == [Outcome.REJECTED, Outcome.FINISHED]
