"""Runs of decode iterations that go on while blocks are reserved and first tokens are told."""

import pytest

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.protocol.step import StepResult
from kvfabric.serving.commands import AddRequest, Cancel, FirstToken, KvArrived
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.request import Goal
from kvfabric.serving.scheduler import Scheduler
from kvfabric.serving.step_draft import Reserved

BLOCK, MAX_LEN = 4, 40


def add(scheduler: Scheduler, request_id: int, num_prompt: int, goal: Goal = Goal.DECODE) -> None:
    keys = BlockKeys(request_id, (), 1, 0)
    scheduler.handle(
        AddRequest(request_id, num_prompt, min(20, MAX_LEN - num_prompt), goal, keys), 0
    )


def receive(scheduler: Scheduler, request_id: int) -> None:
    """Let a request get its blocks and its KV cache, and start its first decode step."""
    add(scheduler, request_id, 6)
    assert scheduler.schedule(0).reserved == (Reserved(request_id, 0),)
    scheduler.handle(KvArrived(request_id), 0)
    plan = scheduler.schedule(0).plan
    assert plan is not None
    assert [join.request_id for join in plan.joined] == [request_id]


def decoder(num_usable: int = 20) -> Scheduler:
    """Return a worker whose one request is in its first decode step."""
    config = SchedulerConfig(
        num_blocks=num_usable + 1,
        block_size=BLOCK,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=MAX_LEN,
    )
    scheduler = Scheduler(config)
    receive(scheduler, 1)
    return scheduler


def test_first_step_from_received_kv_may_run_on() -> None:
    assert decoder().run_length() == 20


def test_first_token_is_told_after_one_iteration_and_only_once() -> None:
    scheduler = decoder()
    assert scheduler.tell_first_tokens() == [FirstToken(1)]
    assert scheduler.tell_first_tokens() == []
    assert scheduler.complete(StepResult(3), 0) == []


def test_second_tokens_are_not_counted_before_the_first_are_told() -> None:
    with pytest.raises(AssertionError, match="first tokens are told before"):
        decoder().complete(StepResult(3), 0)


def test_run_reserves_the_blocks_that_single_steps_would() -> None:
    running, stepping = decoder(), decoder()
    running.tell_first_tokens()
    add(running, 2, 9)
    assert running.reserve_in_run(4, 0) == (Reserved(2, 0),)
    for _ in range(2):
        stepping.complete(StepResult(1), 0)
        stepping.schedule(0)
    stepping.complete(StepResult(1), 0)
    add(stepping, 2, 9)
    assert stepping.schedule(0).reserved == (Reserved(2, 0),)
    assert running.kv.tables == stepping.kv.tables
    running.check_invariants()


def test_run_is_no_longer_than_what_a_reservation_leaves_allows() -> None:
    scheduler = decoder(10)
    scheduler.tell_first_tokens()
    assert scheduler.run_length() == 20  # two blocks of its own and five of the eight free ones
    add(scheduler, 2, 6 * BLOCK)
    assert scheduler.reserve_in_run(2, 0) == (Reserved(2, 0),)
    # Four blocks hold 16 tokens: 5 of the prompt were there before, one comes with each iteration.
    assert scheduler.run_length() == 4 * BLOCK - 5


def test_run_goes_on_where_there_are_no_blocks_to_reserve() -> None:
    scheduler = decoder(10)
    scheduler.tell_first_tokens()
    add(scheduler, 2, 9 * BLOCK)
    assert scheduler.reserve_in_run(2, 0) == ()
    assert not scheduler.should_interrupt()
    assert scheduler.run_length() == 20


def test_only_who_waits_for_blocks_leaves_the_batch_as_it_is() -> None:
    scheduler = decoder()
    add(scheduler, 2, 6)
    assert scheduler.may_only_reserve
    add(scheduler, 3, 6, Goal.GENERATE)
    assert not scheduler.may_only_reserve


def test_arrived_kv_changes_the_batch() -> None:
    scheduler = decoder()
    scheduler.tell_first_tokens()
    add(scheduler, 2, 6)
    scheduler.reserve_in_run(2, 0)
    scheduler.handle(KvArrived(2), 0)
    assert not scheduler.may_only_reserve


def test_cancelled_request_changes_the_batch() -> None:
    scheduler = decoder()
    scheduler.handle(Cancel(1), 0)
    assert not scheduler.may_only_reserve
