"""One worker's decisions, step by step."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.errors import CapacityError, ConfigError
from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.protocol.step import PrefillChunk, StepPlan, StepResult
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Cancelled,
    Finished,
    FirstToken,
    KvArrived,
    Prefilled,
    ReleaseHeld,
    WorkerEvent,
)
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.request import Goal
from kvfabric.serving.scheduler import Decision, Scheduler
from kvfabric.serving.step_draft import Reserved


@dataclass
class Worker:
    """A scheduler with a hand-driven executor: one step per call, outputs end by token limit."""

    scheduler: Scheduler
    now_ns: int = 0
    plan: StepPlan | None = None
    events: list[WorkerEvent] = field(default_factory=list[WorkerEvent])

    def add(
        self,
        request_id: int,
        num_prompt_tokens: int,
        max_tokens: int = 8,
        goal: Goal = Goal.GENERATE,
        *hashes: int,
    ) -> None:
        keys = BlockKeys(request_id, hashes, 1, len(hashes))
        self.scheduler.handle(
            AddRequest(
                request_id=request_id,
                num_prompt_tokens=num_prompt_tokens,
                max_tokens=max_tokens,
                goal=goal,
                keys=keys,
            ),
            self.now_ns,
        )

    def begin(self) -> Decision:
        decision = self.scheduler.schedule(self.now_ns)
        self.plan = decision.plan
        self.scheduler.check_invariants()
        return decision

    def end(self, num_iterations: int = 1, finished: tuple[int, ...] = ()) -> list[WorkerEvent]:
        self.now_ns += 10
        events = self.scheduler.complete(StepResult(num_iterations, finished), self.now_ns)
        self.events += events
        self.scheduler.check_invariants()
        return events

    def step(self) -> StepPlan:
        plan = self.begin().plan
        assert plan is not None
        self.end()
        return plan

    def drain(self, max_steps: int = 10_000) -> int:
        """Run single steps until nothing is left; return how many."""
        for num_steps in range(max_steps):
            if self.begin().plan is None:
                return num_steps
            self.end()
        raise AssertionError("the worker does not come to an end")


def worker_of(
    num_usable: int = 20,
    *,
    block_size: int = 4,
    max_num_seqs: int = 4,
    budget: int = 16,
    max_model_len: int = 40,
) -> Worker:
    config = SchedulerConfig(
        num_blocks=num_usable + 1,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
    )
    return Worker(Scheduler(config))


def chunks_of(plan: StepPlan) -> list[tuple[int, int]]:
    return [(chunk.request_id, chunk.num_tokens) for chunk in plan.prefill]


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "name", ["block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"]
)
def test_setting_of_zero_is_refused_by_name(name: str) -> None:
    plain = SchedulerConfig(
        num_blocks=9, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16
    )
    changes: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        replace(plain, **changes)


def test_budget_below_the_number_of_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens 3 is below max_num_seqs 4"):
        worker_of(budget=3)


def test_pool_too_small_for_one_request_is_refused_before_anything_runs() -> None:
    # https://github.com/inference-sim/inference-sim/issues/297: it must say so, not run forever
    with pytest.raises(CapacityError, match="needs 192 KV blocks, the worker has 100"):
        worker_of(100, max_model_len=768)


def test_model_length_beyond_the_pool_is_refused() -> None:
    # https://github.com/RBLN-SW/vllm-rbln/issues/957: 12 usable blocks of 8,192 hold 98,304 tokens;
    # a prompt of 100,000 waited forever and blocked everyone behind it
    with pytest.raises(CapacityError, match="106496 needs 13 KV blocks, the worker has 12"):
        worker_of(12, block_size=8192, max_model_len=106_496)


# ---------------------------------------------------------------------- admission


def test_idle_worker_has_no_step() -> None:
    worker = worker_of()
    assert worker.begin().plan is None
    assert worker.scheduler.is_drained


def test_prompt_runs_whole_when_it_fits_the_budget() -> None:
    worker = worker_of()
    worker.add(1, 10)
    assert worker.step().prefill == (PrefillChunk(1, 10, 0, is_last=True),)


def test_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    worker = worker_of()
    worker.add(1, 37, 3)
    plans = [worker.step() for _ in range(3)]
    assert [chunks_of(plan) for plan in plans] == [[(1, 16)], [(1, 16)], [(1, 5)]]
    assert [plan.prefill[0].is_last for plan in plans] == [False, False, True]


def test_budget_is_shared_in_order_of_arrival() -> None:
    worker = worker_of()
    for request_id in (1, 2, 3):
        worker.add(request_id, 7)
    assert chunks_of(worker.step()) == [(1, 7), (2, 7), (3, 2)]


def test_decodes_come_first_in_the_budget() -> None:
    worker = worker_of()
    worker.add(1, 4)
    worker.step()
    worker.add(2, 30)
    plan = worker.step()
    assert plan.num_decodes == 1
    assert chunks_of(plan) == [(2, 15)]


def test_no_more_requests_run_than_max_num_seqs() -> None:
    worker = worker_of(max_num_seqs=2)
    for request_id in range(5):
        worker.add(request_id, 2)
    worker.step()
    assert (worker.scheduler.num_running, worker.scheduler.num_waiting) == (2, 3)


def test_prompt_is_admitted_only_when_all_of_it_fits() -> None:
    worker = worker_of(10)
    worker.add(1, 20)  # 5 of 10 blocks
    worker.add(2, 24)  # 6 blocks: one too many, though its first chunk would fit
    worker.step()
    assert chunks_of(worker.step()) == [(1, 4)]
    assert worker.scheduler.num_waiting == 1


def test_small_request_waits_behind_one_that_does_not_fit() -> None:
    # https://github.com/vllm-project/vllm/pull/36390: first come first served, as documented
    worker = worker_of(10)
    worker.add(1, 20)
    worker.add(2, 24)
    worker.add(3, 1)
    worker.step()
    worker.step()
    assert worker.scheduler.num_waiting == 2


def test_huge_request_is_not_starved_by_small_ones() -> None:
    # https://github.com/vllm-project/vllm/pull/36390: the wait of the huge one is bounded
    worker = worker_of(10, max_num_seqs=3)
    worker.add(0, 4, 8)
    worker.step()
    worker.add(1, 32, 8)
    for request_id in range(2, 60):
        worker.add(request_id, 4, 8)
    worker.drain()
    order = [event.request_id for event in worker.events if isinstance(event, Prefilled)]
    assert order[:2] == [0, 1]


def test_hit_shortens_the_first_chunk() -> None:
    worker = worker_of()
    worker.add(1, 12, 1, Goal.GENERATE, 11, 12, 13)
    worker.step()
    worker.add(2, 14, 1, Goal.GENERATE, 11, 12, 13)
    assert worker.step().prefill == (PrefillChunk(2, 2, 12, is_last=True),)
    prefilled = [event for event in worker.events if isinstance(event, Prefilled)]
    assert [event.num_cached_tokens for event in prefilled] == [0, 12]


def test_fully_cached_prompt_still_computes_a_token() -> None:
    # https://github.com/vllm-project/vllm/pull/11186
    worker = worker_of()
    worker.add(1, 12, 1, Goal.GENERATE, 11, 12, 13)
    worker.step()
    worker.add(2, 12, 1, Goal.GENERATE, 11, 12, 13)
    assert worker.step().prefill == (PrefillChunk(2, 4, 8, is_last=True),)


# ---------------------------------------------------------------------- decoding


def test_last_chunk_gives_the_first_token() -> None:
    worker = worker_of()
    worker.add(1, 4, 1)
    worker.begin()
    assert worker.end() == [Prefilled(1, 0, 0), Finished(1, 1, 0)]
    assert worker.scheduler.is_drained


def test_request_ends_at_its_token_limit() -> None:
    worker = worker_of()
    worker.add(1, 4, 3)
    assert worker.drain() == 3
    assert worker.events[-1] == Finished(1, 3, 0)


def test_request_ends_when_its_output_does() -> None:
    worker = worker_of()
    worker.add(1, 4, 30)
    worker.step()
    worker.begin()
    assert worker.end(finished=(1,)) == [Finished(1, 2, 0)]
    assert worker.scheduler.kv.pool.num_used == 0


def test_undisturbed_batch_may_run_until_the_first_limit() -> None:
    worker = worker_of()
    worker.add(1, 4, 12)
    worker.add(2, 4, 7)
    worker.step()
    worker.begin()
    assert worker.scheduler.run_length() == 6
    assert Finished(2, 7, 0) in worker.end(6)


def test_run_is_no_longer_than_the_free_blocks_allow() -> None:
    worker = worker_of(5, max_model_len=20)
    worker.add(1, 4, 16)
    worker.add(2, 4, 16)
    worker.step()  # two of five blocks; both need their next in the coming iteration
    worker.begin()
    assert worker.scheduler.run_length() == 4
    worker.end(4)


def test_more_iterations_than_planned_are_refused() -> None:
    worker = worker_of()
    worker.add(1, 4, 3)
    worker.step()
    worker.begin()
    with pytest.raises(AssertionError, match="more than was planned"):
        worker.end(3)


def test_third_plan_before_the_first_is_complete_is_refused() -> None:
    worker = worker_of()
    worker.add(1, 4)
    worker.begin()
    worker.begin()
    with pytest.raises(AssertionError, match="two steps are out"):
        worker.begin()


def test_request_id_twice_is_refused() -> None:
    worker = worker_of()
    worker.add(1, 4)
    with pytest.raises(AssertionError, match="unique"):
        worker.add(1, 4)


# ---------------------------------------------------------------------- KV from elsewhere


def fetching(worker: Worker, *, prompt: int = 10, external: int = 8, hashes: int = 2) -> None:
    command = AddRequest(
        request_id=1,
        num_prompt_tokens=prompt,
        max_tokens=2,
        goal=Goal.GENERATE,
        keys=BlockKeys(1, tuple(range(50, 50 + hashes)), 1, hashes),
        num_external_tokens=external,
    )
    worker.scheduler.handle(command, 0)


def test_prompt_with_a_fetched_prefix_reserves_whole_and_waits() -> None:
    worker = worker_of()
    fetching(worker)
    decision = worker.begin()
    assert (decision.plan, decision.reserved) == (None, (Reserved(1, 0),))
    assert worker.scheduler.kv.pool.num_used == 3


def test_only_what_follows_a_fetched_prefix_is_computed() -> None:
    worker = worker_of()
    fetching(worker)
    worker.begin()
    worker.scheduler.handle(KvArrived(1), 0)
    plan = worker.step()
    assert [(c.num_tokens, c.num_history_tokens) for c in plan.prefill] == [(2, 8)]
    assert worker.events == [Prefilled(1, 0, 8)]


def test_fetched_prefix_can_be_hit_by_others() -> None:
    worker = worker_of()
    fetching(worker)
    worker.begin()
    worker.scheduler.handle(KvArrived(1), 0)
    worker.step()
    worker.add(2, 10, 2, Goal.GENERATE, 50, 51)
    assert chunks_of(worker.step()) == [(2, 2)]


def test_prefix_whose_step_was_cancelled_is_not_findable() -> None:
    # a step that waits for its prefix ends only when that is there; this one never does
    worker = worker_of()
    fetching(worker)
    worker.begin()
    worker.scheduler.handle(KvArrived(1), 0)
    worker.begin()
    worker.scheduler.handle(Cancel(1), 0)
    worker.end()
    worker.add(2, 10, 2, Goal.GENERATE, 50, 51)
    assert chunks_of(worker.step()) == [(2, 10)]


def test_longer_hit_than_what_was_fetched_is_used() -> None:
    worker = worker_of()
    worker.add(2, 13, 1, Goal.GENERATE, 50, 51, 52)
    worker.step()
    fetching(worker, prompt=13, external=4, hashes=3)
    assert worker.begin().reserved == (Reserved(1, 12),)
    worker.scheduler.handle(KvArrived(1), 0)
    assert chunks_of(worker.step()) == [(1, 1)]


def test_cancelled_while_its_prefix_is_on_its_way_leaves_no_block() -> None:
    worker = worker_of()
    fetching(worker)
    worker.begin()
    assert worker.scheduler.handle(Cancel(1), 0) == [Cancelled(1)]
    assert worker.scheduler.kv.pool.num_used == 0


# ---------------------------------------------------------------------- preemption


def crowded() -> Worker:
    """Return a worker whose two requests outgrow its five blocks in the next step."""
    worker = worker_of(5, max_model_len=20)
    worker.add(1, 8, 12)
    worker.add(2, 8, 12)
    worker.step()  # four blocks held, both full
    return worker


def test_youngest_is_preempted_when_blocks_run_out() -> None:
    worker = crowded()
    plan = worker.step()
    assert (plan.num_decodes, plan.left) == (1, (2,))
    assert worker.scheduler.num_preemptions == 1
    assert worker.scheduler.num_waiting == 1


def test_nothing_is_admitted_in_a_step_that_preempted() -> None:
    # https://github.com/EricLBuehler/mistral.rs/pull/2043
    worker = crowded()
    worker.add(3, 1, 1)  # would fit into the blocks the preemption gives back
    plan = worker.begin().plan
    assert plan is not None
    assert plan.prefill == ()
    assert worker.scheduler.run_length() == 1


def test_received_request_does_not_join_a_step_that_preempted() -> None:
    worker = worker_of(5, max_model_len=20)
    for request_id, num_tokens in ((1, 8), (2, 8), (3, 4)):
        worker.add(request_id, num_tokens, 8, Goal.DECODE)
    worker.begin()  # all five blocks are reserved
    for request_id in (1, 2):
        worker.scheduler.handle(KvArrived(request_id), 0)
    worker.step()
    worker.scheduler.handle(KvArrived(3), worker.now_ns)
    plan = worker.step()  # 1 and 2 need a block each: 2 is preempted
    assert (plan.joined, plan.num_decodes, plan.left) == ((), 1, (2,))
    assert [join.request_id for join in worker.step().joined] == [3]


def test_preempted_request_goes_before_those_that_wait() -> None:
    worker = crowded()
    worker.add(3, 1, 1)
    worker.drain()
    ended = [event.request_id for event in worker.events if isinstance(event, Finished)]
    assert ended.index(2) < ended.index(3) or ended[0] == 1
    started = [event.request_id for event in worker.events if isinstance(event, Prefilled)]
    assert started == [1, 2, 3]


def test_preempted_request_hits_its_own_prefix_and_keeps_its_outputs() -> None:
    worker = crowded()
    while True:
        plan = worker.step()
        if plan.prefill:
            break
    (chunk,) = plan.prefill
    assert chunk.request_id == 2
    assert chunk.num_history_tokens + chunk.num_tokens == 9  # 8 of the prompt, 1 produced
    worker.drain()
    assert Finished(2, 12, 1) in worker.events


def test_crowd_of_growing_requests_comes_to_an_end() -> None:
    # livelock: requests that preempt each other must still make progress
    worker = worker_of(10, max_num_seqs=8, max_model_len=40)
    for request_id in range(30):
        worker.add(request_id, 4, 36)
    worker.drain()
    assert worker.scheduler.num_preemptions > 0
    ended = sorted(e.request_id for e in worker.events if isinstance(e, Finished))
    assert ended == list(range(30))
    assert worker.scheduler.kv.pool.num_used == 0


def test_lone_request_of_the_longest_length_fits_without_preemption() -> None:
    worker = worker_of(10, max_model_len=40)
    worker.add(1, 1, 39)
    worker.drain()
    assert worker.events[-1] == Finished(1, 39, 0)


# ---------------------------------------------------------------------- hand-off


def test_prefill_only_request_holds_its_blocks_until_released() -> None:
    worker = worker_of()
    worker.add(1, 10, 8, Goal.PREFILL)
    worker.step()
    assert worker.begin().plan is None
    assert worker.scheduler.kv.pool.num_used == 3
    worker.scheduler.handle(ReleaseHeld(1), worker.now_ns)
    assert worker.scheduler.kv.pool.num_used == 0
    assert worker.scheduler.is_drained


def test_release_of_a_request_that_holds_nothing_is_refused() -> None:
    worker = worker_of()
    worker.add(1, 10)
    with pytest.raises(AssertionError, match="holds nothing"):
        worker.scheduler.handle(ReleaseHeld(1), 0)


def test_decode_blocks_are_reserved_for_the_whole_prompt_before_bytes_arrive() -> None:
    worker = worker_of()
    worker.add(1, 10, 8, Goal.DECODE)
    decision = worker.begin()
    assert (decision.plan, decision.reserved) == (None, (Reserved(1, 0),))
    assert worker.scheduler.kv.pool.num_used == 3


def test_reservation_waits_for_free_blocks() -> None:
    worker = worker_of(10)
    worker.add(1, 32, 8, Goal.DECODE)
    worker.add(2, 12, 8, Goal.DECODE)
    assert worker.begin().reserved == (Reserved(1, 0),)
    assert worker.scheduler.num_waiting == 1


def test_block_holder_is_not_stuck_behind_one_that_holds_nothing() -> None:
    # https://github.com/vllm-project/vllm/pull/57841
    worker = worker_of(10)
    worker.add(1, 32, 1, Goal.DECODE)
    worker.begin()
    worker.add(2, 32, 1, Goal.DECODE)
    worker.scheduler.handle(KvArrived(1), 0)
    assert worker.step().num_decodes == 1
    assert worker.begin().reserved == (Reserved(2, 0),)


def test_received_request_decodes_without_computing_its_prompt_again() -> None:
    # https://github.com/vllm-project/vllm/issues/21037: a decode worker that repeats the prefill
    worker = worker_of()
    worker.add(1, 10, 3, Goal.DECODE)
    worker.begin()
    worker.scheduler.handle(KvArrived(1), 0)
    plan = worker.step()
    assert (plan.prefill, plan.num_decodes) == ((), 1)
    assert worker.events == [FirstToken(1)]


def test_kv_for_a_request_without_blocks_is_refused() -> None:
    worker = worker_of()
    worker.add(1, 10, 8, Goal.DECODE)
    with pytest.raises(AssertionError, match="without blocks"):
        worker.scheduler.handle(KvArrived(1), 0)


# ---------------------------------------------------------------------- cancelling


def test_cancel_of_a_waiting_request_takes_effect_at_once() -> None:
    worker = worker_of()
    worker.add(1, 10)
    assert worker.scheduler.handle(Cancel(1), 0) == [Cancelled(1)]
    assert worker.begin().plan is None


def test_cancel_of_an_unknown_request_is_ignored() -> None:
    assert worker_of().scheduler.handle(Cancel(7), 0) == []


def test_cancel_in_a_step_keeps_the_blocks_until_the_step_ends() -> None:
    # INV-5: https://github.com/aws-samples/aws-do-eks/pull/84 read freed blocks and answered 200
    worker = worker_of()
    worker.add(1, 10)
    worker.begin()
    table = list(worker.scheduler.kv.tables[1])
    assert worker.scheduler.handle(Cancel(1), 0) == []
    assert worker.scheduler.kv.tables[1] == table
    assert worker.end() == [Prefilled(1, 0, 0), Cancelled(1)]
    assert worker.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("has_arrived", [False, True])
def test_cancel_while_kv_is_on_its_way_gives_the_blocks_back(*, has_arrived: bool) -> None:
    # https://github.com/vllm-project/vllm/issues/46283: abort in WAITING_FOR_REMOTE_KVS
    worker = worker_of()
    worker.add(1, 10, 8, Goal.DECODE)
    worker.begin()
    if has_arrived:
        worker.scheduler.handle(KvArrived(1), 0)
    assert worker.scheduler.handle(Cancel(1), 0) == [Cancelled(1)]
    assert worker.scheduler.kv.pool.num_used == 0
    assert worker.scheduler.is_drained


def test_cancel_at_the_end_of_prefill_gives_the_held_blocks_back() -> None:
    # https://github.com/vllm-project/vllm/pull/29906: a timeout equal to the end of prefill
    worker = worker_of()
    worker.add(1, 10, 8, Goal.PREFILL)
    worker.begin()
    worker.scheduler.handle(Cancel(1), 0)
    assert worker.end() == [Prefilled(1, 0, 0), Cancelled(1)]
    assert worker.scheduler.kv.pool.num_used == 0


def test_cancel_of_a_preempted_request_leaves_nothing_waiting() -> None:
    worker = crowded()
    worker.step()
    worker.scheduler.handle(Cancel(2), worker.now_ns)
    worker.drain()
    assert worker.scheduler.kv.pool.num_used == 0
    assert not any(isinstance(e, Finished) and e.request_id == 2 for e in worker.events)


def test_cancel_of_a_prompt_in_part_leaves_the_rest_uncomputed() -> None:
    worker = worker_of()
    worker.add(1, 37, 3)
    worker.step()
    worker.scheduler.handle(Cancel(1), worker.now_ns)
    assert worker.begin().plan is None
    assert worker.scheduler.signal(0).num_queued_tokens == 0


# ---------------------------------------------------------------------- signals


def test_signal_counts_prompt_tokens_that_wait() -> None:
    worker = worker_of()
    worker.add(1, 37, 3)
    worker.add(2, 5)
    assert worker.scheduler.signal(9).num_queued_tokens == 42
    worker.step()
    signal = worker.scheduler.signal(9)
    assert (signal.as_of_ns, signal.num_queued_tokens, signal.num_requests) == (9, 26, 2)
    assert signal.num_prompt_tokens == 42


def test_run_is_interrupted_by_an_arrival_that_may_join() -> None:
    worker = worker_of()
    worker.add(1, 4, 12)
    worker.step()
    worker.begin()
    assert not worker.scheduler.should_interrupt()
    worker.add(2, 4)
    assert worker.scheduler.should_interrupt()


def test_run_is_not_interrupted_by_an_arrival_without_a_place() -> None:
    worker = worker_of(max_num_seqs=1)
    worker.add(1, 4, 12)
    worker.step()
    worker.begin()
    worker.add(2, 4)
    assert not worker.scheduler.should_interrupt()


# ---------------------------------------------------------------------- laws of single steps


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw ``(step of arrival, prompt tokens, output tokens)``."""
    size = draw(st.integers(1, 14))
    return sorted(
        (draw(st.integers(0, 12)), draw(st.integers(1, 24)), draw(st.integers(1, 16)))
        for _ in range(size)
    )


