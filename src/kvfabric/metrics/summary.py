"""One run in figures: counts by outcome, latencies, stages of TTFT, throughput and goodput."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from kvfabric.errors import ConfigError
from kvfabric.metrics.latency import (
    Slo,
    TtftSplit,
    e2e_ns,
    mean_split,
    meets_slo,
    split_ttft,
    tpot_ns,
    ttft_ns,
)
from kvfabric.metrics.percentiles import (
    LatencyDistribution,
    describe_latencies,
    thin_percentiles,
)
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """How many requests arrived and how they ended; ``arrived`` is the sum of the others."""

    arrived: int
    finished: int
    rejected: int
    aborted: int
    failed: int
    unfinished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates over the window of a run; None where they are not defined.

    Attributes:
        requests_per_s: finished requests.
        output_tokens_per_s: output tokens of finished requests.
        total_tokens_per_s: their prompt tokens too, cached ones included.
        output_tokens_per_s_per_gpu: over all GPUs of the run.
        goodput_per_s: finished requests that met the SLO; None without an SLO.
        goodput_per_s_per_gpu: the same over all GPUs.
        slo_share: requests that met the SLO over requests that arrived.
    """

    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    output_tokens_per_s_per_gpu: float | None
    goodput_per_s: float | None
    goodput_per_s_per_gpu: float | None
    slo_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The figures of one run; latencies are those of finished requests.

    Attributes:
        counts: requests by outcome.
        num_gpus: GPUs that the per-GPU rates divide by.
        window_ns: first arrival to last finish; 0 if nothing finished.
        ttft: arrival to first token.
        tpot: mean time per token after the first, of requests with two tokens or more.
        e2e: arrival to last token.
        ttft_split_mean: mean of each stage; None if no finished request passed all of them.
        ttft_split_p99: the same over the requests at or above the p99 of TTFT.
        rates: throughput and goodput.
        num_prompt_tokens: of all requests that finished.
        num_output_tokens: of all requests that finished.
        num_cached_tokens: prompt tokens of those found in the prefix cache.
        num_preemptions: of all requests.
        transfer_bytes: handed from prefill to decode workers, for all requests.
        warnings: percentiles told from too few samples.
    """

    counts: OutcomeCounts
    num_gpus: int
    window_ns: int
    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    ttft_split_mean: TtftSplit | None
    ttft_split_p99: TtftSplit | None
    rates: Rates
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    transfer_bytes: int
    warnings: tuple[str, ...]


def summarize(
    records: Sequence[RequestRecord],
    num_gpus: int,
    slo: Slo | None = None,
    *,
    decode_first: bool = False,
) -> RunSummary:
    """Return the figures of a run; the order of the records does not matter.

    ``decode_first`` as in ``split_ttft``.

    Raises:
        ConfigError: ``num_gpus`` is below one.
    """
    _check_num_gpus(num_gpus)
    finished = [record for record in records if record.outcome is Outcome.FINISHED]
    window_ns = _window_ns(records, finished)
    ttft = describe_latencies(_known(ttft_ns(record) for record in finished))
    tpot = describe_latencies(_known(tpot_ns(record) for record in finished))
    e2e = describe_latencies(_known(e2e_ns(record) for record in finished))
    slowest = [record for record in finished if _is_at_least(ttft_ns(record), ttft.p99_ns)]
    return RunSummary(
        counts=count_outcomes(records),
        num_gpus=num_gpus,
        window_ns=window_ns,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        ttft_split_mean=_mean_split_of(finished, decode_first=decode_first),
        ttft_split_p99=_mean_split_of(slowest, decode_first=decode_first),
        rates=_rates(records, finished, window_ns, num_gpus, slo),
        num_prompt_tokens=sum(record.num_prompt_tokens for record in finished),
        num_output_tokens=sum(record.num_output_tokens for record in finished),
        num_cached_tokens=sum(record.num_cached_tokens for record in finished),
        num_preemptions=sum(record.num_preemptions for record in records),
        transfer_bytes=sum(record.transfer_bytes for record in records),
        warnings=_warnings(ttft, tpot, e2e),
    )


def summary_to_dict(summary: RunSummary) -> dict[str, object]:
    """Return the summary as nested dicts of JSON values, units in the names of the keys."""
    return {
        **asdict(summary),
        "warnings": list(summary.warnings),
        "percentile_method": "nearest rank",
    }


def count_outcomes(records: Sequence[RequestRecord]) -> OutcomeCounts:
    """Return how many requests arrived and how they ended."""
    counts = Counter(record.outcome for record in records)
    return OutcomeCounts(
        arrived=len(records),
        finished=counts[Outcome.FINISHED],
        rejected=counts[Outcome.REJECTED],
        aborted=counts[Outcome.ABORTED],
        failed=counts[Outcome.FAILED],
        unfinished=counts[Outcome.UNFINISHED],
    )


def _check_num_gpus(num_gpus: int) -> None:
    if type(num_gpus) is not int or num_gpus < 1:
        raise ConfigError(
            f"read {num_gpus!r}", where="num_gpus", hint="Write a whole number above 0"
        )


def _window_ns(records: Sequence[RequestRecord], finished: Sequence[RequestRecord]) -> int:
    if not finished:
        return 0
    last_ns = max(_finished_ns(record) for record in finished)
    return last_ns - min(record.arrival_ns for record in records)


def _finished_ns(record: RequestRecord) -> int:
    assert record.finished_ns is not None, f"request {record.request_id} finished at no instant"
    return record.finished_ns


def _known(durations_ns: Iterable[int | None]) -> list[int]:
    return [duration_ns for duration_ns in durations_ns if duration_ns is not None]


def _is_at_least(duration_ns: int | None, limit_ns: int | None) -> bool:
    return duration_ns is not None and limit_ns is not None and duration_ns >= limit_ns


def _mean_split_of(records: Sequence[RequestRecord], *, decode_first: bool) -> TtftSplit | None:
    splits = (split_ttft(record, decode_first=decode_first) for record in records)
    return mean_split([split for split in splits if split is not None])


def _rates(
    records: Sequence[RequestRecord],
    finished: Sequence[RequestRecord],
    window_ns: int,
    num_gpus: int,
    slo: Slo | None,
) -> Rates:
    num_output_tokens = sum(record.num_output_tokens for record in finished)
    num_prompt_tokens = sum(record.num_prompt_tokens for record in finished)
    num_good = None if slo is None else sum(meets_slo(record, slo) for record in finished)
    has_share = num_good is not None and len(records) > 0
    return Rates(
        requests_per_s=_per_s(len(finished), window_ns),
        output_tokens_per_s=_per_s(num_output_tokens, window_ns),
        total_tokens_per_s=_per_s(num_prompt_tokens + num_output_tokens, window_ns),
        output_tokens_per_s_per_gpu=_per_s(num_output_tokens, window_ns, num_gpus),
        goodput_per_s=_per_s(num_good, window_ns),
        goodput_per_s_per_gpu=_per_s(num_good, window_ns, num_gpus),
        slo_share=(num_good or 0) / len(records) if has_share else None,
    )


def _per_s(count: int | None, window_ns: int, num_gpus: int = 1) -> float | None:
    if count is None or window_ns == 0:
        return None
    return count * NS_PER_S / (window_ns * num_gpus)


def _warnings(
    ttft: LatencyDistribution, tpot: LatencyDistribution, e2e: LatencyDistribution
) -> tuple[str, ...]:
    named = (("TTFT", ttft), ("TPOT", tpot), ("E2E", e2e))
    return tuple(
        warning
        for name, latencies in named
        for warning in thin_percentiles(name, latencies.num_samples)
    )
