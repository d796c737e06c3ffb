"""Which decode worker receives a hand-off: by load, by chance, in turn, by topology."""

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from controls import control, incoming, started
from hypothesis import given
from hypothesis import strategies as st
from plan_requests import plan_request, simulation_on

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.plan.fleet import build_fleet, build_simulation
from kvfabric.plan.request import Placement, PlanRequest, WorkerRequest
from kvfabric.plan.simulate import simulate
from kvfabric.serving.commands import Prefilled, WorkerSignal
from kvfabric.serving.decode_choice import DecodeChoice, DecodePolicy
from kvfabric.serving.least_cost import NEVER
from kvfabric.serving.router import Router, RoutingPolicy
from kvfabric.sim.run_result import RunResult

INTERVAL_NS = 50
PROMPT = 10
NEAR = ((0, 3, 3, 3), (3, 3, 3, 0))  # two prefill workers, four decode workers


def choice_of(policy: DecodePolicy, *, seed: int = 0) -> DecodeChoice:
    return DecodeChoice(policy, draw=random.Random(seed).randrange, distances=NEAR)


def chosen(
    choice: DecodeChoice,
    loads: tuple[int, ...] = (0, 0, 0, 0),
    *,
    source: int = 0,
    num_to: tuple[int, ...] = (0, 0, 0, 0),
) -> int:
    """Return the decode worker that is chosen, of four behind two prefill workers."""
    return choice.choose(PROMPT, list(loads), source, (9, 9, *num_to), 2)