BUDGET, PLACES, POOL = 16, 3, 12


def check_plan(worker: Worker, plan: StepPlan) -> None:
    """INV-6: budget, places, nobody twice, at most one prompt in part."""
    ids = [chunk.request_id for chunk in plan.prefill]
    assert len(set(ids)) == len(ids)
    assert plan.num_decodes + sum(chunk.num_tokens for chunk in plan.prefill) <= BUDGET
    assert plan.num_decodes + len(ids) <= worker.scheduler.num_running <= PLACES
    assert sum(not chunk.is_last for chunk in plan.prefill) <= 1


def has_left_work(worker: Worker, plan: StepPlan, head_tokens: int) -> bool:
    """Return whether the first in the queue could have been part of this step, and is not."""
    scheduler = worker.scheduler
    used = plan.num_decodes + sum(chunk.num_tokens for chunk in plan.prefill)
    return used < BUDGET and scheduler.num_running < PLACES and scheduler.kv.fits(head_tokens, [])


@given(streams())
def test_plans_keep_their_limits_and_leave_no_work_that_fits(
    stream: list[tuple[int, int, int]],
) -> None:
    """INV-6 and INV-8; a worker without a step has nothing to do."""
    worker = worker_of(POOL, max_num_seqs=PLACES, budget=BUDGET, max_model_len=40)
    todo = [(step, i, prompt, output) for i, (step, prompt, output) in enumerate(stream)]
    unseen: dict[int, int] = {}  # prompt tokens of those never admitted, in order of arrival
    step = 0
    while todo or not worker.scheduler.is_drained:
        while todo and todo[0][0] <= step:
            _, request_id, prompt, output = todo.pop(0)
            worker.add(request_id, prompt, output)
            unseen[request_id] = prompt
        before = worker.scheduler.num_preemptions
        plan = worker.begin().plan
        step += 1
        if plan is None:
            assert worker.scheduler.is_drained
            continue
        check_plan(worker, plan)
        for chunk in plan.prefill:
            unseen.pop(chunk.request_id, None)
        is_calm = worker.scheduler.num_preemptions == before
        if is_calm and worker.scheduler.num_waiting == len(unseen) > 0:
            assert not has_left_work(worker, plan, next(iter(unseen.values())))
        worker.end()


@given(streams(), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 13)), max_size=6))
def test_tables_keep_their_blocks_while_a_step_is_out(
    stream: list[tuple[int, int, int]], cancels: list[tuple[int, int]]
) -> None:
    """INV-5: whatever is said during a step, what the step reads and writes stays in place."""
    worker = worker_of(POOL, max_num_seqs=PLACES, budget=BUDGET, max_model_len=40)
    todo = [(step, i, prompt, output) for i, (step, prompt, output) in enumerate(stream)]
    cancel_at: dict[int, list[int]] = {}
    for step, request_id in cancels:
        cancel_at.setdefault(step, []).append(request_id)
    step = 0
    while todo or not worker.scheduler.is_drained:
        plan = worker.begin().plan
        tables = {i: list(table) for i, table in worker.scheduler.kv.tables.items()}
        while todo and todo[0][0] <= step:
            _, request_id, prompt, output = todo.pop(0)
            worker.add(request_id, prompt, output)
        for request_id in cancel_at.get(step, []):
            worker.scheduler.handle(Cancel(request_id), worker.now_ns)
        step += 1
        if plan is not None:
            assert worker.scheduler.kv.tables == tables
            worker.end()
    assert worker.scheduler.kv.pool.num_used == 0
