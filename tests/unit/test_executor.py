"""The stand-in for GPUs: durations, cut runs, and when outputs end."""

from clusters import LinearModel

from kvfabric.protocol.step import DecodeJoin, PrefillChunk, StepPlan, StepResult
from kvfabric.sim.executor import SimExecutor

PROMPT = PrefillChunk(1, 10, 0, is_last=True)


def executor_of(lengths: dict[int, int], *, is_prefill_only: bool = False) -> SimExecutor:
    return SimExecutor(LinearModel(), lengths, samples_first_token=not is_prefill_only)


def plan_of(
    *prefill: PrefillChunk,
    num_decodes: int = 0,
    context: int = 0,
    joined: tuple[DecodeJoin, ...] = (),
    left: tuple[int, ...] = (),
) -> StepPlan:
    return StepPlan(
        num_decodes=num_decodes,
        context_tokens=context,
        prefill=prefill,
        joined=joined,
        left=left,
    )


def decode(num_decodes: int = 1, context: int = 10) -> StepPlan:
    return plan_of(num_decodes=num_decodes, context=context)


def start(executor: SimExecutor, plan: StepPlan, now_ns: int, max_iterations: int = 1) -> int:
    executor.start(plan, now_ns, max_iterations)
    return executor.end_ns


def run(executor: SimExecutor, plan: StepPlan, max_iterations: int = 1) -> StepResult:
    executor.start(plan, 0, max_iterations)
    return executor.complete()


def test_prefill_step_takes_what_the_model_says() -> None:
    assert start(executor_of({1: 5}), plan_of(PROMPT), 100) == 100 + 1000 + 70


def test_request_of_one_token_ends_with_its_prompt() -> None:
    assert run(executor_of({1: 1}), plan_of(PROMPT)) == StepResult(1, (1,))


def test_prefill_only_worker_ends_no_request() -> None:
    assert run(executor_of({1: 1}, is_prefill_only=True), plan_of(PROMPT)) == StepResult(1)


def test_chunk_in_the_middle_of_a_prompt_samples_nothing() -> None:
    executor = executor_of({1: 1})
    part = PrefillChunk(1, 6, 0, is_last=False)
    assert run(executor, plan_of(part)) == StepResult(1)
    assert run(executor, plan_of(PrefillChunk(1, 4, 6, is_last=True))) == StepResult(1, (1,))


def test_run_stops_when_the_first_output_ends() -> None:
    executor = executor_of({1: 5})
    run(executor, plan_of(PROMPT))
    assert run(executor, decode(), 100) == StepResult(4, (1,))


def test_run_stops_at_what_the_plan_allows() -> None:
    executor = executor_of({1: 50})
    run(executor, plan_of(PROMPT))
    assert run(executor, decode(), 7) == StepResult(7)


def test_run_takes_the_sum_of_its_iterations() -> None:
    executor = executor_of({1: 50})
    run(executor, plan_of(PROMPT))
    assert start(executor, decode(), 0, 3) == LinearModel().decode_run_ns(1, 10, 3)


def test_interrupted_run_ends_with_the_iteration_under_way() -> None:
    model, executor = LinearModel(), executor_of({1: 50})
    run(executor, plan_of(PROMPT))
    executor.start(decode(), 1000, 20)
    second_ns = 1000 + model.decode_run_ns(1, 10, 2)
    assert executor.iteration_end_ns(second_ns - 5) == second_ns
    assert executor.interrupt(second_ns - 5)
    assert executor.end_ns == second_ns
    assert executor.complete() == StepResult(2)


def test_interrupt_at_the_start_still_runs_one_iteration() -> None:
    executor = executor_of({1: 50})
    run(executor, plan_of(PROMPT))
    executor.start(decode(), 1000, 20)
    assert executor.interrupt(1000)
    assert executor.end_ns == 1000 + LinearModel().decode_run_ns(1, 10, 1)


def test_interrupt_never_makes_a_run_longer() -> None:
    executor = executor_of({1: 50})
    run(executor, plan_of(PROMPT))
    end_ns = start(executor, decode(), 0, 2)
    assert not executor.interrupt(end_ns - 1)
    assert executor.end_ns == end_ns


def test_interrupt_can_leave_one_iteration_to_plan_ahead_in() -> None:
    model, executor = LinearModel(), executor_of({1: 50})
    run(executor, plan_of(PROMPT))
    executor.start(decode(), 1000, 20)
    second_ns = 1000 + model.decode_run_ns(1, 10, 2)
    assert executor.interrupt(second_ns, num_ahead=1)
    assert executor.last_iteration_ns == second_ns
    assert executor.end_ns == 1000 + model.decode_run_ns(1, 10, 3)


def test_tokens_produced_before_a_preemption_are_not_produced_again() -> None:
    executor = executor_of({1: 8})
    run(executor, plan_of(PROMPT))  # 1 of 8
    run(executor, decode(), 3)  # 4 of 8
    executor.start(plan_of(PROMPT, left=(1,)), 0)  # recomputed: 5 of 8
    assert executor.complete() == StepResult(1)
    assert run(executor, decode(), 100) == StepResult(3, (1,))


def test_received_request_produces_its_first_token_in_the_step_it_joins() -> None:
    executor = executor_of({1: 3})
    plan = plan_of(num_decodes=1, context=9, joined=(DecodeJoin(1, 9),))
    assert run(executor, plan) == StepResult(1)
    assert run(executor, decode(), 100) == StepResult(2, (1,))


def test_requests_that_end_together_are_told_in_order() -> None:
    executor = executor_of({5: 4, 2: 4})
    chunks = (PrefillChunk(5, 4, 0, is_last=True), PrefillChunk(2, 4, 0, is_last=True))
    run(executor, plan_of(*chunks))
    assert run(executor, decode(2), 100) == StepResult(3, (2, 5))


def test_cancelled_request_does_not_end_a_run() -> None:
    executor = executor_of({1: 2, 2: 30})
    chunks = (PrefillChunk(1, 4, 0, is_last=True), PrefillChunk(2, 4, 0, is_last=True))
    run(executor, plan_of(*chunks))
    executor.start(plan_of(num_decodes=1, context=4, left=(1,)), 0, 10)
    assert executor.complete() == StepResult(10)


def test_step_by_step_executor_runs_one_iteration() -> None:
    executor = SimExecutor(LinearModel(), {1: 50}, samples_first_token=True, max_iterations=1)
    run(executor, plan_of(PROMPT))
    assert run(executor, decode(), 20) == StepResult(1)
