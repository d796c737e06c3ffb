"""Measures a machine: how long steps take by batch and context, and what moving KV cache takes.

The result is read by ``perf.step_times``, so that a simulation can say what this machine would do.
"""

from collections.abc import Sequence
from statistics import fmean

from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.executor_port import (
    EngineStep,
    Executor,
    NewRequest,
    Sampling,
    ScheduledTokens,
)
from kvfabric.perf.step_times import StepTimes
from kvfabric.protocol.provenance import Source
from kvfabric.units import ceil_div

_TOKEN_IDS = 199  # any small ids: time does not depend on them


class _Scratch:
    """Requests with blocks of their own in an executor that serves nobody else."""

    def __init__(self, executor: Executor, block_size: int, repeats: int) -> None:
        self._executor, self._block_size, self._repeats = executor, block_size, repeats
        self._next_id = 0

    def _new(self, num_tokens: int) -> NewRequest:
        self._next_id += 1
        prompt = tuple(i % _TOKEN_IDS for i in range(num_tokens))
        return NewRequest(self._next_id, prompt, Sampling(1 << 20, ignore_eos=True))

    def decode_ns(self, batch: int, context: int) -> int:
        """Return the mean duration of a decode step."""
        size = ceil_div(context + self._repeats + 2, self._block_size)
        new = [self._new(context + 1) for _ in range(batch)]
        times_ns: list[int] = []
        for repeat in range(self._repeats + 1):
            shares = [
                ScheduledTokens(
                    request.request_id,
                    context + repeat,
                    1,
                    samples=True,
                    table_start=0 if repeat == 0 else size,
                    new_blocks=self._blocks(i, size) if repeat == 0 else (),
                )
                for i, request in enumerate(new)
            ]
            step = EngineStep(tuple(new) if repeat == 0 else (), tuple(shares))
            times_ns.append(self._executor.run(step).duration_ns)
        self._forget(new)
        return round(fmean(times_ns[1:]))

    def prefill_ns(self, chunk: int, history: int) -> int:
        """Return the mean duration of a step with one chunk of a prompt."""
        blocks = self._blocks(0, ceil_div(history + chunk, self._block_size))
        times_ns: list[int] = []
        for _ in range(self._repeats):
            new = self._new(history + chunk)
            share = ScheduledTokens(
                new.request_id, history, chunk, samples=True, table_start=0, new_blocks=blocks
            )
            times_ns.append(self._executor.run(EngineStep((new,), (share,))).duration_ns)
            self._forget([new])
        return round(fmean(times_ns))

    def _blocks(self, index: int, size: int) -> tuple[int, ...]:
        return tuple(range(1 + index * size, 1 + (index + 1) * size))

    def _forget(self, requests: Sequence[NewRequest]) -> None:
        self._executor.run(EngineStep((), (), tuple(r.request_id for r in requests)))


def needed_blocks(batches: Sequence[int], contexts: Sequence[int], block_size: int) -> int:
    """Return the blocks that measuring such decode steps takes, the null block included."""
    return 1 + max(batches) * ceil_div(max(contexts) + 16, block_size)


def record_step_times(
    executor: Executor,
    block_size: int,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    chunks: Sequence[int],
    histories: Sequence[int],
    control_ns: int,
    source: Source,
    repeats: int = 5,
) -> StepTimes:
    """Measure an executor that nobody else uses; each time is the mean of ``repeats``."""
    assert repeats <= 12, "see needed_blocks"
    scratch = _Scratch(executor, block_size, repeats)
    scratch.prefill_ns(max(chunks), 0)  # so that no first call is measured
    decode_ns = tuple(tuple(scratch.decode_ns(b, c) for c in contexts) for b in batches)
    prefill_ns = tuple(tuple(scratch.prefill_ns(c, h) for h in histories) for c in chunks)
    return StepTimes(
        batches=tuple(batches),
        contexts=tuple(contexts),
        decode_ns=decode_ns,
        chunks=tuple(chunks),
        histories=tuple(histories),
        prefill_ns=prefill_ns,
        control_ns=control_ns,
        source=source,
    )


def control_ns(log: DecisionLog, steps_ns: int = 0) -> int:
    """Return the mean time that a step of a run took beyond ``steps_ns`` in its executor."""
    times_ns = [step.end_ns - step.start_ns - steps_ns for step in log.steps]
    return max(0, round(fmean(times_ns)))
