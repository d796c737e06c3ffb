"""Fleets whose prefill and decode workers differ: their pools, hand-offs, exchanges and failures.

Worked by hand for Llama-3.1-8B: 32 layers x 8 KV heads x 128 x keys and values x 2 bytes are
131,072 bytes per token. A GPU's NIC carries 400 Gbit/s, of which 4,096 bytes of each 4,160 are
payload.
"""

from dataclasses import replace
from fractions import Fraction

import pytest
from clusters import LinearModel
from hypothesis import given
from hypothesis import strategies as st
from plan_requests import BYTES_PER_TOKEN, GBIT, plan_request, simulation_on

from kvfabric.errors import CapacityError
from kvfabric.kvcache.resharding import KvResharding
from kvfabric.perf.context_parallel import CpExchange
from kvfabric.perf.context_parallel_steps import ContextParallelSteps
from kvfabric.perf.handoff import HANDOFF_SETUP_NS
from kvfabric.plan.engines import kv_element_bytes
from kvfabric.plan.failures import WorkerFailure
from kvfabric.plan.fleet import build_fleet, handoff_bytes
from kvfabric.plan.request import HandoffPolicy, PlanRequest, WorkerRequest
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.serving.coordinator_config import HandoffMode

NUM_TOKENS = 8_000
MS = 1_000_000
PAYLOAD = Fraction(400 * GBIT * 4_096, 4_160 * 8 * 10**9)  # bytes per ns


class SlowSteps(LinearModel):
    """100 us per token: every ring is hidden behind the computation."""

    def mixed_step_ns(self, shape: StepShape) -> int:
        return 100_000 * (shape.num_decodes + sum(num for num, _ in shape.prefill))

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        del context_tokens
        return 100_000 * num_decodes * num_iterations


def one_prompt(num_output_tokens: int = 2) -> Workload:
    spec = RequestSpec(
        request_id=0,
        arrival_ns=0,
        num_prompt_tokens=NUM_TOKENS,
        num_output_tokens=num_output_tokens,
    )
    return Workload(name="one prompt", requests=(spec,), hash_block_tokens=0, num_rows=1)


def fleet_of(workload: Workload | None = None, **workers: object) -> PlanRequest:
    settings: dict[str, object] = {"num_prefill": 2, "num_decode": 2, "tp": 4} | workers
    return plan_request(
        workers=WorkerRequest(**settings),  # type: ignore[arg-type]
        workload=workload,
    )


def only_record(request: PlanRequest) -> RequestRecord:
    simulation, _ = simulation_on(request, "clos", "spray")
    (record,) = simulation.run(check=True).records
    assert record.outcome is Outcome.FINISHED
    assert simulation.num_held_blocks == 0
    return record


# ---------------------------------------------------------------------------- sizes


def test_each_kind_has_the_pool_and_step_times_of_its_own_gpus() -> None:
    fleet = build_fleet(fleet_of(decode_tp=8))
    larger = build_fleet(fleet_of(tp=8))
    smaller = build_fleet(fleet_of())
    assert fleet.scheduler.num_blocks == smaller.scheduler.num_blocks
    assert fleet.decode.scheduler.num_blocks == larger.scheduler.num_blocks
    shape = StepShape(4, 4_000, ())
    assert fleet.model.mixed_step_ns(shape) == smaller.model.mixed_step_ns(shape)
    assert fleet.decode.model.mixed_step_ns(shape) == larger.model.mixed_step_ns(shape)


def test_equal_decode_tp_is_the_same_fleet() -> None:
    alike = build_fleet(fleet_of(decode_tp=4, prefill_cp=1))
    assert alike.own_decode is None
    assert alike.scheduler == build_fleet(fleet_of()).scheduler


def test_blocks_are_given_for_both_kinds_or_for_each() -> None:
    both = build_fleet(fleet_of(num_blocks=3_000, max_model_len=9_000))
    assert (both.scheduler.num_blocks, both.decode.scheduler.num_blocks) == (3_000, 3_000)
    each = build_fleet(fleet_of(num_blocks=3_000, decode_num_blocks=500, decode_tp=2))
    assert (each.scheduler.num_blocks, each.decode.scheduler.num_blocks) == (3_000, 500)
    assert any(note.startswith("500 KV blocks per decode worker as given") for note in each.notes)


def test_longest_request_fits_into_every_worker() -> None:
    fleet = build_fleet(fleet_of(decode_num_blocks=101))
    lengths = {fleet.scheduler.max_model_len, fleet.decode.scheduler.max_model_len}
    assert lengths == {100 * 64}
    with pytest.raises(CapacityError, match="needs 125 KV blocks, the worker has 100"):
        build_fleet(fleet_of(decode_num_blocks=101, max_model_len=8_000))


