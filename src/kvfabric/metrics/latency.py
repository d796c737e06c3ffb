"""Latencies of one request: TTFT and its stages, TPOT, end to end, and whether it met its targets.

TTFT runs from arrival at the router to the first output token. With a hand-off between prefill and
decode it includes the hand-off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kvfabric.errors import ConfigError
from kvfabric.metrics.percentiles import rounded_div
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftSplit:
    """Where the time to the first token went; the parts sum to TTFT exactly.

    ``| router | prefill queue | prefill compute | decode blocks | wire | first decode step |``

    Where decode is asked first, its blocks are waited for before the prefill queue. Where KV is
    streamed behind the prefill, ``decode blocks`` and ``wire`` are what is left of them after it.
    """

    router_ns: int
    prefill_queue_ns: int
    prefill_compute_ns: int
    decode_blocks_wait_ns: int
    wire_ns: int
    first_decode_step_ns: int

    @property
    def total_ns(self) -> int:
        """Return the sum of the parts."""
        return sum(self.as_parts_ns())

    def as_parts_ns(self) -> tuple[int, ...]:
        """Return the parts in order of time."""
        return (
            self.router_ns,
            self.prefill_queue_ns,
            self.prefill_compute_ns,
            self.decode_blocks_wait_ns,
            self.wire_ns,
            self.first_decode_step_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency targets; None sets no target. A request meets it at or below both."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None

    def __post_init__(self) -> None:
        """Refuse targets that are not whole positive ns."""
        for name, target_ns in (("slo.ttft_ns", self.ttft_ns), ("slo.tpot_ns", self.tpot_ns)):
            is_whole = isinstance(target_ns, int) and not isinstance(target_ns, bool)
            if target_ns is not None and (not is_whole or target_ns <= 0):
                raise ConfigError(
                    f"read {target_ns!r}", where=name, hint="Write a whole number of ns above 0"
                )


def ttft_ns(record: RequestRecord) -> int | None:
    """Return the time from arrival to the first output token; None if there was none."""
    return None if record.first_token_ns is None else record.first_token_ns - record.arrival_ns


def e2e_ns(record: RequestRecord) -> int | None:
    """Return the time from arrival to the last token; None if the request did not finish."""
    if record.outcome is not Outcome.FINISHED or record.finished_ns is None:
        return None
    return record.finished_ns - record.arrival_ns


def tpot_ns(record: RequestRecord) -> int | None:
    """Return the mean time per output token after the first, rounded up.

    ``(E2E - TTFT) / (output tokens - 1)``; None for one token or an unfinished request. Rounded up,
    it meets a whole-ns target exactly when the unrounded quotient does.

    Source: published: vLLM benchmarks/serve.py ``calculate_metrics``.
    """
    total_ns, first_ns = e2e_ns(record), ttft_ns(record)
    if total_ns is None or first_ns is None or record.num_output_tokens <= 1:
        return None
    return ceil_div(total_ns - first_ns, record.num_output_tokens - 1)


def split_ttft(record: RequestRecord, *, decode_first: bool = False) -> TtftSplit | None:
    """Return the stages of TTFT; None if the request missed one, so that no sum would hold.

    Args:
        record: of the request.
        decode_first: decode workers were asked for their blocks before the prefill; where it began
            as soon as it had them, the record does not say which of the two was waited for.
    """
    instants_ns: list[int] = []
    for instant_ns in _stage_instants_ns(record):
        if instant_ns is None:
            return None
        instants_ns.append(instant_ns)
    arrival, routed, start, end, reserved, transferred, first = instants_ns
    blocks_first = decode_first and reserved <= start
    if blocks_first:
        instants_ns = [arrival, routed, reserved, start, end, transferred, first]
    elif start <= reserved < end:
        instants_ns[4] = end
    parts_ns = [after - before for before, after in pairwise(instants_ns)]
    assert min(parts_ns) >= 0, f"request {record.request_id}: instants out of order {instants_ns}"
    if blocks_first:
        router, blocks, queue, compute, wire, step = parts_ns
        parts_ns = [router, queue, compute, blocks, wire, step]
    return split_of_parts(parts_ns)


def _stage_instants_ns(record: RequestRecord) -> tuple[int | None, ...]:
    return (
        record.arrival_ns,
        record.routed_ns,
        record.prefill_start_ns,
        record.prefill_end_ns,
        record.reserved_ns,
        record.transferred_ns,
        record.first_token_ns,
    )


def split_of_parts(parts_ns: Sequence[int]) -> TtftSplit:
    """Return the split of six parts in order of time."""
    router, queue, compute, blocks_wait, wire, decode_step = parts_ns
    return TtftSplit(
        router_ns=router,
        prefill_queue_ns=queue,
        prefill_compute_ns=compute,
        decode_blocks_wait_ns=blocks_wait,
        wire_ns=wire,
        first_decode_step_ns=decode_step,
    )


def mean_split(splits: Sequence[TtftSplit]) -> TtftSplit | None:
    """Return the mean of each stage in whole ns, or None of nothing.

    The running sum is rounded, not each stage, so that the stages still sum to the mean TTFT.
    """
    if not splits:
        return None
    columns = zip(*(split.as_parts_ns() for split in splits), strict=True)
    running = accumulate((sum(column) for column in columns), initial=0)
    rounded = (rounded_div(total_ns, len(splits)) for total_ns in running)
    return split_of_parts([end - start for start, end in pairwise(rounded)])


def meets_slo(record: RequestRecord, slo: Slo) -> bool:
    """Return whether a request finished within its targets; one token has no TPOT to miss."""
    first_ns, per_token_ns = ttft_ns(record), tpot_ns(record)
    if record.outcome is not Outcome.FINISHED or first_ns is None:
        return False
    is_prompt = slo.ttft_ns is None or first_ns <= slo.ttft_ns
    is_steady = slo.tpot_ns is None or per_token_ns is None or per_token_ns <= slo.tpot_ns
    return is_prompt and is_steady
