"""The max-min engines on cases that can be worked out by hand. 8 Gbit/s move 1 byte per ns."""

from fractions import Fraction

import numpy as np
import pytest

from kvfabric.fabric.engines.maxmin import MaxMinEngine, solve_flows
from kvfabric.fabric.engines.maxmin_reference import ReferenceEngine, fair_rates

BYTE_PER_NS = 8_000_000_000

Engine = MaxMinEngine | ReferenceEngine[Fraction]


def engines(*bytes_per_ns: int) -> list[Engine]:
    """Return both engines, idle, over the same channels."""
    capacity_bps = [BYTE_PER_NS * rate for rate in bytes_per_ns]
    return [MaxMinEngine(np.array(capacity_bps)), ReferenceEngine(capacity_bps, Fraction)]


def drain(engine: Engine) -> dict[int, int]:
    """Return when each flow ends, going from one completion to the next."""
    finish_ns: dict[int, int] = {}
    while (now_ns := engine.next_completion_ns()) is not None:
        ended = engine.advance(now_ns)
        assert ended
        finish_ns |= dict.fromkeys(ended, now_ns)
    return finish_ns


def test_single_flow_takes_size_over_slowest_channel() -> None:
    for engine in engines(2, 4):
        engine.start_flows(100, [[0, 1]], [1000])
        assert drain(engine) == {0: 600}


def test_completion_is_rounded_up() -> None:
    for engine in engines(3):
        engine.start_flows(0, [[0]], [1000])
        assert engine.advance(333) == []
        assert engine.next_completion_ns() == 334
        assert engine.advance(334) == [0]


def test_completion_on_a_whole_ns_is_not_pushed_on() -> None:
    # 400 Gbit/s = 50 bytes per ns, one hour after the origin.
    for engine in engines(50):
        engine.start_flows(3_600_000_000_000, [[0]], [50_000])
        assert engine.next_completion_ns() == 3_600_000_001_000


def test_two_flows_share_a_channel() -> None:
    # Both run at 1/2 until the shorter has moved 100; 100 of the longer are left, alone.
    for engine in engines(1):
        engine.start_flows(0, [[0], [0]], [100, 200])
        assert engine.rate_bps(0) == BYTE_PER_NS / 2
        assert drain(engine) == {0: 200, 1: 300}


def test_parking_lot_gives_the_long_flow_the_least_share() -> None:
    # Channel 1 has three flows (1 each); channel 0 leaves 3 - 1 and channel 2 leaves 5 - 1.
    for engine in engines(3, 3, 5):
        engine.start_flows(0, [[0, 1, 2], [0], [1], [1], [2]], [100] * 5)
        rates = [float(engine.rate_bps(flow_id)) / BYTE_PER_NS for flow_id in range(5)]
        assert rates == [1, 2, 1, 1, 4]


def test_arrival_midway_slows_the_first_flow() -> None:
    # 0..100 alone: 100 of 200 moved. Then 1/2 each: flow 0 ends at 300, when flow 1 has 200 left.
    for engine in engines(1):
        engine.start_flows(0, [[0]], [200])
        engine.start_flows(100, [[0]], [300])
        assert drain(engine) == {0: 300, 1: 500}


def test_cancellation_frees_capacity_and_keeps_what_was_carried() -> None:
    for engine in engines(2):
        engine.start_flows(0, [[0], [0]], [1000, 1000])
        engine.cancel_flows(100, [0])
        assert drain(engine) == {1: 550}
        assert engine.carried_bytes()[0] == 1100


def test_cancelling_an_ended_flow_does_nothing() -> None:
    for engine in engines(1):
        engine.start_flows(0, [[0]], [10])
        engine.cancel_flows(10, [0, 0])
        assert engine.advance(10) == [0]


def test_cancelling_all_leaves_the_network_idle() -> None:
    for engine in engines(1):
        engine.start_flows(0, [[0]] * 3, [10] * 3)
        engine.cancel_flows(1, [2, 0, 1, 1])
        assert engine.num_active == 0
        assert engine.next_completion_ns() is None


def test_flows_that_end_together_come_in_order_of_id() -> None:
    for engine in engines(1, 1):
        engine.start_flows(0, [[1], [0], [0]], [20, 10, 10])
        assert engine.advance(20) == [0, 1, 2]


def test_carried_bytes_count_unfinished_flows() -> None:
    for engine in engines(4, 2):
        engine.start_flows(0, [[0, 1], [0]], [1000, 1000])
        engine.advance(100)
        assert list(engine.carried_bytes()) == [400, 200]


