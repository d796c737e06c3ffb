"""Rules of the vLLM V1 scheduler and its KV cache manager (0.19.0), one test each.

Rules as read in the sources of vLLM (Apache-2.0, https://github.com/vllm-project/vllm, 0.19.0):
``sched`` is vllm/v1/core/sched/scheduler.py, ``kv`` vllm/v1/core/kv_cache_manager.py, ``pool``
vllm/v1/core/block_pool.py. Each test names where its rule is. Blocks hold 4 tokens, a step 16.
Preemption, ends and received KV are in test_vllm_preemption_rules.py, asynchronous scheduling in
test_vllm_async_rules.py.
"""

import pytest
from worker_steps import chunks_of, worker_of

from kvfabric.protocol.step import PrefillChunk
from kvfabric.serving.commands import Finished

# ---------------------------------------------------------------------- the token budget


def test_one_token_budget_covers_decodes_and_prompts_of_a_step() -> None:
    """sched: ``max_num_batched_tokens`` bounds the sum over all requests of a step."""
    worker = worker_of()
    worker.add(1, 3)
    worker.add(2, 5)
    worker.add(3, 30)
    assert chunks_of(worker.step()) == [(1, 3), (2, 5), (3, 8)]
    plan = worker.step()
    assert (plan.num_decodes, chunks_of(plan)) == (2, [(3, 14)])


def test_running_requests_are_scheduled_before_waiting_ones() -> None:
    """sched: first the running list, then the waiting queue with what is left of the budget."""
    worker = worker_of()
    worker.add(1, 4)
    worker.add(2, 40)
    worker.step()
    worker.add(3, 1)
    plan = worker.step()
    assert plan.num_decodes == 1
    assert chunks_of(plan) == [(2, 15)]


def test_long_prompt_is_computed_in_chunks() -> None:
    """sched: chunked prefill is on by default; only the last chunk samples a token."""
    worker = worker_of()
    worker.add(1, 37, 1)
    assert [worker.step().prefill for _ in range(3)] == [
        (PrefillChunk(1, 16, 0, is_last=False),),
        (PrefillChunk(1, 16, 16, is_last=False),),
        (PrefillChunk(1, 5, 32, is_last=True),),
    ]
    assert worker.finished() == {1: Finished(1, 1, 0)}


def test_prompt_of_exactly_the_budget_is_one_chunk() -> None:
    """sched: ``min(tokens left, budget)``; nothing is held back."""
    worker = worker_of()
    worker.add(1, 16)
    assert worker.step().prefill == (PrefillChunk(1, 16, 0, is_last=True),)


def test_at_most_one_prompt_is_computed_in_part() -> None:
    """sched: one budget, first come first served, so only the last admitted can be cut."""
    worker = worker_of(max_num_seqs=4)
    for request_id in range(4):
        worker.add(request_id, 13, 1)
    cut: list[list[int]] = []
    while not worker.scheduler.is_drained:
        cut.append([chunk.request_id for chunk in worker.step().prefill if not chunk.is_last])
    assert cut == [[1], [2], [3], []]


def test_prompt_in_part_is_the_youngest_and_is_preempted_first() -> None:
    """sched: the partial prompt is the last of ``running``, which is who gives way."""
    worker = worker_of(7)
    worker.add(1, 8, 16)
    worker.add(2, 20, 4)  # 2 + 5 blocks: it fits whole when it is admitted
    assert chunks_of(worker.step()) == [(1, 8), (2, 8)]
    plan = worker.step()  # but 1 has grown into a third block
    assert (plan.num_decodes, plan.prefill, plan.left) == (1, (), (2,))


def test_request_decodes_from_the_step_after_its_last_chunk() -> None:
    """sched: a prompt's last chunk and its first decode are never in the same step."""
    worker = worker_of()
    worker.add(1, 4)
    first, second = worker.step(), worker.step()
    assert (first.num_decodes, second.num_decodes, second.context_tokens) == (0, 1, 4)


def test_no_more_than_max_num_seqs_run() -> None:
    """sched: the running list is bounded, prompts in part included."""
    worker = worker_of(max_num_seqs=2)
    for request_id in range(4):
        worker.add(request_id, 2, 2)
    assert chunks_of(worker.step()) == [(0, 2), (1, 2)]
    assert worker.step().prefill == ()  # both places are taken until this step has ended
    assert chunks_of(worker.step()) == [(2, 2), (3, 2)]


