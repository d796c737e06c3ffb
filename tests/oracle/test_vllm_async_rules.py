"""Rules of asynchronous scheduling, the default of vLLM V1 (0.19.0): two steps are out at a time.

Rules as read in the sources of vLLM (Apache-2.0, https://github.com/vllm-project/vllm, 0.19.0):
vllm/v1/core/sched/async_scheduler.py and ``step_with_batch_queue`` in vllm/v1/engine/core.py. Step
m + 2 is planned when m ends, which is when m + 1 starts. A published run confirms the depth: of 191
requests whose first step can be told from the step that ended before it, none contradicts a lag of
two steps; a lag of one or three contradicts 14 (LLMServingSim, run of vLLM 0.19 on an RTX PRO
6000). Blocks hold 4 tokens, a step 16.
"""

import pytest
from clusters import Cluster, ConstantNetwork, LinearModel, build, workload_of
from worker_steps import SteppedWorker, chunks_of, worker_of

from kvfabric.protocol.step import PrefillChunk, StepShape
from kvfabric.protocol.workload import RequestSpec
from kvfabric.serving.commands import Cancelled, Finished, Prefilled
from kvfabric.serving.request import Goal


def pipelined(
    *, max_num_seqs: int = 4, num_usable: int = 20, max_tokens: int = 30
) -> SteppedWorker:
    """Return a worker with request 1 decoding and step m out; the next plan is for m + 1."""
    worker = worker_of(num_usable, max_num_seqs=max_num_seqs)
    worker.add(1, 4, max_tokens)
    worker.step()
    worker.plan()
    return worker


def test_third_step_is_not_planned_while_two_are_out() -> None:
    worker = pipelined()
    worker.plan()
    with pytest.raises(AssertionError, match="two steps"):
        worker.decide()


def test_arrival_in_step_m_runs_in_m_plus_2() -> None:
    worker = pipelined()
    assert worker.plan().prefill == ()  # m + 1, planned when m starts
    worker.add(2, 4)  # during m
    worker.complete()
    assert chunks_of(worker.plan()) == [(2, 4)]  # m + 2


@pytest.mark.parametrize(("async_scheduling", "lag"), [(False, 1), (True, 2)])
def test_whole_run_lets_an_arrival_wait_for_its_lag(*, async_scheduling: bool, lag: int) -> None:
    """An arrival in the middle of step m has its first token at the end of step m + lag."""
    model = LinearModel()
    ends_ns = [model.mixed_step_ns(StepShape(0, 0, ((8, 0),)))]
    for context in range(8, 24):
        ends_ns.append(ends_ns[-1] + model.mixed_step_ns(StepShape(1, context)))
    m = 6
    spec = RequestSpec(request_id=0, arrival_ns=0, num_prompt_tokens=8, num_output_tokens=40)
    late = RequestSpec(
        request_id=1, arrival_ns=ends_ns[m] - 300, num_prompt_tokens=8, num_output_tokens=1
    )
    cluster = Cluster(async_scheduling=async_scheduling)
    records = build(cluster, workload_of([spec, late]), ConstantNetwork()).run(check=True).records
    start_ns = ends_ns[m + lag - 1]
    step_ns = model.mixed_step_ns(StepShape(1, 8 + m + lag - 1, ((8, 0),)))
    assert records[1].first_token_ns == start_ns + step_ns


def test_finish_in_step_m_frees_place_and_blocks_for_m_plus_2() -> None:
    worker = pipelined(max_num_seqs=1)
    worker.add(2, 4)
    assert (worker.plan().num_decodes, worker.num_used) == (1, 2)  # m + 1 still has request 1
    assert worker.complete(1) == [Finished(1, 2, 0)]
    assert worker.num_used == 0
    assert chunks_of(worker.plan()) == [(2, 4)]  # m + 2


def test_token_planned_after_the_end_is_dropped() -> None:
    """An output may end in m while m + 1 is to give it one more: nobody gets that one."""
    worker = pipelined()
    worker.plan()
    worker.complete(1)
    assert worker.complete() == []
    assert worker.finished() == {1: Finished(1, 2, 0)}
    assert worker.scheduler.is_drained


def test_request_at_its_limit_is_not_in_the_next_plan() -> None:
    """The placeholder of its last token is counted, so m + 1 is planned without it."""
    worker = pipelined(max_tokens=2)
    worker.add(2, 4)
    plan = worker.plan()
    assert (plan.num_decodes, chunks_of(plan)) == (0, [(2, 4)])


def test_request_at_its_limit_keeps_place_and_blocks_until_its_last_step_ends() -> None:
    worker = pipelined(max_num_seqs=1, max_tokens=2)
    worker.add(2, 4)
    assert worker.decide().plan is None  # m + 1: the place is still taken
    assert (worker.scheduler.num_running, worker.num_used) == (1, 2)
    assert worker.complete() == [Finished(1, 2, 0)]
    assert worker.num_used == 0
    assert chunks_of(worker.plan()) == [(2, 4)]  # m + 2


