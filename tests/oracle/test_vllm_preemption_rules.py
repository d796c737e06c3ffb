"""Rules of vLLM V1 (0.19.0) for preemption, the end of a request and received KV, one test each.

Rules as read in the sources of vLLM (Apache-2.0, https://github.com/vllm-project/vllm, 0.19.0):
``sched`` is vllm/v1/core/sched/scheduler.py. Blocks hold 4 tokens, a step 16.
"""

from worker_steps import SteppedWorker, chunks_of, worker_of

from kvfabric.protocol.step import PrefillChunk
from kvfabric.serving.commands import Finished, KvArrived, Prefilled
from kvfabric.serving.request import Goal
from kvfabric.serving.step_draft import Reserved

# ---------------------------------------------------------------------- preemption


def crowded(first_limit: int = 6, second_limit: int = 12) -> SteppedWorker:
    """Return a worker whose two requests fill all six blocks; each wants a seventh."""
    worker = worker_of(6)
    worker.add(1, 8, first_limit)
    worker.add(2, 8, second_limit)
    for _ in range(5):
        worker.step()
    assert worker.num_used == 6
    return worker


def test_youngest_running_request_is_preempted() -> None:
    """sched: ``self.running.pop()`` gives way, however much it has computed."""
    worker = crowded()
    plan = worker.step()
    assert (plan.num_decodes, plan.left) == (1, (2,))


def test_preempted_request_gives_all_blocks_back() -> None:
    """sched: preemption is by recompute, ``num_computed_tokens = 0``."""
    worker = crowded()
    worker.plan()
    assert 2 not in worker.scheduler.kv.tables
    assert worker.num_used == 4


def test_preempted_request_hits_its_own_prefix() -> None:
    """sched: its blocks stay cached, freed tail first. It had 12 tokens and 5 outputs; the older
    request took its last block, so 8 are hit and 13 - 8 computed."""
    worker = crowded()
    worker.step()
    assert worker.step().prefill == (PrefillChunk(2, 5, 8, is_last=True),)


def test_preempted_request_keeps_its_outputs() -> None:
    """sched: what was generated is recomputed as if it were prompt, never sampled again."""
    worker = crowded()
    worker.drain()
    assert worker.finished()[2] == Finished(2, 12, 1)
    assert [event for event in worker.events if isinstance(event, Prefilled)] == [
        Prefilled(1, 0, 0),
        Prefilled(2, 0, 0),
    ]


def test_preempted_request_waits_until_prompt_and_outputs_fit() -> None:
    """sched: the full length counts. Its 13 tokens need 4 blocks where 2 are free; its prompt of 8
    alone would fit."""
    worker = crowded(first_limit=8)
    worker.step()
    assert worker.scheduler.kv.num_free == 2
    assert worker.step().prefill == ()
    assert worker.step().prefill == ()  # request 1 ends in this step
    assert chunks_of(worker.step()) == [(2, 5)]


def test_preempted_request_goes_before_all_that_wait() -> None:
    """sched: ``waiting.prepend_request``."""
    worker = crowded()
    worker.add(3, 1, 1)
    worker.step()
    assert [request_id for request_id, _ in chunks_of(worker.step())] == [2, 3]


def test_nothing_is_admitted_in_a_step_that_preempted() -> None:
    """sched: the waiting queue is looked at only if nobody was preempted."""
    worker = crowded()
    worker.add(3, 1, 1)
    assert worker.step().prefill == ()
    assert worker.scheduler.num_waiting == 2


def test_received_request_does_not_join_a_step_that_preempted() -> None:
    """sched: nor is a request whose KV has arrived. (A waiting one never fits then: what the victim
    gave back is less than it needs, and nobody overtakes it.)"""
    worker = worker_of(5)
    for request_id, num_tokens in ((1, 8), (2, 8), (3, 4)):
        worker.add(request_id, num_tokens, 4, goal=Goal.DECODE)
    worker.decide()  # all five blocks are reserved
    for request_id in (1, 2):
        worker.tell(KvArrived(request_id))
    worker.step()
    worker.tell(KvArrived(3))
    plan = worker.step()  # 1 and 2 need a block each
    assert (plan.joined, plan.num_decodes, plan.left) == ((), 1, (2,))
    assert [join.request_id for join in worker.step().joined] == [3]


