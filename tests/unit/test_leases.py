"""Source blocks are held under a lease; what happens when it ends before the hand-off does."""

from dataclasses import replace

import pytest
from clusters import BYTES_PER_TOKEN, GPUS_PER_WORKER, Cluster, ConstantNetwork, build
from clusters import workload_of as workload
from controls import (
    DEADLINE_NS,
    cancelled,
    commands,
    control,
    handed_off,
    incoming,
    record_of,
    started,
    transfers,
)

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.protocol.record import Outcome
from kvfabric.protocol.step import StepResult
from kvfabric.protocol.transfer import KvPiece
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.actions import EndRequest
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Finished,
    Prefilled,
    PrefillStarted,
    ReleaseHeld,
)
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import HandoffMode, OnExpiry
from kvfabric.serving.request import Goal
from kvfabric.serving.scheduler import Scheduler

END_NS = 100 + DEADLINE_NS
BOTH = [(0, Cancel(7)), (1, Cancel(7))]


def half_sent(on_expiry: OnExpiry) -> tuple[Coordinator, list[int]]:
    """Bring request 7 to the end of its prefill with one of two layer groups arrived."""
    coordinator = control(handoff=HandoffMode.LAYER_WISE, num_layer_groups=2, on_expiry=on_expiry)
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    (first,) = transfers(coordinator.on_layers_ready(7, KvPiece(0, 10, 0), 40))
    coordinator.on_transferred(first, 60)
    under_way = transfers(coordinator.on_layers_ready(7, KvPiece(0, 10, 1), 99))
    coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100)
    return coordinator, under_way


def whole_prompt(on_expiry: OnExpiry, *, is_reserved: bool) -> tuple[Coordinator, list[int]]:
    """Bring request 7 to the end of its prefill, with or without decode blocks."""
    coordinator = control(on_expiry=on_expiry)
    handed_off(coordinator)
    return coordinator, transfers(coordinator.on_reserved(7, 150)) if is_reserved else []


def situations(on_expiry: OnExpiry) -> list[tuple[Coordinator, list[int]]]:
    return [
        whole_prompt(on_expiry, is_reserved=False),
        whole_prompt(on_expiry, is_reserved=True),
        half_sent(on_expiry),
    ]


@pytest.mark.parametrize("which", range(3))
def test_expiry_stops_the_wire_and_frees_both_sides(which: int) -> None:
    coordinator, under_way = situations(OnExpiry.FAIL)[which]
    assert coordinator.next_deadline_ns() == END_NS
    assert coordinator.expire(END_NS - 1) == []
    actions = coordinator.expire(END_NS)
    assert cancelled(actions) == under_way
    assert commands(actions) == BOTH
    assert record_of(actions).outcome is Outcome.ABORTED
    assert coordinator.num_expired == 1
    coordinator.check_invariants()


@pytest.mark.parametrize("which", range(3))
def test_expiry_lets_the_decode_worker_recompute(which: int) -> None:
    # https://github.com/aws-samples/aws-do-eks/pull/84: "fail or recompute", never use freed blocks
    coordinator, under_way = situations(OnExpiry.RECOMPUTE)[which]
    actions = coordinator.expire(END_NS)
    assert cancelled(actions) == under_way
    *released, (worker, command) = commands(actions)
    assert released == BOTH  # the reserved blocks go back before the prompt is added anew
    assert worker == 1
    assert isinstance(command, AddRequest)
    assert (command.goal, command.max_tokens) == (Goal.GENERATE, 50)
    assert not any(isinstance(action, EndRequest) for action in actions)
    assert coordinator.next_deadline_ns() is None
    coordinator.check_invariants()


def test_bytes_that_arrive_after_expiry_are_refused() -> None:
    coordinator, (transfer_id,) = half_sent(OnExpiry.RECOMPUTE)
    coordinator.expire(END_NS)
    with pytest.raises(KeyError):
        coordinator.on_transferred(transfer_id, END_NS + 1)