def test_prompt_decodes_in_the_step_after_its_last_chunk() -> None:
    """The sampled token is known by its place only; the next step is planned on it all the same."""
    worker = worker_of()
    worker.add(1, 20)
    plans = [worker.plan(), worker.plan()]
    worker.complete()
    plans.append(worker.plan())
    assert [chunks_of(plan) for plan in plans] == [[(1, 16)], [(1, 4)], []]
    assert plans[2].num_decodes == 1


def test_prompt_of_one_token_output_ends_without_a_second_step() -> None:
    worker = worker_of()
    worker.add(1, 8, 1)
    worker.plan()
    assert worker.decide().plan is None
    assert worker.complete() == [Prefilled(1, 0, 0), Finished(1, 1, 0)]


# ---------------------------------------------------------------------- preemption


def crowded(first_limit: int = 12, second_limit: int = 12, num_usable: int = 6) -> SteppedWorker:
    """Return a worker whose step 5 is out and whose two requests hold six blocks, all full.

    Both have four outputs for certain and a fifth on its way; step 6 writes position 12.
    """
    worker = worker_of(num_usable)
    worker.add(1, 8, first_limit)
    worker.add(2, 8, second_limit)
    worker.plan()
    for _ in range(4):
        worker.plan()
        worker.complete()
    assert (worker.num_used, worker.num_out) == (6, 1)
    return worker


def test_victim_whose_last_token_is_on_its_way_still_ends() -> None:
    """A quirk of vLLM: the youngest is preempted for step 6 though step 5 gives its last token.

    It then finishes out of the waiting queue, with the preemption counted and nothing left over.
    """
    worker = crowded(second_limit=5)
    assert worker.plan().num_decodes == 1
    assert (worker.scheduler.num_preemptions, worker.scheduler.num_waiting) == (1, 1)
    assert worker.complete() == [Finished(2, 5, 1)]
    assert worker.scheduler.num_waiting == 0
    assert worker.num_used == len(worker.table(1)) == 4


def test_victim_that_turns_out_to_have_ended_is_not_computed_again() -> None:
    worker = crowded()
    worker.plan()
    assert worker.complete(2) == [Finished(2, 5, 1)]
    worker.drain()
    assert worker.finished() == {1: Finished(1, 12, 0), 2: Finished(2, 5, 1)}
    assert sum(isinstance(event, Prefilled) for event in worker.events) == 2


def test_victim_keeps_the_token_that_is_on_its_way() -> None:
    """Its fifth token comes in step 5; the prompt to recompute has 8 + 5 tokens.

    Its third block was freed first and went to request 1, so two are hit.
    """
    worker = crowded(first_limit=8)
    chunks: list[PrefillChunk] = []
    while not chunks:
        plan = worker.decide().plan
        chunks = [] if plan is None else [*plan.prefill]
        worker.complete()
    assert chunks == [PrefillChunk(2, 5, 8, is_last=True)]
    worker.drain()
    assert worker.finished()[2] == Finished(2, 12, 1)


def test_block_whose_last_token_was_unknown_when_planned_is_not_hit() -> None:
    """Step 5 writes position 11, a token that step 4 had yet to give when 5 was planned.

    Blocks are cached up to the tokens known, ``num_computed_tokens - num_output_placeholders``, so
    the third one of the victim is not, though it stays free here: there is a seventh for request 1.
    """
    worker = crowded(num_usable=7)
    table = worker.table(2)
    assert worker.plan().left == (2,)
    cache = worker.scheduler.kv.pool.prefix_cache
    assert [cache.key_of(block_id) is not None for block_id in table] == [True, True, False]


def test_nothing_is_admitted_in_a_step_that_preempted() -> None:
    worker = crowded()
    worker.add(3, 1, 1)
    assert worker.plan().prefill == ()


# ---------------------------------------------------------------------- hand-off and abort


def test_prompt_for_another_worker_is_held_from_the_end_of_its_step() -> None:
    worker = worker_of()
    worker.add(1, 10, goal=Goal.PREFILL)
    worker.plan()
    assert worker.decide().plan is None
    assert worker.complete() == [Prefilled(1, 0, 0)]
    assert worker.num_used == 3


def test_abort_frees_blocks_when_the_last_step_that_uses_them_ends() -> None:
    worker = pipelined()
    worker.plan()
    worker.cancel(1)
    assert worker.complete() == []
    assert worker.num_used == 2  # m + 1 writes into them
    assert worker.complete() == [Cancelled(1)]
    assert worker.num_used == 0


def test_aborted_request_is_in_no_plan_made_afterwards() -> None:
    worker = pipelined()
    worker.plan()
    worker.cancel(1)
    worker.complete()
    assert worker.decide().plan is None