def test_as_few_as_possible_are_preempted() -> None:
    """sched: the loop ends as soon as the blocks are there."""
    worker = worker_of(7, max_num_seqs=3)
    for request_id in (1, 2, 3):
        worker.add(request_id, 5, 8)  # two blocks each; all grow at position 8
    for _ in range(4):
        worker.step()
    plan = worker.step()
    assert (plan.num_decodes, plan.left) == (2, (3,))
    assert worker.scheduler.num_preemptions == 1


def test_request_that_wants_the_block_may_be_the_one_to_go() -> None:
    """sched: if the youngest itself is short of a block, it is preempted."""
    worker = worker_of(5)
    worker.add(1, 10, 8)  # three blocks until position 12
    worker.add(2, 5, 8)  # two blocks until position 8
    for _ in range(3):
        worker.step()
    worker.step()  # 1 is at position 12 first
    assert worker.scheduler.num_preemptions == 1
    assert 2 not in worker.scheduler.kv.tables


# ---------------------------------------------------------------------- end of a request


def test_finished_request_frees_blocks_and_place_for_the_next_step() -> None:
    """sched: ``update_from_output`` frees at once; the cached blocks can still be hit."""
    worker = worker_of(max_num_seqs=1)
    worker.add(1, 8, 2, hashes=(11, 12))
    worker.add(2, 9, 1, hashes=(11, 12, 13))
    worker.step()
    worker.step()
    assert worker.num_used == 0
    assert worker.step().prefill == (PrefillChunk(2, 1, 8, is_last=True),)


def test_last_token_is_never_written_to_the_cache() -> None:
    """sched: it is sampled in the last step, and no step reads it: 8 + 5 tokens take 3 blocks."""
    worker = worker_of()
    worker.add(1, 8, 5)
    peak = 0
    while worker.decide().plan is not None:
        peak = max(peak, worker.num_used)
        worker.complete()
    assert worker.finished() == {1: Finished(1, 5, 0)}
    assert peak == 3


# ---------------------------------------------------------------------- received KV


def test_blocks_of_the_whole_prompt_are_reserved_before_its_kv_is_sent() -> None:
    """sched: ``WAITING_FOR_REMOTE_KVS`` holds blocks for all prompt tokens and no place."""
    worker = worker_of(max_num_seqs=1)
    worker.add(1, 30, goal=Goal.DECODE)
    worker.add(2, 10, goal=Goal.DECODE)
    assert worker.decide().reserved == (Reserved(1, 0), Reserved(2, 0))
    assert (worker.num_used, worker.scheduler.num_running) == (8 + 3, 0)


def test_received_prompt_is_not_computed_again() -> None:
    """sched: all but the last token count as computed; that one is decoded."""
    worker = worker_of()
    worker.add(1, 10, 3, goal=Goal.DECODE)
    worker.decide()
    worker.tell(KvArrived(1))
    plan = worker.step()
    assert (plan.prefill, plan.num_decodes, plan.context_tokens) == ((), 1, 9)


def test_preempted_receiver_computes_its_prompt_itself() -> None:
    """sched: recompute needs no second transfer; what was received may be hit."""
    worker = worker_of(6)
    for request_id in (1, 2):
        worker.add(request_id, 9, 8, goal=Goal.DECODE)
    worker.decide()
    for request_id in (1, 2):
        worker.tell(KvArrived(request_id))
    while worker.scheduler.num_preemptions == 0:
        worker.step()
    worker.drain()
    assert worker.finished() == {1: Finished(1, 8, 0), 2: Finished(2, 8, 1)}
