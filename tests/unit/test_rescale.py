"""Parts of a workload, and faster or slower copies."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import BadRow, RequestSpec, Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.rescale import (
    mean_rate_per_s,
    speed_up,
    take_first,
    take_window,
    unlike_whole,
)


def request(
    request_id: int, arrival_ns: int, after: int | None = None, think_ns: int = 0
) -> RequestSpec:
    return RequestSpec(
        request_id=request_id,
        arrival_ns=arrival_ns,
        num_prompt_tokens=10,
        num_output_tokens=1,
        after_request_id=after,
        think_ns=think_ns,
    )


def workload(*requests: RequestSpec) -> Workload:
    bad = (BadRow(2, "zero", "{}"),)
    return Workload(
        name="w",
        requests=requests,
        hash_block_tokens=0,
        num_rows=len(requests) + 1,
        bad_rows=bad,
    )


THREE = workload(request(0, 10), request(1, 25), request(2, 40))
SESSIONS = workload(
    request(0, 10), request(1, 10, after=0, think_ns=7), request(2, 30), request(3, 30, after=2)
)


def test_take_first_keeps_the_head() -> None:
    part = take_first(THREE, 2)
    assert [r.request_id for r in part.requests] == [0, 1]
    assert part.name == "w [first 2 of 3 requests]"


def test_take_first_still_accounts_for_bad_rows() -> None:
    part = take_first(THREE, 2)
    assert len(part.requests) + len(part.bad_rows) == part.num_rows


def test_take_first_of_more_than_all_changes_nothing() -> None:
    assert take_first(THREE, 3) is THREE


@pytest.mark.parametrize("num_requests", [0, -1, True, 1.5])
def test_take_first_refuses_no_requests(num_requests: int) -> None:
    with pytest.raises(ConfigError, match="limit"):
        take_first(THREE, num_requests)


def test_take_window_counts_from_its_start() -> None:
    part = take_window(THREE, 20, 20)
    assert [(r.request_id, r.arrival_ns) for r in part.requests] == [(1, 5)]


def test_take_window_without_duration_keeps_the_rest() -> None:
    assert [r.arrival_ns for r in take_window(THREE, 25).requests] == [0, 15]


def test_take_window_keeps_or_drops_whole_sessions() -> None:
    assert [r.request_id for r in take_window(SESSIONS, 20).requests] == [2, 3]
    assert [r.request_id for r in take_window(SESSIONS, 0, 20).requests] == [0, 1]


def test_take_window_refuses_a_window_without_arrivals() -> None:
    with pytest.raises(ConfigError, match="The last one arrives at 40 ns"):
        take_window(THREE, 41)


@pytest.mark.parametrize(("start_ns", "duration_ns"), [(-1, None), (0, 0), (0, -5), (0, True)])
def test_take_window_refuses_impossible_bounds(start_ns: int, duration_ns: int | None) -> None:
    with pytest.raises(ConfigError):
        take_window(THREE, start_ns, duration_ns)


def test_speed_up_divides_arrivals_and_pauses() -> None:
    assert [(r.arrival_ns, r.think_ns) for r in speed_up(SESSIONS, 2).requests] == [
        (5, 0),
        (5, 3),
        (15, 0),
        (15, 0),
    ]


def test_speed_up_takes_the_factor_as_written() -> None:
    # in floating point, 10 / 0.1 and 3 / 0.3 are not sure to be whole
    assert [r.arrival_ns for r in speed_up(THREE, 0.1).requests] == [100, 250, 400]


@pytest.mark.parametrize("speedup", [0, -1.0, float("nan"), float("inf"), True])
def test_speed_up_refuses_what_is_no_factor(speedup: float) -> None:
    with pytest.raises(ConfigError, match="speedup"):
        speed_up(THREE, speedup)


def test_speed_up_refuses_instants_beyond_integers() -> None:
    with pytest.raises(ConfigError, match="no longer fits"):
        speed_up(workload(request(0, 10**17)), 1e-3)


def test_mean_rate_counts_gaps_between_first_turns() -> None:
    assert mean_rate_per_s(SESSIONS.requests) == pytest.approx(1 / 20e-9)


def test_mean_rate_of_one_instant_is_unknown() -> None:
    assert mean_rate_per_s(THREE.requests[:1]) is None


def test_unlike_whole_warns_of_an_idle_head() -> None:
    # BurstGPT_1.csv: 0.0343 requests/s in the head, 3.1713 in all, a factor of 92:
    # https://github.com/HPMLL/BurstGPT/issues/11
    head_gap_ns, tail_gap_ns = round(NS_PER_S / 0.0343), NS_PER_S // 100
    head = [request(i, i * head_gap_ns) for i in range(100)]
    start_ns = head[-1].arrival_ns
    # n requests in all with (n - 1) / span = 3.1713
    num_tail = round((3.1713 * start_ns / NS_PER_S - 99) / (1 - 3.1713 / 100))
    tail = [request(100 + i, start_ns + (i + 1) * tail_gap_ns) for i in range(num_tail)]
    whole = workload(*head, *tail)
    warning = unlike_whole(take_first(whole, 100), whole)
    assert warning is not None
    assert "0.0343 requests/s" in warning
    assert "3.1713: a factor of 92." in warning


def test_unlike_whole_is_silent_about_an_even_part() -> None:
    assert unlike_whole(take_first(THREE, 2), THREE) is None


def test_unlike_whole_is_silent_where_no_rate_is_known() -> None:
    assert unlike_whole(take_first(THREE, 1), THREE) is None
