"""Generated workloads: arrivals, lengths, prefixes, sessions, closed loops, and refusals."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.arrivals import (
    Arrivals,
    ClosedLoop,
    ConstantArrivals,
    ConstantThink,
    ExponentialThink,
    GammaArrivals,
    PoissonArrivals,
    Think,
)
from kvfabric.workload.generator import GeneratorConfig, SharedPrefixes, generate
from kvfabric.workload.lengths import (
    ConstantLength,
    EmpiricalLength,
    Length,
    LognormalLength,
    UniformLength,
)

PLAIN = GeneratorConfig(
    arrivals=PoissonArrivals(5.0),
    prompt=ConstantLength(100),
    output=ConstantLength(10),
    num_requests=10_000,
)


def gaps_s(workload: Workload) -> list[float]:
    instants = [0, *(r.arrival_ns for r in workload.requests)]
    return [(end - start) / NS_PER_S for start, end in itertools.pairwise(instants)]


def prompts_of(length: Length, count: int = 10_000) -> list[int]:
    config = replace(PLAIN, prompt=length, num_requests=count)
    return [r.num_prompt_tokens for r in generate(config, seed=2).requests]


def test_poisson_gaps_have_the_stated_mean_and_spread() -> None:
    # mean and standard deviation of an exponential are both 1 / rate; 10,000 samples: +- 1 % (1 s)
    gaps = gaps_s(generate(PLAIN, seed=1))
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.04)
    assert np.std(gaps) == pytest.approx(0.2, rel=0.06)


def test_poisson_counts_per_second_have_the_variance_of_their_mean() -> None:
    per_second = Counter(r.arrival_ns // NS_PER_S for r in generate(PLAIN, seed=1).requests)
    counts = [per_second[second] for second in range(1800)]
    assert np.mean(counts) == pytest.approx(5.0, rel=0.05)
    assert np.var(counts) / np.mean(counts) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_gaps_have_the_stated_mean_and_variation(cv: float) -> None:
    config = replace(PLAIN, arrivals=GammaArrivals(5.0, cv))
    gaps = gaps_s(generate(config, seed=1))
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.05 * max(1.0, cv))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.1)


def test_constant_arrivals_are_evenly_spaced_from_zero() -> None:
    config = replace(PLAIN, arrivals=ConstantArrivals(3.0), num_requests=4)
    arrivals_ns = [r.arrival_ns for r in generate(config, seed=1).requests]
    assert arrivals_ns == [0, 333_333_333, 666_666_667, 1_000_000_000]


def test_duration_ends_arrivals_before_it() -> None:
    config = replace(PLAIN, arrivals=ConstantArrivals(4.0), num_requests=None, duration_ns=NS_PER_S)
    assert len(generate(config, seed=1).requests) == 4


@pytest.mark.parametrize("arrivals", [PoissonArrivals(500.0), GammaArrivals(500.0, 2.0)])
def test_duration_gives_the_same_arrivals_as_a_count(arrivals: Arrivals) -> None:
    timed = replace(PLAIN, arrivals=arrivals, num_requests=None, duration_ns=10 * NS_PER_S)
    by_duration = generate(timed, seed=4).requests
    counted = replace(PLAIN, arrivals=arrivals, num_requests=len(by_duration))
    assert by_duration == generate(counted, seed=4).requests
    assert len(by_duration) == pytest.approx(5000, rel=0.15)
    assert by_duration[-1].arrival_ns < 10 * NS_PER_S


def test_duration_without_any_arrival_is_refused() -> None:
    config = replace(PLAIN, num_requests=None, duration_ns=1)
    with pytest.raises(ConfigError, match="0 sessions"):
        generate(config, seed=1)


def test_constant_length_is_constant() -> None:
    assert set(prompts_of(ConstantLength(7), 100)) == {7}


def test_uniform_length_covers_its_range_alike() -> None:
    counts = Counter(prompts_of(UniformLength(3, 6)))
    assert sorted(counts) == [3, 4, 5, 6]
    assert all(count == pytest.approx(2500, rel=0.1) for count in counts.values())


def test_lognormal_length_has_the_stated_median_and_spread() -> None:
    logs = np.log(prompts_of(LognormalLength(1000, 0.8)))
    assert np.median(logs) == pytest.approx(np.log(1000), abs=0.05)
    assert np.std(logs) == pytest.approx(0.8, rel=0.05)


def test_lognormal_length_is_clipped() -> None:
    lengths = prompts_of(LognormalLength(1000, 2.0, minimum=500, maximum=2000))
    assert (min(lengths), max(lengths)) == (500, 2000)


def test_empirical_length_draws_only_listed_values() -> None:
    counts = Counter(prompts_of(EmpiricalLength((5, 5, 9))))
    assert sorted(counts) == [5, 9]
    assert counts[5] / 10_000 == pytest.approx(2 / 3, rel=0.05)


def test_plain_requests_have_no_hashes() -> None:
    workload = generate(replace(PLAIN, num_requests=3), seed=1)
    assert workload.hash_block_tokens == 0
    assert {r.block_hashes for r in workload.requests} == {()}


def test_shared_prefix_adds_its_tokens_and_full_blocks() -> None:
    # 40 tokens of system prompt: 2 full blocks of 16 are shared, the third is each session's own
    config = replace(PLAIN, prefixes=SharedPrefixes(1, 40), num_requests=5)
    workload = generate(config, seed=1)
    hashes = [r.block_hashes for r in workload.requests]
    assert workload.hash_block_tokens == 16
    assert {r.num_prompt_tokens for r in workload.requests} == {140}
    assert {h[:2] for h in hashes} == {(0, 1)}
    assert {len(h) for h in hashes} == {150 // 16}
    assert len({hash_id for h in hashes for hash_id in h}) == 2 + 5 * 7


def test_prefix_popularity_follows_zipf() -> None:
    config = replace(PLAIN, prefixes=SharedPrefixes(3, 16, zipf_exponent=1.0))
    counts = Counter(r.block_hashes[0] for r in generate(config, seed=1).requests)
    # weights 1, 1/2, 1/3 of 11/6
    assert counts[0] / 10_000 == pytest.approx(6 / 11, rel=0.05)
    assert counts[1] / 10_000 == pytest.approx(3 / 11, rel=0.05)
    assert counts[2] / 10_000 == pytest.approx(2 / 11, rel=0.07)


def test_prefix_shorter_than_a_block_shares_nothing() -> None:
    config = replace(PLAIN, prefixes=SharedPrefixes(1, 15), num_requests=4)
    hashes = [r.block_hashes for r in generate(config, seed=1).requests]
    assert len({hash_id for h in hashes for hash_id in h}) == sum(len(h) for h in hashes)


def test_session_prompt_holds_everything_said_before() -> None:
    config = replace(
        PLAIN,
        turns=ConstantLength(3),
        prefixes=SharedPrefixes(1, 40),
        think=ConstantThink(9),
        num_requests=6,
    )
    requests = generate(config, seed=1).requests
    assert [r.num_prompt_tokens for r in requests] == [140, 250, 360] * 2
    assert [r.after_request_id for r in requests] == [None, 0, 1, None, 3, 4]
    assert [r.think_ns for r in requests] == [0, 9, 9] * 2


def test_session_turns_extend_the_blocks_of_the_turn_before() -> None:
    config = replace(PLAIN, turns=ConstantLength(3), num_requests=3)
    first, second, third = (r.block_hashes for r in generate(config, seed=1).requests)
    assert (len(first), len(second), len(third)) == (110 // 16, 220 // 16, 330 // 16)
    assert second[: len(first)] == first
    assert third[: len(second)] == second


def test_num_requests_cuts_the_last_session() -> None:
    config = replace(PLAIN, turns=ConstantLength(4), num_requests=10)
    requests = generate(config, seed=1).requests
    assert len(requests) == 10
    assert sum(r.after_request_id is None for r in requests) == 3


CLOSED = replace(
    PLAIN,
    arrivals=ClosedLoop(4),
    think=ConstantThink(1000),
    turns=ConstantLength(2),
    num_requests=14,
)


def test_closed_loop_starts_users_within_the_first_pause() -> None:
    starts = [r.arrival_ns for r in generate(CLOSED, seed=1).requests if r.after_request_id is None]
    assert len(starts) == 4
    assert starts == sorted(starts)
    assert len(set(starts)) == 4
    assert 0 <= starts[0] <= starts[-1] < 1000


def test_closed_loop_user_waits_for_the_answer_before() -> None:
    requests = generate(CLOSED, seed=1).requests
    later = requests[4:]
    assert [r.after_request_id for r in later] == [r.request_id - 4 for r in later]
    assert {r.think_ns for r in later} == {1000}


def test_closed_loop_user_opens_a_new_session_after_the_last_turn() -> None:
    by_user = [
        r.num_prompt_tokens for r in generate(CLOSED, seed=1).requests if r.request_id % 4 == 0
    ]
    assert by_user == [100, 210, 100, 210]


def test_closed_loop_without_pauses_starts_all_users_at_once() -> None:
    config = replace(CLOSED, think=ConstantThink(0))
    assert {r.arrival_ns for r in generate(config, seed=1).requests} == {0}


def test_exponential_think_has_the_stated_mean() -> None:
    config = replace(CLOSED, think=ExponentialThink(10**9), num_requests=10_000)
    thinks = [
        r.think_ns for r in generate(config, seed=1).requests if r.after_request_id is not None
    ]
    assert np.mean(thinks) == pytest.approx(1e9, rel=0.04)
    assert np.std(thinks) == pytest.approx(1e9, rel=0.06)


def test_generator_repeats_with_the_seed() -> None:
    assert generate(CLOSED, seed=7) == generate(CLOSED, seed=7)


def test_generator_differs_with_the_seed() -> None:
    assert generate(PLAIN, seed=7).requests != generate(PLAIN, seed=8).requests


def test_generator_names_what_it_made() -> None:
    config = replace(PLAIN, num_requests=3)
    assert generate(config, seed=7).name == "poisson 5 /s, 3 requests, seed 7"


@pytest.mark.parametrize("seed", [-1, True, 1.5, 2**63])
def test_generator_refuses_a_wrong_seed(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed"):
        generate(PLAIN, seed=seed)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "build",
    [
        *(lambda bad=bad: PoissonArrivals(bad) for bad in (0.0, -1.0, NAN, INF, True, 1e10)),
        *(lambda bad=bad: ConstantArrivals(bad) for bad in (0.0, NAN)),
        *(lambda bad=bad: GammaArrivals(1.0, bad) for bad in (0.0, -1.0, NAN, INF, 100.0)),
        lambda: GammaArrivals(0.0, 1.0),
        *(lambda bad=bad: ClosedLoop(bad) for bad in (0, -1, True, 1.5)),
        *(lambda bad=bad: ConstantThink(bad) for bad in (-1, True, 1.5)),
        *(lambda bad=bad: ExponentialThink(bad) for bad in (-1, True, 1.5)),
        *(lambda bad=bad: ConstantLength(bad) for bad in (0, -1, True, 1.5, 10**9)),
        lambda: UniformLength(0, 5),
        lambda: UniformLength(5, 4),
        *(lambda bad=bad: LognormalLength(bad, 1.0) for bad in (0.0, NAN, INF)),
        *(lambda bad=bad: LognormalLength(100, bad) for bad in (-1.0, NAN, 50.0)),
        lambda: LognormalLength(100, 1.0, minimum=10, maximum=9),
        lambda: EmpiricalLength(()),
        lambda: EmpiricalLength((5, 0)),
        lambda: SharedPrefixes(0, 16),
        lambda: SharedPrefixes(1, 0),
        *(lambda bad=bad: SharedPrefixes(1, 16, bad) for bad in (-1.0, NAN, 11.0)),
        lambda: replace(PLAIN, hash_block_tokens=0),
        lambda: replace(PLAIN, num_requests=0),
        lambda: replace(PLAIN, num_requests=True),
        lambda: replace(PLAIN, num_requests=10**9),
        lambda: replace(PLAIN, num_requests=None, duration_ns=0),
        lambda: replace(PLAIN, turns=ConstantLength(20_000)),
        lambda: replace(CLOSED, num_requests=3),
        lambda: replace(PLAIN, arrivals=PoissonArrivals(1e-4), num_requests=10**6),
        lambda: replace(
            PLAIN, arrivals=PoissonArrivals(1e6), num_requests=None, duration_ns=10**15
        ),
    ],
)
def test_generator_refuses_numbers_out_of_range(build: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"Write (a whole number|a number|at least)"):
        build()


@pytest.mark.parametrize(("num_requests", "duration_ns"), [(None, None), (5, 5)])
def test_generator_refuses_an_unclear_end(
    num_requests: int | None, duration_ns: int | None
) -> None:
    with pytest.raises(ConfigError, match="exactly one of the two"):
        replace(PLAIN, num_requests=num_requests, duration_ns=duration_ns)


def test_generator_refuses_a_closed_loop_with_a_duration() -> None:
    with pytest.raises(ConfigError, match="State num_requests instead"):
        replace(CLOSED, num_requests=None, duration_ns=5)


def test_generator_refuses_more_block_ids_than_memory_holds() -> None:
    config = replace(PLAIN, prompt=ConstantLength(10**7), turns=ConstantLength(50))
    with pytest.raises(ConfigError, match="Use larger blocks"):
        generate(replace(config, num_requests=50, hash_block_tokens=1), seed=1)


def test_generator_refuses_more_prefix_ids_than_memory_holds() -> None:
    config = replace(PLAIN, prefixes=SharedPrefixes(100, 10**7, 0.0), hash_block_tokens=1)
    with pytest.raises(ConfigError, match="Use larger blocks"):
        generate(config, seed=1)


@pytest.mark.parametrize("think", [ConstantThink(5), ExponentialThink(5)])
def test_think_needs_no_closed_loop(think: Think) -> None:
    config = replace(PLAIN, think=think, turns=ConstantLength(2), num_requests=4)
    assert [r.after_request_id for r in generate(config, seed=1).requests] == [None, 0, None, 2]