def test_recomputed_request_has_its_first_token_at_the_end_of_its_second_prefill() -> None:
    coordinator, _ = half_sent(OnExpiry.RECOMPUTE)
    coordinator.expire(END_NS)
    assert coordinator.on_worker_event(1, Prefilled(7, 1200, 0), 1300) == []
    record = record_of(coordinator.on_worker_event(1, Finished(7, 5, 0), 1400))
    assert record.outcome is Outcome.FINISHED
    assert (record.prefill_start_ns, record.prefill_end_ns) == (1200, 1300)
    assert (record.reserved_ns, record.transferred_ns, record.first_token_ns) == (1300,) * 3
    assert record.transfer_bytes == 30  # they moved, in vain


def test_lease_begins_at_the_end_of_prefill_also_where_layers_are_streamed() -> None:
    coordinator = control(handoff=HandoffMode.LAYER_WISE)
    coordinator.arrive(incoming(), 0)
    coordinator.on_worker_event(0, PrefillStarted(7, 0), 20)
    coordinator.on_reserved(7, 30)
    assert started(coordinator.on_layers_ready(7, KvPiece(0, 4, 0), 40))
    assert coordinator.next_deadline_ns() is None
    coordinator.on_worker_event(0, Prefilled(7, 20, 0), 100)
    assert coordinator.next_deadline_ns() == END_NS


# ---------------------------------------------------------------------- a pool that is leased out

POOL_TOKENS, PROMPT_TOKENS, MAX_RUNNING, BLOCK = 344_253, 6_127, 64, 16


def test_prefill_pool_bounds_the_hand_offs_in_flight() -> None:
    # https://github.com/sgl-project/sglang-omni/pull/1718: 64 running requests could lease 392,128
    # tokens of a pool of 344,253; at most 56 fit, and the others have to wait
    assert MAX_RUNNING * PROMPT_TOKENS == 392_128
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=POOL_TOKENS // BLOCK + 1,
            block_size=BLOCK,
            max_num_seqs=MAX_RUNNING,
            max_num_batched_tokens=8_192,
            max_model_len=8_192,
        )
    )
    for i in range(MAX_RUNNING):
        command = AddRequest(
            request_id=i,
            num_prompt_tokens=PROMPT_TOKENS,
            max_tokens=1,
            goal=Goal.PREFILL,
            keys=BlockKeys(i, (), 1, 0),
        )
        scheduler.handle(command, 0)
    held = prefilled_until_stuck(scheduler)
    assert len(held) == POOL_TOKENS // PROMPT_TOKENS == 56
    assert scheduler.num_waiting == 8
    assert scheduler.num_running == 0  # nobody is half done and in the way
    scheduler.handle(ReleaseHeld(held[0]), 0)
    scheduler.handle(Cancel(held[1]), 0)  # one acknowledged, one expired
    assert prefilled_until_stuck(scheduler) == [56, 57]
    scheduler.check_invariants()


def prefilled_until_stuck(scheduler: Scheduler) -> list[int]:
    done: list[int] = []
    while scheduler.schedule(0).plan is not None:
        events = scheduler.complete(StepResult(1), 0)
        done += [event.request_id for event in events if isinstance(event, Prefilled)]
    return done


@pytest.mark.parametrize("deadline_ns", [1 << 60, 30_000])
def test_leases_drain_while_decode_is_slow(deadline_ns: int) -> None:
    # prompts of 60 tokens take 15 of 28 blocks: one hand-off at a time fills the prefill worker
    cluster = Cluster(
        num_prefill=1,
        num_decode=1,
        num_blocks=29,
        max_model_len=112,
        max_num_seqs=1,
        handoff_deadline_ns=deadline_ns,
    )
    specs = [
        RequestSpec(request_id=i, arrival_ns=0, num_prompt_tokens=60, num_output_tokens=40)
        for i in range(8)
    ]
    network = ConstantNetwork(latency_ns=20_000)
    simulation = build(replace(cluster), workload(specs), network)
    result = simulation.run(check=True)
    assert len(result.records) == 8
    assert simulation.num_held_blocks == 0
    assert {r.outcome for r in result.records} <= {Outcome.FINISHED, Outcome.ABORTED}
    whole = 60 * BYTES_PER_TOKEN * GPUS_PER_WORKER
    assert all(r.transfer_bytes in {0, whole} for r in result.records)
    if deadline_ns == 1 << 60:
        assert all(r.outcome is Outcome.FINISHED for r in result.records)
