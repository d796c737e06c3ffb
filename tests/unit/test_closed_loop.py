"""Closed loops: who sends when, what a window measures, and verdicts where the answer is known."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from clusters import Cluster, ConstantNetwork, build, workload_of

from kvfabric.errors import ConfigError
from kvfabric.plan.load_state import LoadState, Pressure, judge_load
from kvfabric.plan.steady_state import MeasurementWindow, closed_loop_window, steady_state
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.arrivals import (
    ClosedLoop,
    ConstantArrivals,
    ConstantThink,
    PoissonArrivals,
)
from kvfabric.workload.generator import GeneratorConfig, generate
from kvfabric.workload.lengths import ConstantLength

# One server: one request at a time, which is a single step of 16 prompt tokens.
SERVER = Cluster(max_num_seqs=1, prefix_caching=False)
SERVICE_NS = 1000 + 7 * 16 + 16 // 16
CONFIG = GeneratorConfig(
    arrivals=ClosedLoop(4),
    prompt=ConstantLength(16),
    output=ConstantLength(1),
    num_requests=40,
)


def run(workload: Workload, cluster: Cluster = SERVER) -> Sequence[RequestRecord]:
    return build(cluster, workload, ConstantNetwork()).run(check=True).records


def looped(num_users: int, *, think_ns: int = 0, num_rounds: int = 10) -> Workload:
    config = replace(
        CONFIG,
        arrivals=ClosedLoop(num_users),
        think=ConstantThink(think_ns),
        num_requests=num_users * num_rounds,
    )
    return generate(config, seed=1)


# ---------------------------------------------------------------------- who sends when


def test_ramp_begins_users_evenly() -> None:
    config = replace(CONFIG, arrivals=ClosedLoop(4, ramp_up_ns=1000))
    firsts = [r for r in generate(config, seed=1).requests if r.after_request_id is None]
    assert [r.arrival_ns for r in firsts] == [0, 250, 500, 750]


@pytest.mark.parametrize("ramp_up_ns", [-1, True, 1.5, 10**18])
def test_ramp_is_a_whole_time(ramp_up_ns: int) -> None:
    with pytest.raises(ConfigError, match="ramp_up_ns"):
        ClosedLoop(4, ramp_up_ns=ramp_up_ns)


@pytest.mark.parametrize(("ignore_eos", "expected"), [(False, None), (True, 7)])
def test_clients_of_fixed_lengths_ask_for_them(*, ignore_eos: bool, expected: int | None) -> None:
    config = replace(CONFIG, output=ConstantLength(7), ignore_eos=ignore_eos)
    assert {r.max_tokens for r in generate(config, seed=1).requests} == {expected}


def test_user_sends_a_pause_after_the_answer() -> None:
    workload = looped(3, think_ns=700)
    by_id = {record.request_id: record for record in run(workload)}
    for spec in workload.requests:
        if spec.after_request_id is not None:
            before_ns = by_id[spec.after_request_id].finished_ns
            assert before_ns is not None
            assert by_id[spec.request_id].arrival_ns == before_ns + 700


def test_no_more_requests_are_open_than_users() -> None:
    records = run(looped(3), Cluster(prefix_caching=False))
    ends = [(r.finished_ns or 0, -1) for r in records] + [(r.arrival_ns, 1) for r in records]
    num_open = most = 0
    for _, change in sorted(ends):
        num_open += change
        most = max(most, num_open)
    assert most == 3


def test_follow_up_turns_hit_everything_said_before() -> None:
    config = replace(
        CONFIG,
        arrivals=ClosedLoop(2),
        prompt=ConstantLength(24),
        output=ConstantLength(8),
        turns=ConstantLength(3),
        num_requests=6,
        hash_block_tokens=4,
    )
    workload = generate(config, seed=1)
    cluster = Cluster(hash_block_tokens=4, block_size=4, num_blocks=200)
    prompts = [spec.num_prompt_tokens for spec in workload.requests]
    assert prompts == [24, 24, 56, 56, 88, 88]
    for spec, record in zip(workload.requests, run(workload, cluster), strict=True):
        said = 0 if spec.after_request_id is None else spec.num_prompt_tokens - 24
        # the last token of an answer is never computed, so its block is not full in the cache
        assert record.num_cached_tokens == max(0, said - 4)


# ---------------------------------------------------------------------- what a window measures


def test_window_opens_after_the_last_warm_up_and_closes_at_the_first_last_request() -> None:
    workload = looped(3, num_rounds=5)
    records = run(workload)
    window = closed_loop_window(workload, records, num_warm_up=2)
    assert window.start_ns == max(r.finished_ns or 0 for r in records if r.request_id < 6)
    assert window.end_ns == min(r.arrival_ns for r in records if r.request_id >= 12)


def test_window_holds_its_start_and_not_its_end() -> None:
    window = MeasurementWindow(10, 20)
    assert [instant in window for instant in (9, 10, 19, 20)] == [False, True, True, False]


@pytest.mark.parametrize(("num_rounds", "num_warm_up"), [(10, 0), (10, 9), (2, 1), (1, 1)])
def test_window_without_requests_is_refused(num_rounds: int, num_warm_up: int) -> None:
    workload = looped(2, num_rounds=num_rounds)
    with pytest.raises(ConfigError, match="nothing to measure"):
        steady_state(workload, run(workload), num_warm_up=num_warm_up)


# ------------------------------------------------------------- one server, constant service
# N users without pauses keep it busy: 1 / D requests/s, each waits for the N - 1 before it.


@pytest.mark.parametrize("num_users", [1, 2, 5, 9])
def test_one_server_serves_one_request_per_service_time(num_users: int) -> None:
    workload = looped(num_users)
    steady = steady_state(workload, run(workload))
    assert steady.requests_per_s == pytest.approx(NS_PER_S / SERVICE_NS)
    assert steady.ttft_ns == pytest.approx(num_users * SERVICE_NS)
    assert steady.waiting_ns == pytest.approx((num_users - 1) * SERVICE_NS)
    assert steady.knee_users == pytest.approx(1)


def test_pauses_move_the_knee_to_pause_and_service_over_service() -> None:
    # Asymptotic bounds of a closed network: min(N / (D + Z), 1 / D) with the knee at (D + Z) / D
    workload = looped(9, think_ns=3 * SERVICE_NS)
    steady = steady_state(workload, run(workload), num_warm_up=3)
    assert steady.requests_per_s == pytest.approx(NS_PER_S / SERVICE_NS)
    assert steady.knee_users == pytest.approx(4)


def test_below_the_knee_nobody_waits() -> None:
    workload = looped(2, think_ns=9 * SERVICE_NS)
    steady = steady_state(workload, run(workload), num_warm_up=3)
    assert steady.waiting_ns < 0.01 * SERVICE_NS
    assert steady.requests_per_s == pytest.approx(2 * NS_PER_S / (10 * SERVICE_NS), rel=0.01)


@pytest.mark.parametrize(
    ("num_users", "expected"),
    [(1, Pressure.STABLE), (2, Pressure.SATURATED), (9, Pressure.SATURATED)],
)
def test_closed_loop_is_saturated_past_its_knee(num_users: int, expected: Pressure) -> None:
    state = judge_load(run(looped(num_users)), num_users=num_users)
    assert (state.pressure, state.num_users) == (expected, num_users)
    assert state.knee_users == pytest.approx(1, abs=0.2)


def test_closed_loop_that_begins_at_once_is_not_overloaded() -> None:
    # the first quarter of arrivals waits less than the last: an open load would be overloaded
    records = run(looped(8, num_rounds=2))
    assert judge_load(records).pressure is Pressure.OVERLOADED
    assert judge_load(records, num_users=8).pressure is Pressure.SATURATED


# ------------------------------------------------------------- open loop, utilization known


def judge_open(utilization: float, *, is_random: bool, num_requests: int = 2000) -> LoadState:
    rate_per_s = utilization * NS_PER_S / SERVICE_NS
    arrivals = (PoissonArrivals if is_random else ConstantArrivals)(rate_per_s)
    config = replace(CONFIG, arrivals=arrivals, num_requests=num_requests)
    workload = generate(config, seed=3)
    return judge_load(build(SERVER, workload, ConstantNetwork()).run().records)


def test_constant_arrivals_below_capacity_never_wait() -> None:
    state = judge_open(0.9, is_random=False)
    assert (state.pressure, state.waiting_share) == (Pressure.STABLE, 0.0)
    assert state.queue_growth_per_s == pytest.approx(0.0, abs=1e-6 * state.arrivals_per_s)


@pytest.mark.parametrize("utilization", [1.25, 2.0])
def test_queue_grows_by_what_is_not_served(utilization: float) -> None:
    state = judge_open(utilization, is_random=False)
    assert state.pressure is Pressure.OVERLOADED
    excess_per_s = (utilization - 1) * NS_PER_S / SERVICE_NS
    assert state.queue_growth_per_s == pytest.approx(excess_per_s, rel=0.01)
    assert state.unserved_share == pytest.approx(1 - 1 / utilization, rel=0.01)


@pytest.mark.parametrize(
    ("utilization", "expected"),
    [(0.3, Pressure.STABLE), (0.9, Pressure.SATURATED), (1.25, Pressure.OVERLOADED)],
)
def test_poisson_arrivals_at_one_server(utilization: float, expected: Pressure) -> None:
    state = judge_open(utilization, is_random=True)
    assert state.pressure is expected
    if utilization < 1:
        # M/D/1: mean wait = rho D / (2 (1 - rho)) (Pollaczek and Khinchine)
        wait = utilization / (2 * (1 - utilization))
        assert state.waiting_share == pytest.approx(wait / (wait + 1), rel=0.1)
        assert abs(state.unserved_share) < 0.01
    else:
        assert state.unserved_share == pytest.approx(1 - 1 / utilization, rel=0.15)


def test_nothing_to_judge_has_no_rates() -> None:
    state = judge_load([])
    assert (state.arrivals_per_s, state.queue_growth_per_s, state.unserved_share) == (0, 0, 0)
    assert judge_load([], num_users=3).pressure is Pressure.STABLE


def test_requests_given_up_saturate_a_closed_loop() -> None:
    spec = RequestSpec(request_id=0, arrival_ns=0, num_prompt_tokens=16, num_output_tokens=9)
    simulation = build(SERVER, workload_of([spec]), ConstantNetwork())
    simulation.cancel_at(0, 5)
    assert judge_load(simulation.run().records, num_users=1).pressure is Pressure.SATURATED
