"""Every request of a run as a row of CSV: outcome, instants in ns, latencies, tokens."""

import csv
import io
from collections.abc import Sequence

from kvfabric.metrics.latency import e2e_ns, split_ttft, tpot_ns, ttft_ns
from kvfabric.protocol.record import RequestRecord

_INSTANTS = (
    "arrival_ns", "routed_ns", "queued_ns", "prefill_start_ns", "prefill_end_ns", "reserved_ns",
    "transferred_ns", "first_token_ns", "finished_ns",
)  # fmt: skip
_STAGES = (
    "router_ns", "prefill_queue_ns", "prefill_compute_ns", "decode_blocks_wait_ns", "wire_ns",
    "first_decode_step_ns",
)  # fmt: skip
_COUNTS = (
    "num_prompt_tokens", "num_output_tokens", "num_cached_tokens", "num_preemptions",
    "num_restarts", "transfer_bytes", "num_fetched_tokens",
)  # fmt: skip
_LATENCIES = ("ttft_ns", "engine_ttft_ns", "tpot_ns", "e2e_ns")
COLUMNS = ("request_id", "outcome", *_INSTANTS, *_LATENCIES, *_STAGES, *_COUNTS)


def requests_csv(records: Sequence[RequestRecord], *, decode_first: bool = False) -> str:
    """Return the rows under a header; empty cells where a request never got there.

    ``decode_first`` as in ``metrics.latency.split_ttft``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(record, decode_first=decode_first) for record in records)
    return text.getvalue()


def _row(record: RequestRecord, *, decode_first: bool) -> list[object]:
    split = split_ttft(record, decode_first=decode_first)
    stages = ("",) * len(_STAGES) if split is None else split.as_parts_ns()
    return [
        record.request_id,
        record.outcome.value,
        *(getattr(record, name) for name in _INSTANTS),
        ttft_ns(record),
        _engine_ttft_ns(record),
        tpot_ns(record),
        e2e_ns(record),
        *stages,
        *(getattr(record, name) for name in _COUNTS),
    ]


def _engine_ttft_ns(record: RequestRecord) -> int | None:
    if record.first_token_ns is None or record.queued_ns is None:
        return None
    return record.first_token_ns - record.queued_ns