def test_context_parallel_ranks_hold_the_tokens_of_all_of_them() -> None:
    alone, fleet = build_fleet(fleet_of()), build_fleet(fleet_of(prefill_cp=4))
    usable = alone.scheduler.num_blocks - 1
    assert fleet.scheduler.num_blocks == 1 + 4 * usable
    assert fleet.decode.scheduler.num_blocks == 1 + usable
    assert fleet.rank is not None
    assert fleet.rank.scheduler.num_blocks == 1 + usable


# ---------------------------------------------------------------------------- hand-offs


@pytest.mark.parametrize(
    ("tp", "decode_tp", "narrower"), [(4, 4, 4), (4, 8, 4), (4, 2, 2), (2, 8, 2), (8, 1, 1)]
)
def test_hand_off_takes_the_time_of_the_side_with_fewer_nics(
    tp: int, decode_tp: int, narrower: int
) -> None:
    """All KV bytes leave over ``tp`` NICs and arrive over ``decode_tp``."""
    request = fleet_of(one_prompt(), num_prefill=8, num_decode=8, tp=tp, decode_tp=decode_tp)
    record = only_record(replace(request, step_model=SlowSteps()))
    num_bytes = NUM_TOKENS * BYTES_PER_TOKEN
    assert record.transfer_bytes == num_bytes
    assert record.reserved_ns is not None
    assert record.transferred_ns is not None
    wire_ns = record.transferred_ns - record.reserved_ns - HANDOFF_SETUP_NS
    assert wire_ns == pytest.approx(float(num_bytes / narrower / PAYLOAD), rel=1e-4)


@given(
    num_tokens=st.integers(1, 40_000),
    more=st.integers(0, 600),
    cp=st.integers(1, 5),
    decode_tp=st.sampled_from([1, 2, 4, 8]),
)
def test_shares_of_context_parallel_ranks_sum_to_the_hand_off_and_never_shrink(
    num_tokens: int, more: int, cp: int, decode_tp: int
) -> None:
    request = fleet_of(prefill_cp=cp, decode_tp=decode_tp)
    whole = KvResharding(
        request.geometry, tp_src=4, tp_dst=decode_tp, dtype_bytes=kv_element_bytes(request)
    )
    pairs, sizes_of = handoff_bytes(request)
    before, sizes = sizes_of(num_tokens), sizes_of(num_tokens + more)
    assert len(pairs) == len(set(pairs)) == cp * len(whole.pairs)
    assert all(a <= b for a, b in zip(before, sizes, strict=True))
    sums: dict[tuple[int, int], int] = dict.fromkeys(whole.pairs, 0)
    for (src, dst), size in zip(pairs, sizes, strict=True):
        assert 0 <= src < 4 * cp
        sums[src % 4, dst] += size
    assert tuple(sums.values()) == whole.pair_bytes(num_tokens + more)


@pytest.mark.parametrize("mode", HandoffMode)
@pytest.mark.parametrize("cp", [1, 2, 3])
def test_context_parallel_prefill_hands_off_as_many_bytes(mode: HandoffMode, cp: int) -> None:
    request = fleet_of(one_prompt(), tp=8, prefill_cp=cp)
    record = only_record(replace(request, handoff=HandoffPolicy(mode=mode)))
    assert record.transfer_bytes == NUM_TOKENS * BYTES_PER_TOKEN


# ---------------------------------------------------------------------------- exchanges


def prefill_ns(exchange: CpExchange, **workers: object) -> int:
    request = fleet_of(
        one_prompt(), **{"tp": 8, "prefill_cp": 2, "cp_exchange": exchange} | workers
    )
    record = only_record(replace(request, step_model=SlowSteps()))
    assert record.prefill_start_ns is not None
    assert record.prefill_end_ns is not None
    return record.prefill_end_ns - record.prefill_start_ns


def test_ranks_of_two_servers_halve_the_prefill_if_the_ring_is_hidden() -> None:
    steps = ContextParallelSteps(SlowSteps(), 2)
    expected_ns = steps.mixed_step_ns(StepShape(0, 0, ((NUM_TOKENS, 0),)))
    assert expected_ns == NUM_TOKENS // 2 * 100_000
    assert prefill_ns(CpExchange.RING_KV) == expected_ns


