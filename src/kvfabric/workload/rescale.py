"""Parts of a workload and faster or slower copies of it: pure functions, nothing is sampled."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.limits import MAX_NUM_REQUESTS, require_int, require_real

_MAX_INSTANT_NS = 2**62
# The share by which the rate of a part may differ from that of the whole before it is told.
_UNLIKE_FACTOR = 2.0


def take_first(workload: Workload, num_requests: int) -> Workload:
    """Return the workload cut to its first ``num_requests`` requests."""
    require_int(num_requests, "limit", low=1, high=MAX_NUM_REQUESTS)
    if num_requests >= len(workload.requests):
        return workload
    kept = workload.requests[:num_requests]
    return _with_requests(
        workload, kept, f"first {num_requests} of {len(workload.requests)} requests"
    )


def take_window(workload: Workload, start_ns: int, duration_ns: int | None = None) -> Workload:
    """Return the sessions that begin in ``[start_ns, start_ns + duration_ns)``, counted from there.

    A follow-up turn stays if its first turn does.

    Raises:
        ConfigError: no request arrives in the window.
    """
    require_int(start_ns, "start_ns", low=0, high=_MAX_INSTANT_NS)
    end_ns = _MAX_INSTANT_NS
    if duration_ns is not None:
        require_int(duration_ns, "duration_ns", low=1, high=_MAX_INSTANT_NS)
        end_ns = start_ns + duration_ns
    kept_ids: set[int] = set()
    kept: list[RequestSpec] = []
    for request in workload.requests:
        if request.after_request_id is None:
            is_kept = start_ns <= request.arrival_ns < end_ns
        else:
            is_kept = request.after_request_id in kept_ids
        if is_kept:
            kept_ids.add(request.request_id)
            kept.append(replace(request, arrival_ns=max(0, request.arrival_ns - start_ns)))
    if not kept:
        raise ConfigError(
            f"no request arrives from {start_ns} ns to {end_ns} ns",
            where=workload.name,
            hint=f"The last one arrives at {_last_arrival_ns(workload.requests)} ns",
        )
    return _with_requests(workload, kept, f"from {start_ns} ns: {len(kept)} requests")


def speed_up(workload: Workload, speedup: float) -> Workload:
    """Return the workload with arrivals and pauses divided by ``speedup``, rounded down.

    2 doubles the load, 0.5 halves it. The order of requests never changes.
    """
    require_real(speedup, "speedup", low=1e-6, high=1e6)
    factor = Fraction(str(speedup))  # as it was written: 0.1 is one tenth
    if _last_arrival_ns(workload.requests) // factor > _MAX_INSTANT_NS:
        raise ConfigError(
            f"read {speedup!r}: the last arrival no longer fits",
            where="speedup",
            hint="Write a larger number",
        )
    requests = [
        replace(
            request,
            arrival_ns=int(request.arrival_ns // factor),
            think_ns=int(request.think_ns // factor),
        )
        for request in workload.requests
    ]
    return _with_requests(workload, requests, f"speed x{speedup:g}")


def mean_rate_per_s(requests: Sequence[RequestSpec]) -> float | None:
    """Return first turns per second from the first to the last arrival; None if that is no time."""
    arrivals_ns = [r.arrival_ns for r in requests if r.after_request_id is None]
    span_ns = max(arrivals_ns, default=0) - min(arrivals_ns, default=0)
    return None if span_ns == 0 else (len(arrivals_ns) - 1) * NS_PER_S / span_ns


def unlike_whole(part: Workload, whole: Workload) -> str | None:
    """Return a warning if a part has a mean rate quite unlike that of its whole, else None.

    The head of a long trace can be nearly idle: a comparison on it then shows no differences.
    """
    part_rate, whole_rate = mean_rate_per_s(part.requests), mean_rate_per_s(whole.requests)
    if part_rate is None or whole_rate is None:
        return None
    factor = max(part_rate / whole_rate, whole_rate / part_rate)
    if factor <= _UNLIKE_FACTOR:
        return None
    return (
        f"{part.name}: {part_rate:.4f} requests/s where all of {whole.name} has "
        f"{whole_rate:.4f}: a factor of {factor:.1f}; choose another window"
    )


def _last_arrival_ns(requests: Sequence[RequestSpec]) -> int:
    return max((request.arrival_ns for request in requests), default=0)


def _with_requests(workload: Workload, requests: Sequence[RequestSpec], note: str) -> Workload:
    """Return the workload with other requests; the bad rows of its file stay listed."""
    return replace(
        workload,
        name=f"{workload.name} [{note}]",
        requests=tuple(requests),
        num_rows=len(requests) + len(workload.bad_rows),
    )
