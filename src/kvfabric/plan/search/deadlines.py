"""Between which instants a request must be served if it is to meet the targets.

A turn arrives when the one before has been answered, so that its latest instants follow from the
targets of all turns before. A turn behind one that misses them has no latest instant, which is why
bounds leave out whole sessions (``without_worst``).
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvfabric.metrics.latency import Slo
from kvfabric.protocol.workload import RequestSpec, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """When a request can begin, and when it must be done if it and all before it meet the targets.

    Attributes:
        spec: the request.
        session: number of its session; a request on its own is one.
        earliest_ns: it arrives no sooner.
        first_token_ns: latest first token; None: no limit.
        finish_ns: latest end; None: no limit.
    """

    spec: RequestSpec
    session: int
    earliest_ns: int
    first_token_ns: int | None
    finish_ns: int | None


def due_times(workload: Workload, slo: Slo) -> tuple[Due, ...]:
    """Return the limits of every request, in the order of the workload."""
    found: dict[int, Due] = {}
    num_sessions = 0
    for spec in workload.requests:
        before = None if spec.after_request_id is None else found[spec.after_request_id]
        latest: int | None = spec.arrival_ns
        if before is None:
            earliest = spec.arrival_ns
            session, num_sessions = num_sessions, num_sessions + 1
        else:
            earliest = before.earliest_ns + spec.think_ns
            latest = None if before.finish_ns is None else before.finish_ns + spec.think_ns
            session = before.session
        found[spec.request_id] = _due(spec, slo, session, earliest, latest)
    return tuple(found.values())


def _due(spec: RequestSpec, slo: Slo, session: int, earliest_ns: int, latest_ns: int | None) -> Due:
    first = finish = None
    if latest_ns is not None and slo.ttft_ns is not None:
        first = latest_ns + slo.ttft_ns
        num_more = spec.num_output_tokens - 1
        if num_more == 0:
            finish = first
        elif slo.tpot_ns is not None:
            finish = first + num_more * slo.tpot_ns
    return Due(
        spec=spec,
        session=session,
        earliest_ns=earliest_ns,
        first_token_ns=first,
        finish_ns=finish,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """Work that must be done between two instants; ``cost`` in any unit."""

    session: int
    start_ns: int
    end_ns: int
    cost: float


def most_at_once(jobs: Iterable[Job], num_spared: int) -> float:
    """Return how much work per ns some stretch of time asks for: at least so many servers.

    For stretches of neighbouring jobs in order of ``start_ns``: what they cost in all, without the
    ``num_spared`` costliest sessions, over the time from the first start to the last end.
    """
    ordered = sorted(jobs, key=lambda job: (job.start_ns, job.end_ns))
    most = 0.0
    length = len(ordered)
    while length > num_spared:
        step = max(1, length // 2)
        for first in range(0, len(ordered) - length + 1, step):
            most = max(most, _rate(ordered[first : first + length], num_spared))
        length //= 2
    return most


def _rate(jobs: Sequence[Job], num_spared: int) -> float:
    by_session: dict[int, float] = {}
    for job in jobs:
        by_session[job.session] = by_session.get(job.session, 0.0) + job.cost
    cost = sum(by_session.values()) - sum(heapq.nlargest(num_spared, by_session.values()))
    span_ns = max(job.end_ns for job in jobs) - jobs[0].start_ns
    return cost / max(1, span_ns)