def test_gathering_keys_and_values_costs_their_time_on_the_wire() -> None:
    """Each of 8 GPUs of a server sends half of its eighth of the KV cache to its twin."""
    sent_bytes = NUM_TOKENS * BYTES_PER_TOKEN // 8 // 2
    delay_ns = prefill_ns(CpExchange.ALL_GATHER_KV) - prefill_ns(CpExchange.RING_KV)
    assert delay_ns == pytest.approx(float(sent_bytes / PAYLOAD), rel=1e-4)


def test_chunks_gather_the_history_again() -> None:
    """In chunks of 2,000 tokens 2,000, 4,000, 6,000 and 8,000 are gathered: 2.5 times as many."""
    sent_bytes = NUM_TOKENS * BYTES_PER_TOKEN // 8 // 2
    chunked = {"max_num_batched_tokens": 2_000}
    delay_ns = prefill_ns(CpExchange.ALL_GATHER_KV, **chunked) - prefill_ns(
        CpExchange.RING_KV, **chunked
    )
    assert delay_ns == pytest.approx(float(sent_bytes * 5 / 2 / PAYLOAD), rel=1e-4)


def test_partial_outputs_and_all_to_alls_cost_their_bytes() -> None:
    """A token has 32 query heads of 128 in each of 32 layers, 4 to a GPU. Pass-Q returns half of
    the partial outputs, with a 4-byte log-sum-exp per head. With Ulysses a GPU sends 2 of its 4
    query heads of each of its tokens, and gets as many outputs back; its only KV head goes there
    whole, as both ranks need it.
    """
    half = NUM_TOKENS // 2
    outputs = half * 32 * 4 * (128 * 2 + 4)  # of every other rank's queries, to each
    ulysses = half * 32 * (2 * 256 + 2 * 256 + 2 * 256)
    ring = prefill_ns(CpExchange.RING_KV)
    assert prefill_ns(CpExchange.RING_Q) - ring == pytest.approx(float(outputs / PAYLOAD), rel=1e-4)
    found = prefill_ns(CpExchange.ULYSSES, tp=4, num_decode=4, num_prefill=2) - prefill_ns(
        CpExchange.RING_KV, tp=4, num_decode=4, num_prefill=2
    )
    assert found == 0  # two ranks of four GPUs are in one server
    ulysses_ns = prefill_ns(CpExchange.ULYSSES) - ring
    assert ulysses_ns == pytest.approx(float(ulysses / PAYLOAD), rel=1e-4)


def test_all_workers_of_the_fleet_without_disaggregation_decode() -> None:
    request = fleet_of(prefill_cp=4, decode_tp=8)
    simulation, network = simulation_on(request, "clos", "spray", is_disaggregated=False)
    records = simulation.run(check=True).records
    assert {record.outcome for record in records} == {Outcome.FINISHED}
    assert network.num_flows == 0


# ---------------------------------------------------------------------------- failures


def with_failure(worker: str, at_ns: int, back_after_ns: int | None = None) -> PlanRequest:
    failure = WorkerFailure(worker=worker, at_ns=at_ns, back_after_ns=back_after_ns)
    return replace(fleet_of(), failures=(failure,))


@pytest.mark.parametrize("worker", ["prefill-0", "prefill-1", "decode-0", "decode-1"])
def test_requests_of_a_dead_worker_start_anew(worker: str) -> None:
    simulation, _ = simulation_on(with_failure(worker, 60 * MS), "clos", "spray")
    records = simulation.run(check=True).records
    assert {record.outcome for record in records} == {Outcome.FINISHED}
    assert sum(record.num_restarts for record in records) > 0


def test_without_a_second_prefill_worker_requests_fail_until_it_is_back() -> None:
    failures = (
        WorkerFailure(worker="prefill-0", at_ns=20 * MS),
        WorkerFailure(worker="prefill-1", at_ns=20 * MS, back_after_ns=20 * MS),
    )
    simulation, _ = simulation_on(replace(fleet_of(), failures=failures), "clos", "spray")
    for record in simulation.run(check=True).records:
        if 20 * MS <= record.arrival_ns < 40 * MS:
            assert record.outcome is Outcome.FAILED, record
        if record.arrival_ns >= 40 * MS:
            assert record.outcome is Outcome.FINISHED, record


def test_dead_context_parallel_worker_takes_all_its_ranks_along() -> None:
    failure = WorkerFailure(worker="prefill-0", at_ns=0)
    request = replace(fleet_of(prefill_cp=2, num_decode=4), failures=(failure,))
    together, _ = simulation_on(request, "clos", "spray", is_disaggregated=False)
    together.run()
    assert [worker.is_lost for worker in together._workers] == [True] * 2 + [False] * 6
