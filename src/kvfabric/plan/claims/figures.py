"""What one run of the sweep gave, as plain numbers that fit into a row of a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.fabric.networks.network import LinkLoad
from kvfabric.metrics.latency import TtftSplit, split_ttft, ttft_ns
from kvfabric.metrics.percentiles import nearest_rank
from kvfabric.metrics.summary import RunSummary
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.units import NS_PER_S

WIRE_GROWTH_LIMIT = 2.0
WIRE_SHARE_LIMIT = 0.3
FULL_LIMIT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The figures of one run; instants are those of measured requests only.

    Attributes:
        num_measured: requests that were measured.
        num_finished: of those, the ones that finished.
        ttft_mean_ns: mean time to first token.
        ttft_p50_ns: its median.
        ttft_p99_ns: its 99th percentile.
        requests_per_s: finished, between the first tenth and the last tenth of them: neither the
            start nor the last long answers count.
        output_tokens_per_s: the same for output tokens.
        hit_rate: prompt tokens found cached over prompt tokens.
        cold_share: measured requests of which nothing was cached.
        tail_cold_share: the same among those at or above the p99 of TTFT.
        wire_share: of the mean time to first token.
        tail_wire_share: of the mean of the requests at or above its p99.
        wire_mean_ns: mean time on the wire that TTFT contains.
        wire_p99_ns: its 99th percentile.
        wire_growth: mean wire time of the last quarter of arrivals over that of the first.
        queue_mean_ns: mean wait for prefill.
        compute_mean_ns: mean prefill time.
        decode_wait_mean_ns: mean wait for decode blocks.
        busiest_nic: channel between a GPU and a switch that was used most.
        nic_utilization: of it, from the first arrival to the last hand-off.
        busiest_link: channel between two switches that was used most; empty without any.
        link_utilization: of it.
        mean_nic_utilization: of the sending NICs of all prefill workers.
        pressure: ``stable``, ``saturated`` or ``overloaded``: by computation and KV blocks.
        waiting_share: waiting over TTFT.
        bottleneck: what is waited for most.
        unconverged_share: solves of the PFC engine without an answer within its tolerance.
        num_flows: moved by the network.
        log_digest: of everything that happened.
    """

    num_measured: int
    num_finished: int
    ttft_mean_ns: int
    ttft_p50_ns: int
    ttft_p99_ns: int
    requests_per_s: float
    output_tokens_per_s: float
    hit_rate: float
    cold_share: float
    tail_cold_share: float
    wire_share: float
    tail_wire_share: float
    wire_mean_ns: int
    wire_p99_ns: int
    wire_growth: float
    queue_mean_ns: int
    compute_mean_ns: int
    decode_wait_mean_ns: int
    busiest_nic: str
    nic_utilization: float
    busiest_link: str
    link_utilization: float
    mean_nic_utilization: float
    pressure: str
    waiting_share: float
    bottleneck: str
    unconverged_share: float | None
    num_flows: int
    log_digest: str

    @property
    def is_compute_bound(self) -> bool:
        """Return whether prefill or decode memory could not keep up: no evidence for a fabric."""
        return self.pressure == "overloaded"

    @property
    def is_network_bound(self) -> bool:
        """Return whether transfers pile up: then latencies depend on how long the load lasts."""
        grows = self.wire_growth > WIRE_GROWTH_LIMIT and self.wire_share > WIRE_SHARE_LIMIT
        return grows or max(self.nic_utilization, self.link_utilization) > FULL_LIMIT


@dataclass(frozen=True, slots=True)
class Tail:
    """What the slowest requests have in common."""

    cold_share: float
    wire_share: float


def tail_of(
    records: Sequence[RequestRecord], summary: RunSummary, cold_ids: frozenset[int]
) -> Tail:
    """Return the shares of cold prompts and of the wire among requests at or above TTFT p99."""
    limit = summary.ttft.p99_ns
    slowest = [
        record
        for record in records
        if limit is not None and (value := ttft_ns(record)) is not None and value >= limit
    ]
    cold = sum(record.request_id in cold_ids for record in slowest)
    return Tail(
        cold_share=cold / len(slowest) if slowest else 0.0,
        wire_share=wire_share(summary.ttft_split_p99),
    )


def wire_share(split: TtftSplit | None) -> float:
    """Return the share of the wire in a split."""
    return split.wire_ns / split.total_ns if split is not None and split.total_ns else 0.0


def wires_ns(records: Sequence[RequestRecord]) -> list[int]:
    """Return the wire time of each finished request, in order of arrival."""
    done = [record for record in records if record.outcome is Outcome.FINISHED]
    by_arrival = sorted(done, key=lambda record: (record.arrival_ns, record.request_id))
    splits = (split_ttft(record) for record in by_arrival)
    return [split.wire_ns for split in splits if split is not None]


def transfer_window_ns(records: Sequence[RequestRecord]) -> int:
    """Return the time from the first arrival to the end of the last hand-off."""
    ends = [r.transferred_ns for r in records if r.transferred_ns is not None]
    return max(ends) - min(r.arrival_ns for r in records) if ends else 0


def middle_rates(records: Sequence[RequestRecord]) -> tuple[float, float]:
    """Return requests and output tokens per second between the 10th and 90th % of finishes."""
    done = sorted(
        (record.finished_ns, record.request_id, record.num_output_tokens)
        for record in records
        if record.outcome is Outcome.FINISHED and record.finished_ns is not None
    )
    first, last = len(done) // 10, len(done) - 1 - len(done) // 10
    span_ns = done[last][0] - done[first][0] if last > first else 0
    if not span_ns:
        return 0.0, 0.0
    tokens = sum(row[2] for row in done[first + 1 : last + 1])
    return (last - first) * NS_PER_S / span_ns, tokens * NS_PER_S / span_ns


def growth_of(values: Sequence[int]) -> float:
    """Return the mean of the last quarter over that of the first; 1 when unknown."""
    quarter = len(values) // 4
    if not quarter or not sum(values[:quarter]):
        return 1.0
    return sum(values[-quarter:]) / sum(values[:quarter])


def percentile(values: Sequence[int], percent: float) -> int:
    """Return a nearest-rank percentile; 0 of nothing."""
    return nearest_rank(sorted(values), percent) if values else 0


def busiest(loads: Sequence[LinkLoad], *, at_gpu: bool) -> tuple[str, float]:
    """Return the most used channel that begins or ends at a GPU, or one that does neither."""
    best, share = "", 0.0
    for load in loads:
        if ("GPU" in load.name) == at_gpu and load.utilization > share:
            best, share = load.name, load.utilization
    return best, share
