"""Whether a fleet kept up with its load: judged from the requests, not from a utilization."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvfabric.metrics.latency import split_ttft, ttft_ns
from kvfabric.protocol.record import Outcome, RequestRecord

GROWTH_LIMIT = 3.0
WAITING_LIMIT = 0.5
LOST_LIMIT = 0.01


_GIVEN_UP = frozenset({Outcome.ABORTED, Outcome.UNFINISHED})


class Pressure(Enum):
    """How a fleet stands under its load."""

    STABLE = "stable"
    SATURATED = "saturated"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    """The judgement and what it rests on.

    Attributes:
        pressure: ``overloaded`` when waiting makes up more than half of TTFT and the TTFT of the
            last quarter of arrivals is more than three times that of the first quarter, or when
            more than 1 % of the requests were given up;
            ``saturated`` when waiting makes up more than half of TTFT without such growth.
        bottleneck: the stage that is waited for most: ``prefill`` or ``decode blocks``.
        waiting_share: waiting over TTFT, summed over finished requests.
        lost_share: requests aborted or left unfinished, over those that arrived.
        growth: mean TTFT of the last quarter of arrivals over that of the first; 1 when unknown.
    """

    pressure: Pressure
    bottleneck: str
    waiting_share: float
    growth: float
    lost_share: float = 0.0


def judge_load(records: Sequence[RequestRecord]) -> LoadState:
    """Return how the fleet stood, from the records of one run."""
    done = [record for record in records if record.outcome is Outcome.FINISHED]
    splits = [split for record in done if (split := split_ttft(record)) is not None]
    total = sum(split.total_ns for split in splits)
    queue = sum(split.prefill_queue_ns for split in splits)
    blocks = sum(split.decode_blocks_wait_ns for split in splits)
    share = (queue + blocks) / total if total else 0.0
    given_up = sum(record.outcome in _GIVEN_UP for record in records)
    lost = given_up / len(records) if records else 0.0
    growth = _growth(sorted(done, key=lambda record: (record.arrival_ns, record.request_id)))
    pressure = Pressure.STABLE
    if share > WAITING_LIMIT:
        pressure = Pressure.OVERLOADED if growth > GROWTH_LIMIT else Pressure.SATURATED
    return LoadState(
        pressure=Pressure.OVERLOADED if lost > LOST_LIMIT else pressure,
        bottleneck="prefill" if queue >= blocks else "decode blocks",
        waiting_share=share,
        lost_share=lost,
        growth=growth,
    )


def _growth(by_arrival: Sequence[RequestRecord]) -> float:
    quarter = len(by_arrival) // 4
    first = _mean_ttft(by_arrival[:quarter])
    last = _mean_ttft(by_arrival[len(by_arrival) - quarter :])
    return last / first if first else 1.0


def _mean_ttft(records: Sequence[RequestRecord]) -> float:
    known = [value for record in records if (value := ttft_ns(record)) is not None]
    return sum(known) / len(known) if known else 0.0
