"""A step that raises: which request is to blame, so that it fails and its worker lives."""

from kvfabric.engine.executor_port import (
    EngineStep,
    Executor,
    FailedRequest,
    Reached,
    SampledToken,
    StepOutput,
)


def run_isolated(executor: Executor, step: EngineStep, reached: Reached | None) -> StepOutput:
    """Run a step; if it raises, run its parts one by one and tell which of them raise.

    Parts are run again in their order, so that one reads what those before it have stored. No layer
    of a step that raised is reported a second time: the control takes those that are missing for
    computed when the step ends.

    Raises:
        Exception: the step raises, and every part of it; then the executor itself may be broken.
    """
    try:
        return executor.run(step, reached)
    except Exception as error:
        output = _run_apart(executor, step)
        if len(output.failed) == len(step.scheduled) and not _still_runs(executor):
            raise error from None
        return output


def _still_runs(executor: Executor) -> bool:
    """Return whether the executor takes a step that does nothing."""
    try:
        executor.run(EngineStep((), ()))
    except Exception:  # noqa: BLE001 - whatever it is, it does not
        return False
    return True


def _run_apart(executor: Executor, step: EngineStep) -> StepOutput:
    new_by_id = {new.request_id: new for new in step.new}
    tokens: list[SampledToken] = []
    failed: list[FailedRequest] = []
    duration_ns, gone = 0, step.gone
    for part in step.scheduled:
        new = new_by_id.get(part.request_id)
        alone = EngineStep(() if new is None else (new,), (part,), gone)
        try:
            output = executor.run(alone)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's
            failed.append(FailedRequest(part.request_id, repr(error)))
            continue
        gone = ()
        tokens += output.tokens
        duration_ns += output.duration_ns
    return StepOutput(tuple(tokens), duration_ns, tuple(failed))
