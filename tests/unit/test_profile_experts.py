"""Routed experts: look-up, routing, and ranks that share them."""

import pytest
from profiles import curve

from kvfabric.errors import ConfigError
from kvfabric.perf.curve import FS_PER_US, Curve
from kvfabric.perf.moe import ExpertRouting, ExpertTable, expert_layer_fs

# Qwen3-30B-A3B (128 experts, 8 per token) on an RTX PRO 6000, us by tokens per experts reached.
# Source: LLMServingSim (MIT), profiler/perf/RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1.
QWEN = ExpertTable(
    (8, 16, 32, 64, 128),
    (
        curve({1: 48.1707, 16: 52.8857, 512: 290.176}),
        curve({2: 129.953, 16: 125.974, 512: 295.136}),
        curve({4: 234.198, 16: 243.745, 512: 327.541}),
        curve({8: 433.763, 16: 436.407, 512: 503.201}),
        curve({16: 829.487, 512: 907.107}),
    ),
)
# The same on one of two ranks, in rows with ep 2.
QWEN_HALF = ExpertTable(
    (4, 8, 16, 32, 64),
    (
        curve({1: 35.9463, 16: 42.9653, 512: 156.235}),
        curve({2: 49.5477, 16: 50.016, 512: 158.795}),
        curve({4: 132.918, 16: 122.881, 512: 177.666}),
        curve({8: 244.716, 16: 238.678, 512: 265.89}),
        curve({16: 431.618, 512: 467.883}),
    ),
    num_shards=2,
)


def test_table_is_exact_at_its_points() -> None:
    assert QWEN.at(16, 64) == 436_407_000_000
    assert QWEN.at(512, 8) == 290_176_000_000


def test_table_is_straight_between_counts_of_experts() -> None:
    assert QWEN.at(16, 48) == (243_745_000_000 + 436_407_000_000) // 2


def test_fewer_experts_than_measured_take_the_time_of_the_fewest() -> None:
    assert QWEN.at(1, 3) == QWEN.at(1, 8)


def test_one_token_reaches_the_experts_it_uses() -> None:
    assert ExpertRouting(128, 8).activated(1) == pytest.approx(8)


def test_uniform_routing_reaches_the_expected_number() -> None:
    # 128 * (1 - (120 / 128) ** 16) distinct experts.
    assert ExpertRouting(128, 8).activated(16) == pytest.approx(82.42, abs=0.01)
    assert ExpertRouting(128, 8).activated(10**6) == 128


def test_measured_routing_is_straight_between_and_flat_outside() -> None:
    routing = ExpertRouting(128, 8, ((2, 10.0), (4, 20.0)))
    assert [routing.activated(n) for n in (1, 2, 3, 4, 9)] == [10.0, 10.0, 15.0, 20.0, 20.0]


@pytest.mark.parametrize("measured", [((1, 129.0),), ((2, 8.0), (1, 8.0)), ((1, 0.0),)])
def test_measured_routing_no_model_has_is_refused(
    measured: tuple[tuple[int, float], ...],
) -> None:
    with pytest.raises(ConfigError, match="measured routing"):
        ExpertRouting(128, 8, measured)


def test_table_of_the_wanted_ranks_takes_all_tokens() -> None:
    routing = ExpertRouting(128, 8, ((1, 64.0),))
    assert expert_layer_fs(QWEN_HALF, routing, 16, 2) == 238_678_000_000


def test_whole_table_stands_in_for_two_ranks() -> None:
    """Half of the tokens on half of the experts, against what two ranks were measured to take."""
    routing = ExpertRouting(128, 8)
    for num_tokens in (16, 512):
        found = expert_layer_fs(QWEN, routing, num_tokens, 2)
        measured = expert_layer_fs(QWEN_HALF, routing, num_tokens, 2)
        assert found == pytest.approx(measured, rel=0.06)


def test_table_of_other_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of 2 ranks, wanted one of 4"):
        expert_layer_fs(QWEN_HALF, ExpertRouting(128, 8), 16, 4)


@pytest.mark.parametrize("activated", [(), (0,), (2, 2)])
def test_table_without_ascending_counts_is_refused(activated: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        ExpertTable(activated, (Curve((1,), (FS_PER_US,)),) * len(activated))
