"""Cold prompts and bursts in generated loads, against counts in closed form."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.arrivals import (
    BurstArrivals,
    ClosedLoop,
    ExponentialThink,
    GammaArrivals,
    PoissonArrivals,
)
from kvfabric.workload.cold_prompts import ColdPrompts
from kvfabric.workload.generator import GeneratorConfig, SharedPrefixes, generate
from kvfabric.workload.lengths import ConstantLength, LognormalLength, UniformLength

BLOCK = 64
PREFIX, NEW, COLD = 8 * BLOCK, 5 * BLOCK, 20 * BLOCK
GROUPS = 5
PLAIN = GeneratorConfig(
    arrivals=PoissonArrivals(5.0),
    prompt=ConstantLength(NEW),
    output=ConstantLength(10),
    prefixes=SharedPrefixes(GROUPS, PREFIX, zipf_exponent=0.0),
    num_requests=20_000,
    hash_block_tokens=BLOCK,
)
SESSIONS = replace(
    PLAIN,
    arrivals=GammaArrivals(5.0, 2.0),
    prompt=LognormalLength(800.0, 0.9),
    turns=UniformLength(1, 4),
    think=ExponentialThink(NS_PER_S),
    num_requests=900,
)
ENDS: dict[str, dict[str, object]] = {
    "requests": {},
    "duration": {"num_requests": None, "duration_ns": 60 * NS_PER_S},
    "closed loop": {"arrivals": ClosedLoop(20)},
}


def with_cold(config: GeneratorConfig, share: float, prompt: int | None = COLD) -> Workload:
    length = None if prompt is None else ConstantLength(prompt)
    return generate(replace(config, cold=ColdPrompts(share, length)), seed=3)


def found_tokens(workload: Workload) -> int:
    """Return the prompt tokens that a cache which never drops anything finds."""
    known: set[int] = set()
    total = 0
    for spec in workload.requests:
        hit = 0
        for key in spec.block_hashes[: (spec.num_prompt_tokens - 1) // BLOCK]:
            if key not in known:
                break
            hit += BLOCK
        total += hit
        known.update(spec.block_hashes)
    return total


def prompt_tokens(workload: Workload) -> int:
    return sum(spec.num_prompt_tokens for spec in workload.requests)


def is_cold(spec: RequestSpec) -> bool:
    return spec.num_prompt_tokens == COLD


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 1.0])
def test_hit_rate_of_an_unbounded_cache_is_that_of_the_formula(share: float) -> None:
    """h = (1 - s) P / ((1 - s) (P + U) + s C), less the first prompt of each group."""
    workload = with_cold(PLAIN, share)
    num_cold = sum(map(is_cold, workload.requests))
    num_warm = 20_000 - num_cold
    assert found_tokens(workload) == max(0, num_warm - GROUPS) * PREFIX
    assert prompt_tokens(workload) == num_warm * (PREFIX + NEW) + num_cold * COLD
    assert num_cold / 20_000 == pytest.approx(share, abs=5 * (0.25 / 20_000) ** 0.5)
    expected = (1 - share) * PREFIX / ((1 - share) * (PREFIX + NEW) + share * COLD)
    found = found_tokens(workload) / prompt_tokens(workload)
    assert found == pytest.approx(expected, rel=0.03, abs=1e-9)


def test_length_of_cold_prompts_moves_the_hit_rate_apart_from_their_share() -> None:
    workloads = [with_cold(PLAIN, 0.2, tokens) for tokens in (BLOCK, 40 * BLOCK)]
    arrivals = [[spec.arrival_ns for spec in workload.requests] for workload in workloads]
    assert arrivals[0] == arrivals[1]
    assert found_tokens(workloads[0]) == found_tokens(workloads[1])
    assert prompt_tokens(workloads[0]) < prompt_tokens(workloads[1])


@pytest.mark.parametrize("end", ENDS)
def test_share_of_zero_changes_nothing(end: str) -> None:
    config = replace(SESSIONS, **ENDS[end])  # type: ignore[arg-type]
    assert with_cold(config, 0.0) == generate(config, seed=3)


@pytest.mark.parametrize("end", ENDS)
def test_cold_prompts_recur_nowhere_and_have_no_later_turn(end: str) -> None:
    config = replace(SESSIONS, **ENDS[end])  # type: ignore[arg-type]
    workload = with_cold(config, 0.3, 7 * BLOCK + 3)
    cold = [spec for spec in workload.requests if spec.num_prompt_tokens == 7 * BLOCK + 3]
    assert len(cold) > 50
    counts = Counter(key for spec in workload.requests for key in spec.block_hashes)
    assert all(counts[key] == 1 for spec in cold for key in spec.block_hashes)
    assert all(len(spec.block_hashes) == (7 * BLOCK + 13) // BLOCK for spec in cold)
    if end != "closed loop":  # there the next session of the user follows
        ids = {spec.request_id for spec in cold}
        assert all(spec.after_request_id not in ids for spec in workload.requests)


def test_share_of_prompts_follows_from_the_turns_of_the_others() -> None:
    """share / (share + (1 - share) T): 0.3 of the sessions among ones of 2.5 turns."""
    config = replace(SESSIONS, num_requests=20_000)
    workload = with_cold(config, 0.3, 10_000)
    num_cold = sum(spec.num_prompt_tokens == 10_000 for spec in workload.requests)
    assert num_cold / 20_000 == pytest.approx(0.3 / (0.3 + 0.7 * 2.5), rel=0.05)


def test_others_stay_as_they_are() -> None:
    """Of sessions of one turn, those that are not cold keep instant, length, prefix and answer."""
    usual, mixed = generate(PLAIN, seed=3), with_cold(PLAIN, 0.25)
    for spec, other in zip(usual.requests, mixed.requests, strict=True):
        assert spec.arrival_ns == other.arrival_ns
        assert spec.num_output_tokens == other.num_output_tokens
        if not is_cold(other):
            assert spec.num_prompt_tokens == other.num_prompt_tokens
            assert spec.block_hashes[: PREFIX // BLOCK] == other.block_hashes[: PREFIX // BLOCK]


def test_larger_share_keeps_the_cold_ones_of_a_smaller() -> None:
    few, many = (
        {spec.request_id for spec in with_cold(PLAIN, share).requests if is_cold(spec)}
        for share in (0.1, 0.4)
    )
    assert few < many


def test_cold_prompts_are_as_long_as_others_by_default() -> None:
    workload = with_cold(PLAIN, 0.5, None)
    assert {spec.num_prompt_tokens for spec in workload.requests} == {NEW, PREFIX + NEW}


def test_name_tells_the_share() -> None:
    assert with_cold(PLAIN, 0.25).name == (
        "poisson 5 /s, 20000 requests, 0.25 of the sessions cold, seed 3"
    )


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        ColdPrompts(share)


# ---------------------------------------------------------------------------- bursts


def bursts(size: int, period_ns: int, **changes: object) -> Workload:
    config = replace(PLAIN, arrivals=BurstArrivals(size, period_ns), **changes)  # type: ignore[arg-type]
    return generate(config, seed=1)


def test_bursts_come_at_once_and_every_period() -> None:
    workload = bursts(4, 2 * NS_PER_S, num_requests=10)
    assert [spec.arrival_ns // NS_PER_S for spec in workload.requests] == [0] * 4 + [2] * 4 + [
        4
    ] * 2
    assert workload.name.startswith("bursts of 4 every 2 s, 10 requests")


@given(
    size=st.integers(1, 9),
    period_ns=st.integers(1, 10**9),
    num_periods=st.integers(0, 20),
    rest=st.integers(1, 10**9),
)
def test_as_many_bursts_begin_as_fit_into_the_duration(
    size: int, period_ns: int, num_periods: int, rest: int
) -> None:
    duration_ns = num_periods * period_ns + min(rest, period_ns)
    period_ns = max(period_ns, 1_000_000)  # at most so many that they are quick to build
    workload = bursts(size, period_ns, num_requests=None, duration_ns=max(duration_ns, 1))
    instants = [spec.arrival_ns for spec in workload.requests]
    num_bursts = -(-max(duration_ns, 1) // period_ns)
    assert instants == [burst * period_ns for burst in range(num_bursts) for _ in range(size)]
    assert np.diff(instants).min(initial=0) >= 0


@pytest.mark.parametrize(
    ("size", "period_ns", "told"),
    [(0, 1, "size"), (1, 0, "period_ns"), (10**6, 1, "size / period_ns")],
)
def test_bursts_out_of_range_are_refused(size: int, period_ns: int, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BurstArrivals(size, period_ns)
    assert told in str(refused.value)
