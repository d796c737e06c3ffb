"""Whether a fleet kept up with its load: judged from the requests, not from a utilization.

Open loop: requests come whatever happens, so a fleet that serves fewer than arrive is overloaded
and its queue grows as long as the load lasts. Closed loop: a fixed number of users waits for
answers, so the queue cannot outgrow them; such a fleet can only be saturated, where one more user
raises the waiting of all and not the throughput.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvfabric.metrics.latency import TtftSplit, split_ttft, ttft_ns
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.units import NS_PER_S

GROWTH_LIMIT = 3.0
WAITING_LIMIT = 0.5
LOST_LIMIT = 0.01
WAITING_USERS_LIMIT = 0.05

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
            A closed loop is never ``overloaded``; it is ``saturated`` when more than 5 % of its
            users wait for a place at any time, or more than 1 % of the requests were given up.
        bottleneck: the stage that is waited for most: ``prefill`` or ``decode blocks``.
        waiting_share: waiting over TTFT, summed over finished requests.
        lost_share: requests aborted or left unfinished, over those that arrived.
        growth: mean TTFT of the last quarter of arrivals over that of the first; 1 when unknown.
        arrivals_per_s: requests per second from the first to the last arrival; 0 when unknown.
        queue_growth_per_s: least-squares slope of the requests without a first token, as each
            arrival meets them; arrival rate minus service rate of a fleet that is overloaded.
        num_users: users of a closed loop, or None.
        knee_users: users of a closed loop who do not wait, on average over the middle half of the
            arrivals; so many would keep its throughput up if nobody waited.
    """

    pressure: Pressure
    bottleneck: str
    waiting_share: float
    growth: float
    lost_share: float = 0.0
    arrivals_per_s: float = 0.0
    queue_growth_per_s: float = 0.0
    num_users: int | None = None
    knee_users: float | None = None

    @property
    def unserved_share(self) -> float:
        """Return the share of arrivals that the queue grows by: 0 where the fleet keeps up."""
        return self.queue_growth_per_s / self.arrivals_per_s if self.arrivals_per_s else 0.0


def judge_load(
    records: Sequence[RequestRecord],
    *,
    num_users: int | None = None,
    decode_first: bool = False,
) -> LoadState:
    """Return how the fleet stood, from the records of one run.

    Args:
        records: of all requests.
        num_users: users of a closed loop; None when arrivals do not wait for answers.
        decode_first: decode workers were asked for their blocks before the prefill.
    """
    done = [record for record in records if record.outcome is Outcome.FINISHED]
    splits = _splits(done, decode_first=decode_first)
    total = sum(split.total_ns for split in splits)
    queue = sum(split.prefill_queue_ns for split in splits)
    blocks = sum(split.decode_blocks_wait_ns for split in splits)
    share = (queue + blocks) / total if total else 0.0
    given_up = sum(record.outcome in _GIVEN_UP for record in records)
    lost = given_up / len(records) if records else 0.0
    by_arrival = sorted(done, key=lambda record: (record.arrival_ns, record.request_id))
    growth = _growth(by_arrival)
    knee = (
        None
        if num_users is None
        else max(0.0, num_users - _mean_waiting(by_arrival, decode_first=decode_first))
    )
    if num_users is None or knee is None:
        pressure = _open_pressure(share, growth, lost)
    else:
        pressure = _closed_pressure(num_users, knee, lost)
    return LoadState(
        pressure=pressure,
        bottleneck="prefill" if queue >= blocks else "decode blocks",
        waiting_share=share,
        lost_share=lost,
        growth=growth,
        arrivals_per_s=_per_s(by_arrival),
        queue_growth_per_s=_queue_growth_per_s(by_arrival),
        num_users=num_users,
        knee_users=knee,
    )


def _open_pressure(share: float, growth: float, lost: float) -> Pressure:
    if lost > LOST_LIMIT or (share > WAITING_LIMIT and growth > GROWTH_LIMIT):
        return Pressure.OVERLOADED
    return Pressure.SATURATED if share > WAITING_LIMIT else Pressure.STABLE


def _closed_pressure(num_users: int, knee_users: float, lost: float) -> Pressure:
    is_past_knee = knee_users < (1 - WAITING_USERS_LIMIT) * num_users
    return Pressure.SATURATED if is_past_knee or lost > LOST_LIMIT else Pressure.STABLE


def _growth(by_arrival: Sequence[RequestRecord]) -> float:
    quarter = len(by_arrival) // 4
    first = _mean_ttft(by_arrival[:quarter])
    last = _mean_ttft(by_arrival[len(by_arrival) - quarter :])
    return last / first if first else 1.0


def _mean_ttft(records: Sequence[RequestRecord]) -> float:
    known = [value for record in records if (value := ttft_ns(record)) is not None]
    return sum(known) / len(known) if known else 0.0


def _per_s(by_arrival: Sequence[RequestRecord]) -> float:
    """Return the rate of arrivals between the first and the last; 0 without time between them."""
    span_ns = by_arrival[-1].arrival_ns - by_arrival[0].arrival_ns if by_arrival else 0
    return (len(by_arrival) - 1) * NS_PER_S / span_ns if span_ns else 0.0


def _queue_growth_per_s(by_arrival: Sequence[RequestRecord]) -> float:
    """Return the least-squares slope of how many wait for a first token, itself included."""
    firsts_ns = sorted(r.first_token_ns for r in by_arrival if r.first_token_ns is not None)
    times_ns: list[int] = []
    waiting: list[int] = []
    num_served = 0
    for num_arrived, record in enumerate(by_arrival, start=1):
        while num_served < len(firsts_ns) and firsts_ns[num_served] <= record.arrival_ns:
            num_served += 1
        times_ns.append(record.arrival_ns)
        waiting.append(num_arrived - num_served)
    return _slope(times_ns, waiting) * NS_PER_S


def _slope(xs: Sequence[int], ys: Sequence[int]) -> float:
    """Return the least-squares slope; 0 where all points stand above each other."""
    if not xs:
        return 0.0
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    shared = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return shared / spread if spread else 0.0


def _splits(records: Sequence[RequestRecord], *, decode_first: bool) -> list[TtftSplit]:
    found = (split_ttft(record, decode_first=decode_first) for record in records)
    return [split for split in found if split is not None]


def _mean_waiting(by_arrival: Sequence[RequestRecord], *, decode_first: bool) -> float:
    """Return how many requests wait at a time: Little's law over the middle half of arrivals."""
    quarter = len(by_arrival) // 4
    middle = by_arrival[quarter : len(by_arrival) - quarter]
    splits = _splits(middle, decode_first=decode_first)
    waiting_ns = sum(split.prefill_queue_ns + split.decode_blocks_wait_ns for split in splits)
    return _per_s(middle) * waiting_ns / (len(splits) * NS_PER_S) if splits else 0.0
