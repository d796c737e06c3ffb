"""What the workers of a run did, step by step: busy time, computed tokens, times between tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvfabric.metrics.percentiles import LatencyDistribution, rounded_div
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepResult
from kvfabric.sim.executor import SimExecutor
from kvfabric.units import ceil_div

_PIECES = 8  # of a run of decode iterations, whose duration grows slowly


class LoggedExecutor(SimExecutor):
    """An executor that counts what it ran.

    Attributes:
        busy_ns: time in steps.
        num_steps: steps, each decode iteration counted.
        num_prefill_tokens: prompt tokens computed, those computed again included.
        gaps: decode tokens by the duration of the step that gave them, in ns.
    """

    __slots__ = ("_times", "busy_ns", "gaps", "num_prefill_tokens", "num_steps")

    def __init__(
        self, model: StepTimeModel, lengths: Mapping[int, int], samples_first_token: bool
    ) -> None:
        """Make an idle executor with an empty log."""
        super().__init__(model, lengths, samples_first_token=samples_first_token)
        self._times = model
        self.busy_ns = self.num_steps = self.num_prefill_tokens = 0
        self.gaps: dict[int, int] = {}

    def complete(self) -> StepResult:
        """Return what ran, and count it."""
        plan, num_iterations = self.plan, self.num_iterations
        duration_ns = self.end_ns - self.start_ns
        self.busy_ns += duration_ns
        self.num_steps += num_iterations
        self.num_prefill_tokens += sum(chunk.num_tokens for chunk in plan.prefill)
        if num_iterations == 1:
            self._add_gap(duration_ns, plan.num_decodes)
        else:
            self._add_run(plan.num_decodes, plan.context_tokens, num_iterations)
        return super().complete()

    def _add_run(self, num_decodes: int, context_tokens: int, num_iterations: int) -> None:
        """Count a run of iterations in a few pieces of equal steps, to keep long runs cheap."""
        size, before_ns, done = ceil_div(num_iterations, _PIECES), 0, 0
        while done < num_iterations:
            num = min(size, num_iterations - done)
            done += num
            after_ns = self._times.decode_run_ns(num_decodes, context_tokens, done)
            self._add_gap(rounded_div(after_ns - before_ns, num), num * num_decodes)
            before_ns = after_ns

    def _add_gap(self, duration_ns: int, num_tokens: int) -> None:
        if num_tokens:
            self.gaps[duration_ns] = self.gaps.get(duration_ns, 0) + num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUse:
    """How much of a run a worker was busy.

    Attributes:
        role: ``aggregated``, ``prefill`` or ``decode``.
        busy_ns: time in steps.
        utilization: that over the window of the run; 0 where the window is no time.
        num_steps: steps, each decode iteration counted.
        num_prefill_tokens: prompt tokens computed, those computed again included.
    """

    role: str
    busy_ns: int
    utilization: float
    num_steps: int
    num_prefill_tokens: int


def worker_use(
    executors: Sequence[LoggedExecutor], *, num_decode: int, window_ns: int
) -> tuple[WorkerUse, ...]:
    """Return the use of every worker, in order of worker ids."""
    num_prefill = len(executors) - num_decode
    first_role = "prefill" if num_decode else "aggregated"
    return tuple(
        WorkerUse(
            role=first_role if worker < num_prefill else "decode",
            busy_ns=executor.busy_ns,
            utilization=executor.busy_ns / window_ns if window_ns else 0.0,
            num_steps=executor.num_steps,
            num_prefill_tokens=executor.num_prefill_tokens,
        )
        for worker, executor in enumerate(executors)
    )


def inter_token_latency(executors: Iterable[LoggedExecutor]) -> LatencyDistribution:
    """Return the times between two tokens of a request, each token weighing the same.

    A decoding request waits one step for its next token, so these are step durations weighted with
    the decodes in the step. The stall of a preempted request, and the gap of a token between
    workers, are not in them.
    """
    merged: dict[int, int] = {}
    for executor in executors:
        for gap_ns, num_tokens in executor.gaps.items():
            merged[gap_ns] = merged.get(gap_ns, 0) + num_tokens
    return weighted_latencies(merged)


def weighted_latencies(counts: Mapping[int, int]) -> LatencyDistribution:
    """Return mean and nearest-rank percentiles of durations in ns, given how often each occurs."""
    total = sum(counts.values())
    if not total:
        return LatencyDistribution(num_samples=0)
    ordered = sorted(counts.items())
    return LatencyDistribution(
        num_samples=total,
        mean_ns=rounded_div(sum(ns * num for ns, num in ordered), total),
        p50_ns=_at_rank(ordered, ceil_div(total * 50, 100)),
        p90_ns=_at_rank(ordered, ceil_div(total * 90, 100)),
        p99_ns=_at_rank(ordered, ceil_div(total * 99, 100)),
    )


def _at_rank(ordered: Sequence[tuple[int, int]], rank: int) -> int:
    seen = 0
    for value, count in ordered:
        seen += count
        if seen >= rank:
            return value
    raise AssertionError((rank, seen))
