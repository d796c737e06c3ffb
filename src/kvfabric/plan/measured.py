"""A simulated run beside the real one it was recorded from: figures of both and their difference.

Latencies are the engine's own: they start when it reads the request, between two of its steps, as
vLLM's ``queued_ts`` does. Both sides use nearest-rank percentiles.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.metrics.latency import tpot_ns
from kvfabric.metrics.percentiles import LatencyDistribution, describe_latencies
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.units import ceil_div
from kvfabric.workload.recorded_run import MeasuredRequest


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs, in ns; None where it is not defined."""

    name: str
    measured_ns: int | None
    simulated_ns: int | None

    @property
    def error(self) -> float | None:
        """Return simulated over measured, less 1; None where it is not defined."""
        if not self.measured_ns or self.simulated_ns is None:
            return None
        return self.simulated_ns / self.measured_ns - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredComparison:
    """Both runs over the requests ``first`` to ``last``, by arrival from 0.

    Attributes:
        first: first request.
        last: last request.
        why: what is special about them; empty for all that were measured.
        num_requests: those of them that were measured and that finished here too.
        figures: in order of importance.
    """

    first: int
    last: int
    why: str
    num_requests: int
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A request in both runs."""

    real: MeasuredRequest
    record: RequestRecord

    def queued_ns(self) -> int:
        assert self.record.queued_ns is not None, "it has finished"
        return self.record.queued_ns

    def ttft_ns(self) -> int | None:
        first_ns = self.record.first_token_ns
        return None if first_ns is None else first_ns - self.queued_ns()

    def tpot_ns(self) -> int | None:
        return tpot_ns(self.record)

    def e2e_ns(self) -> int:
        return self.finished_ns() - self.queued_ns()

    def finished_ns(self) -> int:
        assert self.record.finished_ns is not None, "it has finished"
        return self.record.finished_ns


def compare_with_measured(
    records: Sequence[RequestRecord],
    measured: Sequence[MeasuredRequest],
    *,
    max_num_seqs: int,
    window: tuple[int, int] | None = None,
) -> tuple[MeasuredComparison, ...]:
    """Return the comparison over all requests, then over a window of them.

    Args:
        records: of the simulated run.
        measured: of the real one; the same request ids.
        max_num_seqs: most requests in a step.
        window: first and last request; by default those before so many ran at once in the real run,
            if there are others after them.

    Raises:
        ConfigError: no request in the window was measured and finished.
    """
    by_id = {record.request_id: record for record in records}
    pairs = [
        _Pair(real, record)
        for real in measured
        if (record := by_id.get(real.request_id)) is not None and record.outcome is Outcome.FINISHED
    ]
    if not pairs:
        return ()
    ids = [real.request_id for real in measured]
    result = [_compare(pairs, min(ids), max(ids), "")]
    why = "as asked"
    if window is None:
        window, why = _before_full(measured, max_num_seqs), f"before {max_num_seqs} ran at once"
    if window is not None:
        inside = [pair for pair in pairs if window[0] <= pair.real.request_id <= window[1]]
        if not inside:
            raise ConfigError(
                f"no measured request from {window[0]} to {window[1]}",
                where="window",
                hint=f"Measured are {min(ids)} to {max(ids)}",
            )
        result.append(_compare(inside, *window, why))
    return tuple(result)


def _before_full(measured: Sequence[MeasuredRequest], max_num_seqs: int) -> tuple[int, int] | None:
    """Return the requests that began before ``max_num_seqs`` ran at once; None if all or none."""
    ends: list[int] = []
    for i, request in enumerate(measured):
        ends = [end for end in ends if end > request.scheduled_ns]
        ends.append(request.last_token_ns)
        if len(ends) >= max_num_seqs:
            return (measured[0].request_id, measured[i - 1].request_id) if i else None
    return None


def _compare(pairs: Sequence[_Pair], first: int, last: int, why: str) -> MeasuredComparison:
    return MeasuredComparison(
        first=first, last=last, why=why, num_requests=len(pairs), figures=tuple(_figures(pairs))
    )


def _figures(pairs: Sequence[_Pair]) -> Iterable[Figure]:
    ttft = _both(pairs, lambda p: p.real.first_token_ns - p.real.queued_ns, _Pair.ttft_ns)
    tpot = _both(pairs, lambda p: _measured_tpot_ns(p.real), _Pair.tpot_ns)
    e2e = _both(pairs, lambda p: p.real.last_token_ns - p.real.queued_ns, _Pair.e2e_ns)
    yield from _of("TTFT", ttft, ("mean", "p50", "p90", "p99"))
    yield from _of("TPOT", tpot, ("mean", "p99"))
    yield from _of("E2E", e2e, ("mean", "p99"))
    real_ns = max(p.real.last_token_ns for p in pairs) - min(p.real.queued_ns for p in pairs)
    simulated_ns = max(p.finished_ns() for p in pairs) - min(p.queued_ns() for p in pairs)
    yield Figure("makespan", real_ns, simulated_ns)


_Get = Callable[[_Pair], int | None]
_Both = tuple[LatencyDistribution, LatencyDistribution]


def _both(pairs: Sequence[_Pair], of_real: _Get, of_simulated: _Get) -> _Both:
    return _described(pairs, of_real), _described(pairs, of_simulated)


def _described(pairs: Sequence[_Pair], get: _Get) -> LatencyDistribution:
    return describe_latencies(ns for ns in map(get, pairs) if ns is not None)


def _of(name: str, both: _Both, statistics: Sequence[str]) -> Iterable[Figure]:
    for statistic in statistics:
        measured_ns, simulated_ns = (getattr(latencies, f"{statistic}_ns") for latencies in both)
        yield Figure(f"{name} {statistic}", measured_ns, simulated_ns)


def _measured_tpot_ns(request: MeasuredRequest) -> int | None:
    if request.num_output_tokens <= 1:
        return None
    decode_ns = request.last_token_ns - request.first_token_ns
    return ceil_div(decode_ns, request.num_output_tokens - 1)