def test_round_robin_does_not_look_at_loads() -> None:
    choice = choice_of(DecodePolicy.ROUND_ROBIN)
    assert [chosen(choice, (9, 0, 0, 0)) for _ in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [chosen(choice, (9, NEVER, 0, 0)) for _ in range(3)] == [2, 3, 0]


def test_chance_falls_on_all_alike_and_is_that_of_its_seed() -> None:
    runs = [[chosen(choice_of(DecodePolicy.RANDOM, seed=seed))] for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    choice = choice_of(DecodePolicy.RANDOM)
    counts = Counter(chosen(choice, (5, 0, 0, 0)) for _ in range(4_000))
    # binomial: 1,000 +- 27 each, five deviations
    assert all(abs(counts[worker] - 1_000) < 137 for worker in range(4))


def test_chance_meets_at_one_receiver_as_often_as_balls_in_bins() -> None:
    """Of 4 hand-offs under way to 4 receivers, all go apart in 4! / 4^4 = 9.4 % of the cases."""
    choice = choice_of(DecodePolicy.RANDOM, seed=3)
    apart = sum(len({chosen(choice) for _ in range(4)}) == 4 for _ in range(4_000))
    assert apart / 4_000 == pytest.approx(24 / 256, abs=0.02)


def test_chance_never_falls_on_the_lost() -> None:
    choice = choice_of(DecodePolicy.RANDOM)
    assert {chosen(choice, (NEVER, 0, NEVER, 0)) for _ in range(50)} == {1, 3}


def test_nearest_comes_first_where_nothing_is_under_way() -> None:
    choice = choice_of(DecodePolicy.TOPOLOGY_AWARE)
    assert [chosen(choice, source=source) for source in (0, 1, 0)] == [0, 3, 0]


def test_receiver_that_is_busy_receiving_is_left_for_a_far_one() -> None:
    choice = DecodeChoice(DecodePolicy.TOPOLOGY_AWARE, distances=((1, 3, 3, 3),))
    assert chosen(choice, num_to=(0, 0, 0, 0)) == 0
    assert chosen(choice, num_to=(1, 1, 0, 1)) == 2


def test_hand_offs_under_way_do_not_count_within_the_server() -> None:
    choice = choice_of(DecodePolicy.TOPOLOGY_AWARE)
    assert chosen(choice, num_to=(5, 1, 0, 1)) == 0


def test_worker_far_above_the_mean_load_is_not_filled_for_being_near() -> None:
    choice = choice_of(DecodePolicy.TOPOLOGY_AWARE)
    assert chosen(choice, (110, 100, 100, 90)) == 0  # a prompt of 10 above the mean of 100
    assert chosen(choice, (111, 100, 100, 89)) == 3  # more than that: the least of the others


def test_unknown_source_makes_all_equally_near_and_ties_go_in_turn() -> None:
    choice = choice_of(DecodePolicy.TOPOLOGY_AWARE)
    assert [chosen(choice, source=-1) for _ in range(5)] == [0, 1, 2, 3, 0]


@given(
    policy=st.sampled_from(DecodePolicy),
    loads=st.lists(st.integers(0, 50) | st.just(NEVER), min_size=4, max_size=4).filter(
        lambda loads: min(loads) < NEVER
    ),
    num_to=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    source=st.integers(-1, 1),
)
def test_every_choice_is_alive_and_follows_its_rule(
    policy: DecodePolicy, loads: list[int], num_to: list[int], source: int
) -> None:
    choice = choice_of(policy)
    for _ in range(3):
        worker = chosen(choice, tuple(loads), source=source, num_to=tuple(num_to))
        alive = [i for i, load in enumerate(loads) if load < NEVER]
        assert worker in alive
        if policy is DecodePolicy.LEAST_LOADED:
            assert loads[worker] == min(loads)
        if policy is DecodePolicy.TOPOLOGY_AWARE:
            mean = Fraction(sum(loads[i] for i in alive), len(alive))
            fit = [i for i in alive if loads[i] <= mean + PROMPT]
            assert worker in fit
            distances = NEAR[source] if source >= 0 else (1, 1, 1, 1)
            seen = [num_to[i] if distances[i] else 0 for i in range(4)]
            assert seen[worker] == min(seen[i] for i in fit)


@pytest.mark.parametrize(
    ("policy", "missing"),
    [(DecodePolicy.RANDOM, "source of chance"), (DecodePolicy.TOPOLOGY_AWARE, "distances")],
)
def test_policy_without_what_it_needs_is_refused(policy: DecodePolicy, missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        DecodeChoice(policy)


# ---------------------------------------------------------------------------- in the router


def router_of(policy: DecodePolicy) -> Router:
    return Router(
        RoutingPolicy.ROUND_ROBIN,
        num_prefill=2,
        num_decode=4,
        signal_interval_ns=INTERVAL_NS,
        decode=choice_of(policy),
    )


def test_router_sees_loads_as_old_as_before() -> None:
    """A report counts from the next interval on, what the router sent itself at once."""
    router = router_of(DecodePolicy.TOPOLOGY_AWARE)
    router.observe(2, WorkerSignal(num_prompt_tokens=500), 0)
    none = (0,) * 6
    chosen_early = [router.choose_decode(100, INTERVAL_NS - 1, 0, none) for _ in range(3)]
    assert chosen_early == [2, 2, 3]  # 200 tokens are more than a prompt above the mean of 50
    assert router.choose_decode(100, INTERVAL_NS, 0, none) != 2


@pytest.mark.parametrize("policy", DecodePolicy)
def test_router_never_chooses_a_lost_receiver(policy: DecodePolicy) -> None:
    router = router_of(policy)
    router.lose(2)
    router.lose(4)
    assert {router.choose_decode(10, 0, 0, (0,) * 6) for _ in range(40)} <= {3, 5}
    router.join(4)
    assert 4 in {router.choose_decode(10, 0, 1, (0,) * 6) for _ in range(40)}


def test_hand_offs_under_way_are_counted_by_receiver() -> None:
    coordinator = control(num_prefill=1, num_decode=2)
    book = coordinator._book
    for request_id in range(3):
        coordinator.arrive(incoming(request_id), 0)
        coordinator.on_worker_event(0, Prefilled(request_id, 20, 0), 100)
    assert book.num_to == [0, 2, 1]
    (transfer,) = started(coordinator.on_reserved(0, 150))
    coordinator.on_transferred(transfer.transfer_id, 200)
    assert book.num_to == [0, 1, 1]
    coordinator.cancel(1, 300)
    assert book.num_to == [0, 1, 0]
    coordinator.check_invariants()


# ---------------------------------------------------------------------------- whole runs


def near_and_far() -> PlanRequest:
    """Return two servers with a prefill and a decode worker each."""
    workers = WorkerRequest(num_prefill=2, num_decode=2, tp=4)
    request = plan_request(workers=workers)
    return replace(request, network=replace(request.network, placement=Placement.INTERLEAVED))


def run_with(request: PlanRequest, policy: DecodePolicy) -> tuple[RunResult, int]:
    """Return a run and the bytes it sent over the fabric."""
    request = replace(request, decode_choice=policy)
    _, network = simulation_on(replace(request, decode_choice=DecodePolicy.RANDOM), "roft", "ecmp")
    topology = build_topology("roft", 16, radix=16, nic_rate_bps=400 * 10**9)
    simulation = build_simulation(
        request, build_fleet(request), network, is_disaggregated=True, topology=topology
    )
    result = simulation.run(check=True)
    return result, int(network.carried_bytes().sum())


def test_near_receivers_spare_the_fabric() -> None:
    carried = {policy: run_with(near_and_far(), policy)[1] for policy in DecodePolicy}
    others = [num_bytes for policy, num_bytes in carried.items() if policy.value[0] != "t"]
    assert carried[DecodePolicy.TOPOLOGY_AWARE] < 0.7 * min(others)


@pytest.mark.parametrize("policy", DecodePolicy)
def test_runs_are_those_of_their_seed(policy: DecodePolicy) -> None:
    first, again = (run_with(near_and_far(), policy)[0] for _ in range(2))
    assert first.log_digest == again.log_digest
    assert len(first.records) == 40


def test_chance_is_that_of_the_seed_of_the_plan() -> None:
    request = near_and_far()
    runs = [run_with(replace(request, seed=seed), DecodePolicy.RANDOM)[0] for seed in (0, 1)]
    assert runs[0].log_digest != runs[1].log_digest


def test_simulate_knows_the_topology_of_its_fabric() -> None:
    request = replace(near_and_far(), decode_choice=DecodePolicy.TOPOLOGY_AWARE)
    run = simulate(request, fabric="roft", load_balancing="assigned")
    assert run.summary.counts.finished == 40


def test_topology_that_nobody_gave_is_told() -> None:
    request = replace(near_and_far(), decode_choice=DecodePolicy.TOPOLOGY_AWARE)
    with pytest.raises(ConfigError, match=r"router\.decode: receivers chosen by the topology"):
        simulation_on(request, "roft", "ecmp")
