"""The virtual-time driver: instants, order of events, cancellation, follow-up turns."""

from dataclasses import replace

import pytest
from clusters import BYTES_PER_TOKEN, GPUS_PER_WORKER, Cluster, ConstantNetwork, LinearModel, build
from clusters import workload_of as workload
from pool_clusters import PoolCluster, build_pooled

from kvfabric.errors import ConfigError
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.commands import WorkerSignal
from kvfabric.serving.router import RoutingPolicy
from kvfabric.sim.simulation import RunResult

ONE_EACH = Cluster(num_prefill=1, num_decode=1)
HASH_TOKENS = 8


def spec(
    request_id: int = 0,
    arrival_ns: int = 0,
    *,
    prompt: int = 10,
    output: int = 3,
    hashes: tuple[int, ...] = (),
    after: int | None = None,
    think_ns: int = 0,
) -> RequestSpec:
    return RequestSpec(
        request_id=request_id,
        arrival_ns=arrival_ns,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        block_hashes=hashes,
        after_request_id=after,
        think_ns=think_ns,
    )


def run(
    specs: list[RequestSpec],
    cluster: Cluster,
    cancels: dict[int, int] | None = None,
    latency_ns: int = 500,
) -> RunResult:
    hash_tokens = cluster.hash_block_tokens
    simulation = build(cluster, workload(specs, hash_tokens), ConstantNetwork(latency_ns))
    for request_id, time_ns in (cancels or {}).items():
        simulation.cancel_at(request_id, time_ns)
    result = simulation.run(check=True)
    assert simulation.num_held_blocks == 0
    return result


def step_ns(num_decodes: int, context: int, *prefill: tuple[int, int]) -> int:
    return LinearModel().mixed_step_ns(StepShape(num_decodes, context, prefill))


def test_empty_workload_ends_at_once() -> None:
    result = run([], Cluster())
    assert (result.records, result.end_ns, result.num_events) == ((), 0, 0)


def test_lone_aggregated_request_takes_its_steps_and_nothing_else() -> None:
    (record,) = run([spec(arrival_ns=70)], Cluster()).records
    first_ns = 70 + step_ns(0, 0, (10, 0))
    assert record.prefill_start_ns == 70
    assert record.first_token_ns == first_ns
    assert record.finished_ns == first_ns + step_ns(1, 10) + step_ns(1, 11)


def test_lone_handed_off_request_takes_setup_wire_and_one_step_more() -> None:
    (record,) = run([spec()], ONE_EACH).records
    num_bytes = 10 * BYTES_PER_TOKEN * GPUS_PER_WORKER
    prefill_ns = step_ns(0, 0, (10, 0))
    arrived_ns = prefill_ns + ONE_EACH.setup_ns + 500 + num_bytes
    assert record == RequestRecord(
        request_id=0,
        outcome=Outcome.FINISHED,
        arrival_ns=0,
        routed_ns=0,
        queued_ns=0,
        prefill_start_ns=0,
        prefill_end_ns=prefill_ns,
        reserved_ns=prefill_ns,
        transferred_ns=arrived_ns,
        first_token_ns=arrived_ns + step_ns(1, 9),
        finished_ns=arrived_ns + step_ns(1, 9) + step_ns(1, 10) + step_ns(1, 11),
        num_prompt_tokens=10,
        num_output_tokens=3,
        transfer_bytes=num_bytes,
    )


def test_arrivals_of_one_instant_share_a_step() -> None:
    result = run([spec(i, prompt=4, output=1) for i in range(3)], Cluster())
    assert {record.first_token_ns for record in result.records} == {step_ns(0, 0, *[(4, 0)] * 3)}


def test_arrival_at_the_end_of_a_step_joins_the_next_one() -> None:
    # step done < arrival < schedule: the step that starts at this instant knows the newcomer
    first_ns = step_ns(0, 0, (10, 0))
    records = run([spec(), spec(1, arrival_ns=first_ns, prompt=4, output=1)], Cluster()).records
    assert records[1].prefill_start_ns == first_ns


def test_arrival_waits_for_the_iteration_under_way_only() -> None:
    first_ns = step_ns(0, 0, (10, 0))
    specs = [spec(output=100), spec(1, arrival_ns=first_ns + 1, prompt=4, output=1)]
    records = run(specs, Cluster()).records
    assert records[1].prefill_start_ns == first_ns + step_ns(1, 10)


def test_follow_up_turn_arrives_after_its_predecessor_and_the_pause() -> None:
    result = run([spec(), spec(1, after=0, think_ns=700)], Cluster())
    before, after = result.records
    assert before.finished_ns is not None
    assert after.arrival_ns == before.finished_ns + 700