def test_arrival_in_a_step_waits_for_the_next() -> None:
    """engine/core.py: new requests are read between steps."""
    worker = worker_of()
    worker.add(1, 4)
    worker.plan()
    worker.add(2, 4)
    worker.complete()
    assert chunks_of(worker.plan()) == [(2, 4)]


# ---------------------------------------------------------------------- the prefix cache


def test_only_full_blocks_are_found_again() -> None:
    """kv: ten tokens fill two blocks of four; the third is not cached."""
    worker = worker_of()
    worker.add(1, 10, 1, hashes=(11, 12, 13))
    worker.step()
    worker.add(2, 16, 1, hashes=(11, 12, 13, 14))
    assert worker.step().prefill == (PrefillChunk(2, 8, 8, is_last=True),)


@pytest.mark.parametrize(("num_tokens", "num_cached"), [(12, 8), (13, 12)])
def test_hit_leaves_a_token_to_compute(num_tokens: int, num_cached: int) -> None:
    """kv: at most ``num_tokens - 1`` may be hit, in whole blocks, for there must be logits."""
    worker = worker_of()
    worker.add(1, 12, 1, hashes=(11, 12, 13))
    worker.step()
    worker.add(2, num_tokens, 1, hashes=(11, 12, 13, 14)[: -(-num_tokens // 4)])
    (chunk,) = worker.step().prefill
    assert (chunk.num_history_tokens, chunk.num_tokens) == (num_cached, num_tokens - num_cached)


def test_hit_tokens_take_no_budget() -> None:
    """sched: the budget counts new tokens only."""
    worker = worker_of()
    worker.add(1, 16, 1, hashes=(11, 12, 13, 14))
    worker.step()
    worker.add(2, 28, 1, hashes=(11, 12, 13, 14, 25, 26, 27))
    assert worker.step().prefill == (PrefillChunk(2, 12, 16, is_last=True),)


def test_blocks_can_be_hit_in_the_step_that_computes_them() -> None:
    """kv: ``allocate_slots`` caches full blocks when they are scheduled, not when they are done."""
    worker = worker_of()
    worker.add(1, 9, 1, hashes=(11, 12, 13))
    worker.add(2, 9, 1, hashes=(11, 12, 23))
    plan = worker.step()
    assert plan.prefill == (
        PrefillChunk(1, 9, 0, is_last=True),
        PrefillChunk(2, 1, 8, is_last=True),
    )


def test_hit_blocks_are_shared_not_copied() -> None:
    """pool: a hit adds a reference; both tables name the same block."""
    worker = worker_of()
    worker.add(1, 9, hashes=(11, 12, 13))
    worker.add(2, 9, hashes=(11, 12, 23))
    worker.plan()
    assert worker.table(1)[:2] == worker.table(2)[:2]
    assert worker.num_used == 4


def test_block_is_evicted_only_when_it_is_handed_out() -> None:
    """pool: a freed block keeps its hash; it can be hit until somebody else gets it."""
    worker = worker_of(5)
    worker.add(1, 8, 1, hashes=(11, 12))
    worker.step()
    assert worker.num_used == 0
    worker.add(2, 12, 1)  # the three blocks that were never used
    worker.step()
    worker.add(3, 9, 1, hashes=(11, 12, 13))
    assert worker.step().prefill == (PrefillChunk(3, 1, 8, is_last=True),)


def test_free_blocks_are_handed_out_least_recently_freed_first() -> None:
    """pool: the free list is a queue."""
    worker = worker_of(6, max_num_seqs=2)
    worker.add(1, 8, 1, hashes=(11, 12))
    worker.step()
    worker.add(2, 8, 1, hashes=(21, 22))
    worker.step()
    worker.add(3, 16, 1)  # two blocks never used, then the two that request 1 freed
    worker.step()
    worker.add(4, 9, 1, hashes=(21, 22, 23))
    worker.add(5, 7, 1, hashes=(11, 12))
    assert [chunk.num_history_tokens for chunk in worker.step().prefill] == [8, 0]


def test_tail_of_a_request_is_evicted_before_its_head() -> None:
    """kv: blocks are freed in reverse order, so that the prefix outlives what follows it."""
    worker = worker_of(5)
    worker.add(1, 16, 1, hashes=(11, 12, 13, 14))
    worker.step()
    worker.add(2, 12, 1)  # the block never used and two of the four cached ones
    worker.step()
    worker.add(3, 16, 1, hashes=(11, 12, 13, 14))
    assert worker.step().prefill == (PrefillChunk(3, 8, 8, is_last=True),)


def test_hit_moves_a_block_to_the_end_of_the_free_list() -> None:
    """pool: a hit takes a block out of the queue; freed again, it is the youngest."""
    worker = worker_of(4, max_num_seqs=2)
    worker.add(1, 8, 1, hashes=(11, 12))
    worker.step()
    worker.add(2, 8, 1, hashes=(21, 22))
    worker.step()
    worker.add(3, 7, 1, hashes=(11, 12))  # hits block 11
    worker.step()
    worker.add(4, 12, 1)  # takes 22, 21 and the block that stood after 11
    worker.step()
    worker.add(5, 5, 1, hashes=(11, 52))
    assert worker.step().prefill[0].num_history_tokens == 4


# ---------------------------------------------------------------------- blocks and admission


def test_block_zero_is_the_null_block() -> None:
    """pool: of the 2,588 blocks that the RTX 4090 run logged, 2,587 hold tokens."""
    worker = worker_of(2587, block_size=16, budget=50_000)
    worker.add(1, 2587 * 16 - 1, 1)
    worker.plan()
    assert sorted(worker.table(1)) == list(range(1, 2588))


def test_block_tables_only_grow_at_their_end() -> None:
    """kv: a step may still read what a table named before."""
    worker = worker_of()
    worker.add(1, 20, 16, hashes=(11, 12, 13, 14, 15))
    worker.plan()
    before = worker.table(1)
    while True:
        worker.complete()
        if worker.decide().plan is None:
            break
        table = worker.table(1)
        assert table[: len(before)] == before
        before = table
    assert len(before) == 9


def test_chunk_takes_blocks_for_its_own_tokens_only() -> None:
    """kv: admission checks the whole prompt, ``allocate_slots`` takes blocks chunk by chunk."""
    worker = worker_of()
    worker.add(1, 37)
    worker.step()
    assert worker.num_used == 4
    worker.step()
    assert worker.num_used == 8


def test_waiting_request_is_admitted_only_if_all_its_tokens_fit() -> None:
    """config/scheduler.py: ``scheduler_reserve_full_isl``, True by default."""
    worker = worker_of(10)
    worker.add(1, 20)
    worker.add(2, 24)  # 6 blocks where 5 are free, though its first chunk would fit
    worker.step()
    assert chunks_of(worker.step()) == [(1, 4)]


def test_last_free_block_may_be_taken() -> None:
    """kv: 0.19 has no watermark of blocks that are kept free."""
    worker = worker_of(10)
    worker.add(1, 8)
    worker.add(2, 32)  # exactly the 8 blocks that are left
    assert chunks_of(worker.step()) == [(1, 8), (2, 8)]


def test_hit_blocks_in_the_free_list_count_as_needed() -> None:
    """kv: ``can_fit_full_sequence`` adds hit blocks that nobody holds to the new ones."""
    worker = worker_of(6)
    worker.add(1, 12, 1, hashes=(11, 12, 13))
    worker.step()
    worker.add(2, 12, 4)
    worker.step()  # three blocks held, three cached and free
    worker.add(3, 13, 1, hashes=(11, 12, 13, 14))  # one new block and three to revive
    assert chunks_of(worker.step()) == []
    worker.drain()
    assert set(worker.finished()) == {1, 2, 3}


def test_hit_blocks_in_use_cost_nothing() -> None:
    """kv: blocks that somebody holds are shared, so only the rest has to fit."""
    worker = worker_of(5)
    worker.add(1, 13, 4, hashes=(11, 12, 13, 14))
    worker.step()  # one block is free
    worker.add(2, 13, 1, hashes=(11, 12, 13, 24))
    assert chunks_of(worker.step()) == [(2, 1)]


def test_nobody_overtakes_a_request_that_does_not_fit() -> None:
    """sched: first come first served; the loop over the waiting queue stops at its head."""
    worker = worker_of(10)
    worker.add(1, 20)
    worker.add(2, 24)
    worker.add(3, 1)
    worker.step()
    assert chunks_of(worker.step()) == [(1, 4)]
    assert worker.scheduler.num_waiting == 2
