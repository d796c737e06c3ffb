"""The running decode batch as totals, against counting request by request."""

import pytest

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.serving.decode_batch import DecodeBatch
from kvfabric.serving.request import Goal, Request, RequestState

SIZE = 4


def request_of(request_id: int, max_tokens: int = 100) -> Request:
    return Request(request_id, 10, max_tokens, Goal.GENERATE, BlockKeys(request_id, (), 1, 0))


def batch_of(*contexts: int) -> tuple[DecodeBatch, list[Request]]:
    batch = DecodeBatch(SIZE)
    requests = [request_of(i) for i in range(len(contexts))]
    for request, context in zip(requests, contexts, strict=True):
        batch.join(request, context)
    return batch, requests


def test_empty_batch_has_no_size_and_no_context() -> None:
    batch = DecodeBatch(SIZE)
    assert (batch.size, batch.context_tokens) == (0, 0)
    assert batch.growing() == []


def test_join_adds_to_the_totals_and_sets_the_state() -> None:
    batch, requests = batch_of(5, 9)
    assert (batch.size, batch.context_tokens) == (2, 14)
    assert {request.state for request in requests} == {RequestState.DECODING}


def test_join_twice_is_refused() -> None:
    batch, (request,) = batch_of(5)
    with pytest.raises(AssertionError):
        batch.join(request, 5)


def test_iterations_add_one_token_to_every_context() -> None:
    batch, requests = batch_of(5, 9)
    batch.advance(3)
    assert [batch.context(request) for request in requests] == [8, 12]
    assert batch.context_tokens == 20
    batch.check_invariants()


def test_leave_stores_what_was_computed_and_produced() -> None:
    batch, (first, _) = batch_of(5, 9)
    batch.advance(3)
    batch.leave(first)
    assert (first.num_computed, first.num_outputs) == (8, 3)
    assert (batch.size, batch.context_tokens) == (1, 12)
    batch.check_invariants()


def test_request_grows_when_its_blocks_are_full() -> None:
    batch, requests = batch_of(8, 7, 6)
    grown: list[list[int]] = []
    for _ in range(5):
        grown.append(batch.growing())
        batch.advance(1)
    ids = [request.request_id for request in requests]
    assert grown == [ids[:1], ids[1:2], ids[2:], [], ids[:1]]


def test_growing_changes_nothing() -> None:
    batch, requests = batch_of(8, 12)
    assert batch.growing() == batch.growing() == [r.request_id for r in requests]


@pytest.mark.parametrize("num_free", range(12))
def test_iterations_within_counts_block_by_block(num_free: int) -> None:
    contexts = (8, 7, 5, 21)
    batch, _ = batch_of(*contexts)
    num_iterations = batch.iterations_within(num_free)

    def needed(ahead: int) -> int:
        return sum((context + ahead) % SIZE == 0 for context in contexts)

    used = sum(needed(ahead) for ahead in range(num_iterations))
    assert used <= num_free < used + needed(num_iterations)


def test_iterations_to_limit_is_that_of_the_first_to_reach_it() -> None:
    batch = DecodeBatch(SIZE)
    batch.join(request_of(1, max_tokens=9), 5)
    batch.join(request_of(2, max_tokens=4), 5)
    assert batch.iterations_to_limit() == 4
    batch.advance(1)
    assert batch.iterations_to_limit() == 3


def test_limit_of_a_request_that_left_no_longer_counts() -> None:
    batch = DecodeBatch(SIZE)
    short = request_of(2, max_tokens=4)
    batch.join(request_of(1, max_tokens=9), 5)
    batch.join(short, 5)
    batch.leave(short)
    assert batch.iterations_to_limit() == 9


def test_pop_at_limit_returns_those_that_reached_it() -> None:
    batch = DecodeBatch(SIZE)
    short = request_of(2, max_tokens=4)
    batch.join(request_of(1, max_tokens=9), 5)
    batch.join(short, 5)
    batch.advance(3)
    assert batch.pop_at_limit() == []
    batch.advance(1)
    assert batch.pop_at_limit() == [short]
    assert batch.pop_at_limit() == []


def test_outputs_before_a_preemption_count_toward_the_limit() -> None:
    batch = DecodeBatch(SIZE)
    request = request_of(1, max_tokens=6)
    batch.join(request, 5)
    batch.advance(2)
    batch.leave(request)
    batch.advance(7)
    batch.join(request, 12)
    assert batch.iterations_to_limit() == 4


def test_request_that_left_and_came_back_in_one_tick_reaches_its_limit_once() -> None:
    batch, (request,) = batch_of(5)
    batch.leave(request)
    batch.join(request, 5)
    batch.advance(100)
    assert batch.pop_at_limit() == [request]