def test_completions_passed_by_a_start_are_kept() -> None:
    for engine in engines(1, 1):
        engine.start_flows(0, [[0], [0]], [10, 10])
        engine.start_flows(50, [[1]], [10])
        assert engine.num_active == 1
        assert engine.next_completion_ns() == 20
        assert engine.advance(50) == [0, 1]


def test_starting_nothing_is_allowed() -> None:
    for engine in engines(1):
        assert list(engine.start_flows(5, [], [])) == []
        assert engine.next_completion_ns() is None


def test_ids_stay_unique_while_slots_are_used_again() -> None:
    engine = MaxMinEngine(np.array([BYTE_PER_NS]))
    for batch in range(100):
        ids = engine.start_flows(batch * 100, [[0]] * 10, [10] * 10)
        assert list(ids) == list(range(batch * 10, batch * 10 + 10))
        assert engine.advance(batch * 100 + 100) == list(ids)


def test_many_flows_with_long_paths_outgrow_the_first_tables() -> None:
    engine = MaxMinEngine(np.full(40, BYTE_PER_NS))
    engine.start_flows(0, [[i % 8] for i in range(60)], [1000 + i for i in range(60)])
    engine.start_flows(10, [list(range(i % 20, i % 20 + 20)) for i in range(300)], [500] * 300)
    engine.check_invariants()
    assert len(drain(engine)) == 360
    assert engine.carried_bytes().sum() == pytest.approx(
        sum(1000 + i for i in range(60)) + 300 * 20 * 500
    )


def test_flows_of_one_hand_off_end_with_one_solve() -> None:
    engine = MaxMinEngine(np.full(8, BYTE_PER_NS * 50))
    engine.start_flows(7, [[i % 8] for i in range(32)], [1_000_003] * 32)
    engine.advance(10**9)
    assert engine.num_solves == 2


@pytest.mark.parametrize("path", [[], [0, 0], [2], [-1]])
def test_bad_path_is_refused_and_changes_nothing(path: list[int]) -> None:
    engine = MaxMinEngine(np.full(2, BYTE_PER_NS))
    with pytest.raises(AssertionError, match="path"):
        engine.start_flows(0, [[0], path], [1, 1])
    assert engine.num_active == 0


def test_size_zero_is_refused() -> None:
    engine = MaxMinEngine(np.full(1, BYTE_PER_NS))
    with pytest.raises(AssertionError, match="at least one byte"):
        engine.start_flows(0, [[0]], [0])


def test_capacity_zero_is_refused() -> None:
    with pytest.raises(AssertionError, match="above 0"):
        MaxMinEngine(np.array([BYTE_PER_NS, 0]))


def test_time_does_not_go_back() -> None:
    engine = MaxMinEngine(np.full(1, BYTE_PER_NS))
    engine.advance(10)
    with pytest.raises(AssertionError, match="cannot go back"):
        engine.advance(9)


def test_batch_takes_starts_in_any_order() -> None:
    # The arrival midway from above, listed last to first; 1 byte per ns.
    finish_s = solve_flows(
        np.array([BYTE_PER_NS]),
        np.array([0, 1, 2]),
        np.array([0, 0]),
        np.array([100e-9, 0.0]),
        np.array([300, 200]),
    )
    assert finish_s == pytest.approx([500e-9, 300e-9], rel=1e-12)


def test_batch_of_nothing_is_empty() -> None:
    none = np.zeros(0, np.int64)
    assert len(solve_flows(np.array([1]), np.zeros(1, np.int64), none, np.zeros(0), none)) == 0


@pytest.mark.parametrize("channels", [[0, 0], [0, 2], [-1, 0]])
def test_batch_refuses_bad_paths(channels: list[int]) -> None:
    with pytest.raises(AssertionError, match="channel"):
        solve_flows(
            np.full(2, BYTE_PER_NS),
            np.array([0, 2]),
            np.array(channels),
            np.zeros(1),
            np.ones(1),
        )


def test_fair_rates_fill_progressively() -> None:
    # Channel 0 (10) has flows a, b; channel 1 (4) has b, c, d: 4/3 each; a gets 10 - 4/3.
    rates = fair_rates([Fraction(10), Fraction(4)], [[0], [0, 1], [1], [1]])
    assert rates == [Fraction(26, 3), Fraction(4, 3), Fraction(4, 3), Fraction(4, 3)]
