"""What the workers of a run did, step by step: busy time, computed tokens, times between tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvfabric.metrics.percentiles import LatencyDistribution, rounded_div
from kvfabric.sim.logged_executor import LoggedExecutor
from kvfabric.units import ceil_div


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
