"""The steady part of a closed-loop run: without its warm-up and without its tail.

A closed loop opens with every user's first request and ends with users who have nothing left to
send. In between the number of users is constant, and the figures do not depend on how long the
run lasted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.metrics.latency import e2e_ns, split_ttft, tpot_ns, ttft_ns
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.workload import Workload
from kvfabric.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class MeasurementWindow:
    """Requests that arrive in ``[start_ns, end_ns)`` count."""

    start_ns: int
    end_ns: int

    def __contains__(self, instant_ns: object) -> bool:
        """Return whether an instant lies in the window."""
        return isinstance(instant_ns, int) and self.start_ns <= instant_ns < self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Means over the requests of a window in which the number of users is constant.

    Attributes:
        num_users: users of the closed loop.
        num_requests: finished requests that arrived in the window.
        ttft_ns: mean time to first token.
        itl_ns: mean over requests of the time per token after the first.
        waiting_ns: mean part of TTFT spent waiting for prefill and for decode blocks.
        requests_per_s: ``num_users / (mean E2E + mean pause)``: Little's law, exact for a constant
            number of users and free of the edges of a window that cuts through waves of requests.
        output_tokens_per_s: the same times the mean output length.
    """

    num_users: int
    num_requests: int
    ttft_ns: float
    itl_ns: float
    waiting_ns: float
    requests_per_s: float
    output_tokens_per_s: float

    @property
    def knee_users(self) -> float:
        """Return how many users would keep this rate going if nobody waited.

        Little's law over the time that is not waiting, pauses included. Beyond the knee every
        further user adds one interval between completions to the waiting time of all.
        """
        return self.num_users - self.requests_per_s * self.waiting_ns / NS_PER_S


def closed_loop_window(
    workload: Workload, records: Sequence[RequestRecord], *, num_warm_up: int = 1
) -> MeasurementWindow:
    """Return the time in which every user of a closed loop is past warm-up and has work left.

    It begins when the last user has ended ``num_warm_up`` requests, and ends when the first user
    sends its last one.

    Args:
        workload: a closed loop: the requests of a user are chained by ``after_request_id``.
        records: of its run.
        num_warm_up: requests of each user that do not count, at least 1.

    Raises:
        ConfigError: users have too few requests for that, or some never ended.
    """
    by_id = {record.request_id: record for record in records}
    starts_ns: list[int] = []
    ends_ns: list[int] = []
    for user in _requests_by_user(workload):
        has_room = 1 <= num_warm_up < len(user) - 1 and user[-1] in by_id
        warmed_up_ns = by_id[user[num_warm_up - 1]].finished_ns if has_room else None
        if warmed_up_ns is None:
            raise _too_few(len(user), num_warm_up)
        starts_ns.append(warmed_up_ns)
        ends_ns.append(by_id[user[-1]].arrival_ns)
    if not starts_ns or max(starts_ns) >= min(ends_ns):
        raise _too_few(len(workload.requests), num_warm_up)
    return MeasurementWindow(max(starts_ns), min(ends_ns))


def _requests_by_user(workload: Workload) -> list[list[int]]:
    """Return the ids of each chain of requests, in order."""
    chains: dict[int, list[int]] = {}  # by the id of the last request so far
    for spec in workload.requests:
        chain = [] if spec.after_request_id is None else chains.pop(spec.after_request_id)
        chain.append(spec.request_id)
        chains[spec.request_id] = chain
    return list(chains.values())


def _too_few(num_requests: int, num_warm_up: int) -> ConfigError:
    return ConfigError(
        f"{num_requests} requests leave nothing to measure after {num_warm_up} of warm-up by each"
        " user",
        where="num_requests",
        hint="Generate more requests per user; a window opens once all users are past warm-up",
    )


def steady_state(
    workload: Workload, records: Sequence[RequestRecord], *, num_warm_up: int = 1
) -> SteadyState:
    """Return the means over the steady part of a closed-loop run; see ``closed_loop_window``.

    Raises:
        ConfigError: no request can be measured.
    """
    window = closed_loop_window(workload, records, num_warm_up=num_warm_up)
    inside = [r for r in records if r.arrival_ns in window and r.outcome is Outcome.FINISHED]
    if not inside:
        raise _too_few(len(workload.requests), num_warm_up)
    num_users = sum(spec.after_request_id is None for spec in workload.requests)
    think_by_id = {spec.request_id: spec.think_ns for spec in workload.requests}
    cycle_ns = _mean([(e2e_ns(r) or 0) + think_by_id[r.request_id] for r in inside])
    requests_per_s = num_users * NS_PER_S / cycle_ns
    return SteadyState(
        num_users=num_users,
        num_requests=len(inside),
        ttft_ns=_mean([ttft_ns(r) or 0 for r in inside]),
        itl_ns=_mean([ns for r in inside if (ns := tpot_ns(r)) is not None]),
        waiting_ns=_mean([_waiting_ns(r) for r in inside]),
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * _mean([r.num_output_tokens for r in inside]),
    )


def _waiting_ns(record: RequestRecord) -> int:
    split = split_ttft(record)
    return 0 if split is None else split.prefill_queue_ns + split.decode_blocks_wait_ns


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