def test_follow_up_of_a_rejected_turn_still_arrives() -> None:
    result = run([spec(prompt=200), spec(1, after=0)], Cluster())
    assert [r.outcome for r in result.records] == [Outcome.REJECTED, Outcome.FINISHED]


def test_two_follow_ups_of_one_turn_both_arrive() -> None:
    # a conversation may branch; no request of the workload may get lost without a record (INV-1)
    result = run([spec(), spec(1, after=0), spec(2, after=0)], Cluster())
    assert [record.request_id for record in result.records] == [0, 1, 2]


def test_cancel_before_arrival_is_harmless() -> None:
    (record,) = run([spec(arrival_ns=100)], Cluster(), {0: 50}).records
    assert record.outcome is Outcome.FINISHED


def test_cancel_after_the_end_is_harmless() -> None:
    (record,) = run([spec()], Cluster(), {0: 10**6}).records
    assert record.outcome is Outcome.FINISHED


def test_cancel_at_the_instant_of_arrival_comes_first() -> None:
    # cancel < arrival at equal instants: there is nothing to cancel yet
    (record,) = run([spec(arrival_ns=100)], Cluster(), {0: 100}).records
    assert record.outcome is Outcome.FINISHED


def test_cancel_at_the_instant_a_request_finishes_comes_too_late() -> None:
    (plain,) = run([spec()], Cluster()).records
    assert plain.finished_ns is not None
    (record,) = run([spec()], Cluster(), {0: plain.finished_ns}).records
    assert record == plain


STAGES = ["prefill_start_ns", "prefill_end_ns", "transferred_ns", "first_token_ns"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("offset_ns", [-1, 0, 1])
def test_cancel_around_every_stage_gives_all_blocks_back(stage: str, offset_ns: int) -> None:
    # https://github.com/vllm-project/vllm/pull/29906: a timeout equal to the end of prefill
    (plain,) = run([spec(output=9)], ONE_EACH).records
    time_ns = max(1, getattr(plain, stage) + offset_ns)
    (record,) = run([spec(output=9)], ONE_EACH, {0: time_ns}).records
    assert (record.outcome, record.finished_ns) == (Outcome.ABORTED, time_ns)


def test_cancel_during_setup_moves_no_bytes() -> None:
    network = ConstantNetwork()
    simulation = build(ONE_EACH, workload([spec()]), network)
    simulation.cancel_at(0, step_ns(0, 0, (10, 0)) + ONE_EACH.setup_ns - 1)
    simulation.run(check=True)
    assert network.moved_bytes == 0
    assert simulation.num_held_blocks == 0


def test_deadline_shorter_than_the_wire_aborts_and_releases_both_sides() -> None:
    tight = replace(ONE_EACH, handoff_deadline_ns=300)
    (record,) = run([spec()], tight).records
    assert record.outcome is Outcome.ABORTED
    assert record.finished_ns == step_ns(0, 0, (10, 0)) + 300


def test_bytes_that_arrive_at_the_deadline_are_in_time() -> None:
    # transfer done < deadline at equal instants
    wire_ns = 500 + 10 * BYTES_PER_TOKEN * GPUS_PER_WORKER
    exact = replace(ONE_EACH, handoff_deadline_ns=ONE_EACH.setup_ns + wire_ns)
    (record,) = run([spec()], exact).records
    assert record.outcome is Outcome.FINISHED


def test_deadline_shorter_than_the_wait_for_decode_blocks_gives_no_tokens() -> None:
    # https://github.com/aws-samples/aws-do-eks/pull/84: a lease of 30 s, held longer: 8 of 42
    # requests read freed blocks and were answered; they must fail instead
    cluster = replace(
        ONE_EACH, num_blocks=29, max_model_len=112, max_num_seqs=1, handoff_deadline_ns=20_000
    )
    specs = [spec(i, prompt=60, output=50) for i in range(6)]
    result = run(specs, cluster)
    outcomes = {record.outcome for record in result.records}
    assert outcomes == {Outcome.FINISHED, Outcome.ABORTED}
    for record in result.records:
        if record.outcome is Outcome.ABORTED:
            assert record.first_token_ns is None
            assert record.num_output_tokens == 0


def test_full_decode_worker_holds_back_hand_offs_and_loses_none() -> None:
    # https://github.com/sgl-project/sglang-omni/pull/1718: prefill holds blocks until decode has
    # taken them; decode blocks are reserved before bytes move
    cluster = replace(ONE_EACH, num_blocks=29, max_model_len=112)
    result = run([spec(i, prompt=60, output=50) for i in range(8)], cluster)
    waits = [
        record.reserved_ns - record.prefill_end_ns
        for record in result.records
        if record.reserved_ns is not None and record.prefill_end_ns is not None
    ]
    assert len(waits) == 8
    assert max(waits) > 0


def test_progress_counts_ended_requests_up_to_all() -> None:
    seen: list[int] = []
    specs = [spec(i, arrival_ns=5000 * i) for i in range(5)]
    build(Cluster(), workload(specs), ConstantNetwork()).run(seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 5


def test_digest_tells_runs_apart() -> None:
    plain = run([spec()], Cluster())
    assert plain.log_digest == run([spec()], Cluster()).log_digest
    assert plain.log_digest != run([spec(arrival_ns=1)], Cluster()).log_digest


def test_two_thousand_requests_leave_no_block_behind() -> None:
    # https://github.com/kekzl/imp/issues/1115: a soak found one lost block per request
    cluster = Cluster(num_prefill=2, num_decode=2, hash_block_tokens=HASH_TOKENS)
    specs = [
        spec(i, 3000 * i, prompt=9 + i % 8, output=1 + i % 7, hashes=(i % 5, 1000 + i))
        for i in range(2000)
    ]
    simulation = build(cluster, workload(specs, HASH_TOKENS), ConstantNetwork())
    result = simulation.run()
    assert {record.outcome for record in result.records} == {Outcome.FINISHED}
    assert simulation.num_held_blocks == 0
    simulation.check_invariants()


def test_prompt_that_names_a_hash_twice_is_served_or_refused() -> None:
    # a trace may say so: nothing may leak, and bad input is an error for its writer, not ours
    cluster = Cluster(hash_block_tokens=HASH_TOKENS)
    specs = [spec(i, 100_000 * i, prompt=24, hashes=(1, 1, 2)) for i in range(3)]
    try:
        result = run(specs, cluster)
    except ConfigError:
        return
    assert {record.outcome for record in result.records} == {Outcome.FINISHED}


def last_finish_ns(result: RunResult) -> int:
    return max(record.finished_ns or 0 for record in result.records)


@pytest.mark.parametrize("policy", RoutingPolicy)
def test_more_prefill_workers_end_a_burst_sooner(policy: RoutingPolicy) -> None:
    specs = [spec(i, prompt=40, output=2) for i in range(30)]
    three = Cluster(num_prefill=3, num_decode=2, policy=policy)
    assert last_finish_ns(run(specs, three)) < last_finish_ns(
        run(specs, replace(three, num_prefill=1))
    )


@pytest.mark.parametrize("num_decode", [0, 1])
def test_run_ends_with_its_last_request(num_decode: int) -> None:
    # deadlines of hand-offs that were acknowledged long ago are not part of a run
    result = run([spec(), spec(1, 5000)], Cluster(num_decode=num_decode))
    assert result.end_ns == last_finish_ns(result)


# ---------------------------------------------------------------------- reports


def test_worker_reports_what_an_interval_left_behind_before_the_next_begins() -> None:
    # by hand: two requests of one prefill step and a run of two decode iterations each
    cluster = Cluster(signal_interval_ns=3000, hash_block_tokens=HASH_TOKENS)
    specs = [spec(), spec(1, arrival_ns=7000)]
    simulation, coordinator = build_pooled(
        PoolCluster(cluster=cluster), workload(specs), ConstantNetwork(), has_pool=False
    )
    reports: list[tuple[int, int]] = []

    def observe(worker: int, signal: WorkerSignal, now_ns: int) -> None:
        assert worker == 0
        reports.append((now_ns, signal.num_requests))

    coordinator.observe = observe
    simulation.run()
    prefill_ns = step_ns(0, 0, (10, 0))
    finish_ns = prefill_ns + step_ns(1, 10) + step_ns(1, 11)
    assert prefill_ns < 3000 < finish_ns < 6000
    assert reports == [(prefill_ns, 1), (finish_ns, 0), (7000 + prefill_ns, 1)]


# ---------------------------------------------------------------------- lockstep


PAIR = Cluster(num_prefill=2, lockstep=((0, 1),))


def test_ranks_in_lockstep_take_the_longest_step() -> None:
    first, second = run([spec(0, prompt=12), spec(1, prompt=4)], PAIR).records
    longest_ns = step_ns(0, 0, (12, 0))
    assert (first.first_token_ns, second.first_token_ns) == (longest_ns, longest_ns)
    assert second.finished_ns == first.finished_ns == longest_ns + step_ns(1, 12) + step_ns(1, 13)


def test_rank_without_work_waits_for_the_others_before_it_begins() -> None:
    first, second = run([spec(0, prompt=12), spec(1, prompt=4, arrival_ns=10)], PAIR).records
    assert second.queued_ns == second.prefill_start_ns == first.first_token_ns
