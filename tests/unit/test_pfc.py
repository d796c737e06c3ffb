"""The event-driven PFC engine on cases that can be worked out by hand. 8 Gbit/s = 1 byte per ns.

With the loop delay at 0 the stationary state follows from two rules: a full channel is shared
equally among the ingress ports that feed it, and a paused port passes all its flows on in order.
"""

from dataclasses import replace

import numpy as np
import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.engines.maxmin import MaxMinEngine
from kvfabric.fabric.engines.pfc import PfcEngine, solve_flows
from kvfabric.fabric.engines.pfc_params import PfcParams

BYTE_PER_NS = 8_000_000_000
NO_LOOP = PfcParams(loop_delay_ns=0)
MB = 1_000_000


def new_engine(*bytes_per_ns: float, params: PfcParams = NO_LOOP) -> PfcEngine:
    """Return an idle engine that solves to 1e-6."""
    capacity = BYTE_PER_NS * np.array(bytes_per_ns)
    return PfcEngine(capacity, params, cut=1e-7, max_sweeps=3000)


def rates(engine: PfcEngine, num_flows: int) -> list[float]:
    """Return the rates of the first flows, in bytes per ns."""
    engine.check_invariants()
    assert engine.num_unconverged == 0
    return [engine.rate_bps(flow_id) / BYTE_PER_NS for flow_id in range(num_flows)]


def drain(engine: PfcEngine) -> dict[int, int]:
    """Return when each flow ends, going from one completion to the next."""
    finish_ns: dict[int, int] = {}
    while (now_ns := engine.next_completion_ns()) is not None:
        ended = engine.advance(now_ns)
        assert ended
        finish_ns |= dict.fromkeys(ended, now_ns)
    return finish_ns


def test_single_flow_runs_at_line_rate() -> None:
    engine = new_engine(50, 50, 50, 50, params=PfcParams())
    engine.start_flows(100, [[0, 1, 2, 3]], [50 * MB])
    assert rates(engine, 1) == [50]
    assert drain(engine) == {0: 1_000_100}
    assert not engine.paused_ns().any()
    assert not engine.peak_queue_bytes().any()
    assert engine.num_victims() == 0


def test_single_flow_runs_at_the_slowest_of_mixed_channels() -> None:
    """Queues stand before the slow channel and the one that feeds it; both senders pause."""
    engine = new_engine(2, 2, 1, 2)
    engine.start_flows(0, [[0, 1, 2, 3]], [MB])
    assert rates(engine, 1) == pytest.approx([1], rel=1e-5)
    assert drain(engine)[0] == pytest.approx(MB, rel=1e-5)
    assert engine.paused_ns() == pytest.approx([MB / 2, MB / 2, 0, 0], rel=1e-3)
    budget = NO_LOOP.budget_bytes
    assert engine.peak_queue_bytes() == pytest.approx([0, budget, budget, 0], rel=1e-3)


def test_flows_of_one_port_share_it() -> None:
    engine = new_engine(4, 4, 4)
    engine.start_flows(0, [[0, 1], [0, 2]], [MB, MB])
    assert rates(engine, 2) == [2, 2]


def test_incast_is_shared_per_ingress_port_not_per_flow() -> None:
    """Channels: NICs 0..3, uplink 4 of NICs 0..2, target 5. NIC 3 has the target's other port."""
    engine = new_engine(*[10] * 6)
    engine.start_flows(0, [[0, 4, 5], [1, 4, 5], [2, 4, 5], [3, 5]], [MB] * 4)
    assert rates(engine, 4) == pytest.approx([5 / 3, 5 / 3, 5 / 3, 5], rel=1e-4)
    fair = MaxMinEngine(np.full(6, 10 * BYTE_PER_NS))
    fair.start_flows(0, [[0, 4, 5], [1, 4, 5], [2, 4, 5], [3, 5]], [MB] * 4)
    assert fair.rate_bps(3) / BYTE_PER_NS == pytest.approx(2.5)


def test_channel_that_fits_exactly_has_no_queue() -> None:
    engine = new_engine(5, 5, 10)
    engine.start_flows(0, [[0, 2], [1, 2]], [MB, MB])
    assert rates(engine, 2) == [5, 5]
    assert engine.peak_queue_bytes()[2] == 0
    assert not engine.paused_ns().any()


def test_short_flows_meet_full_queues_from_the_first_instant() -> None:
    """There is no start transient: flows far below a budget are held to stationary rates too.

    A switch would take in all 4 x 4,160 bytes at once; with its queue of 16,640 bytes drained at 10
    the end is the same here, since the channel is busy all the time.
    """
    engine = new_engine(10, 10, 10, 10, 10)
    engine.start_flows(0, [[i, 4] for i in range(4)], [4160] * 4)
    assert rates(engine, 4) == pytest.approx([2.5] * 4, rel=1e-4)
    assert max(drain(engine).values()) == pytest.approx(4 * 4160 / 10, rel=1e-3)


def test_victim_is_held_back_with_its_nic() -> None:
    """Four NICs send to target 4; NIC 0 sends to target 5 too and is paused as a whole."""
    engine = new_engine(*[12] * 6)
    engine.start_flows(0, [[0, 4], [1, 4], [2, 4], [3, 4], [0, 5]], [MB] * 5)
    assert rates(engine, 5) == pytest.approx([3, 3, 3, 3, 3], rel=1e-4)
    engine.advance(1000)
    assert engine.paused_ns() == pytest.approx([500, 750, 750, 750, 0, 0], rel=1e-3)
    drain(engine)
    assert engine.num_victims() == 1


def test_pause_of_a_queue_pair_leaves_the_rest_of_the_port() -> None:
    """The flow to the idle target takes what the paused one leaves of the port."""
    engine = new_engine(*[12] * 6, params=replace(NO_LOOP, pauses_queue_pair=True))
    engine.start_flows(0, [[0, 4], [1, 4], [2, 4], [3, 4], [0, 5]], [MB] * 5)
    found = rates(engine, 5)
    assert sum(found[:4]) == pytest.approx(12, rel=1e-4)
    # half of the budget of port 0 counts for the flow to target 4
    assert found[0] == pytest.approx(found[1] / 2, rel=1e-4)
    assert found[4] == pytest.approx(12 - found[0], rel=1e-4)
    drain(engine)
    assert engine.num_victims() == 0


def test_victim_behind_a_paused_uplink() -> None:
    """NICs 0 and 1 share uplink 2; flow 0 goes to a crowded target, flow 1 to an idle one."""
    engine = new_engine(*[12] * 8)
    paths = [[0, 2, 3], [1, 2, 4], [5, 3], [6, 3], [7, 3]]
    engine.start_flows(0, paths, [MB] * 5)
    found = rates(engine, 5)
    assert found == pytest.approx([3, 3, 3, 3, 3], rel=1e-4)
    drain(engine)
    assert engine.num_victims() == 1


def test_priorities_share_a_channel_equally_and_pause_apart() -> None:
    """The crowd of priority 0 does not hold back the flow of priority 1 from the same NIC."""
    engine = new_engine(*[12] * 6, params=replace(NO_LOOP, num_priorities=2))
    paths = [[0, 4], [1, 4], [2, 4], [3, 4], [0, 5]]
    engine.start_flows(0, paths, [MB] * 5, [0, 0, 0, 0, 1])
    assert rates(engine, 5) == pytest.approx([3, 3, 3, 3, 9], rel=1e-4)
    engine.start_flows(0, [[1, 4]], [MB], [1])
    # target 4: 6 for each priority; priority 1 may be fed by its one flow alone
    assert rates(engine, 6) == pytest.approx([1.5, 1.5, 1.5, 1.5, 10.5, 6], rel=1e-3)


def test_unused_share_of_a_priority_goes_to_the_others() -> None:
    params = replace(NO_LOOP, num_priorities=3)
    engine = new_engine(9, 9, 9, 1, 9, params=params)
    # the flow of priority 2 is bound by channel 3
    engine.start_flows(0, [[0, 4], [1, 4], [2, 3, 4]], [MB] * 3, [0, 1, 2])
    assert rates(engine, 3) == pytest.approx([4, 4, 1], rel=1e-3)


def test_hosts_that_forward_pass_flows_through_their_ports() -> None:
    """Flow 0 passes through channel 1, from which flow 1 starts: two ingress ports share it."""
    engine = new_engine(8, 8, 8)
    engine.start_flows(0, [[0, 1, 2], [1, 2]], [MB, MB])
    assert rates(engine, 2) == pytest.approx([4, 4], rel=1e-4)


def test_arrival_midway_slows_the_first_flow() -> None:
    # 0..100 alone: 100 of 200 moved. Then 1/2 each: flow 0 ends at 300, when flow 1 has 200 left.
    engine = new_engine(1)
    engine.start_flows(0, [[0]], [200])
    engine.start_flows(100, [[0]], [300])
    assert drain(engine) == {0: 300, 1: 500}


def test_completion_is_rounded_up() -> None:
    engine = new_engine(3)
    engine.start_flows(0, [[0]], [1000])
    assert engine.advance(333) == []
    assert engine.next_completion_ns() == 334
    assert engine.advance(334) == [0]


def test_cancellation_frees_capacity_and_keeps_what_was_carried() -> None:
    engine = new_engine(2)
    engine.start_flows(0, [[0], [0]], [1000, 1000])
    engine.cancel_flows(100, [0, 0, 7])
    assert drain(engine) == {1: 550}
    assert engine.carried_bytes()[0] == 1100


def test_completions_passed_by_a_start_are_kept() -> None:
    engine = new_engine(1, 1)
    engine.start_flows(0, [[0], [0]], [10, 10])
    engine.start_flows(50, [[1]], [10])
    assert engine.num_active == 1
    assert engine.next_completion_ns() == 20
    assert engine.advance(50) == [0, 1]


def test_slots_are_used_again_and_tables_grow_for_long_paths() -> None:
    engine = PfcEngine(np.full(40, 100 * BYTE_PER_NS))
    for batch in range(50):
        ids = engine.start_flows(batch * 100, [[0, 1]] * 10, [10] * 10)
        assert list(ids) == list(range(batch * 10, batch * 10 + 10))
        assert engine.advance(batch * 100 + 100) == list(ids)
    assert engine._flows.tables.num_slots == 64
    engine.start_flows(6000, [list(range(i % 20, i % 20 + 20)) for i in range(100)], [500] * 100)
    engine.check_invariants()
    assert len(drain(engine)) == 100
    assert engine.carried_bytes().sum() == pytest.approx(500 * 2 * 10 + 100 * 20 * 500)


def test_ring_of_buffers_crawls_but_ends() -> None:
    """Cyclic routes are for the deadlock check; here no rate becomes 0 and nothing fails."""
    engine = PfcEngine(np.full(8, 50 * BYTE_PER_NS), PfcParams())
    paths = [[4 + i, i, (i + 1) % 4, (i + 2) % 4] for i in range(4)]
    engine.start_flows(0, paths, [MB] * 4)
    engine.check_invariants()
    assert len(drain(engine)) == 4


@pytest.mark.parametrize("path", [[], [0, 0], [2], [-1]])
def test_bad_path_is_refused_and_changes_nothing(path: list[int]) -> None:
    engine = new_engine(1, 1)
    with pytest.raises(AssertionError, match="path"):
        engine.start_flows(0, [[0], path], [1, 1])
    assert engine.num_active == 0


@pytest.mark.parametrize("priority", [-1, 1])
def test_unknown_priority_is_refused(priority: int) -> None:
    with pytest.raises(AssertionError, match="priority"):
        new_engine(1).start_flows(0, [[0]], [1], [priority])


def test_time_does_not_go_back() -> None:
    engine = new_engine(1)
    engine.advance(10)
    with pytest.raises(AssertionError, match="cannot go back"):
        engine.advance(9)


def test_batch_takes_starts_in_any_order() -> None:
    # The arrival midway from above, listed last to first.
    solution = solve_flows(
        np.array([BYTE_PER_NS]),
        np.array([0, 1, 2]),
        np.array([0, 0]),
        np.array([100e-9, 0.0]),
        np.array([300, 200]),
    )
    assert solution.finish_s == pytest.approx([500e-9, 300e-9], rel=1e-12)
    assert (solution.num_solves, solution.num_unconverged) == (4, 0)


def test_batch_of_nothing_is_empty() -> None:
    none = np.zeros(0, np.int64)
    solution = solve_flows(np.array([1]), np.zeros(1, np.int64), none, np.zeros(0), none)
    assert len(solution.finish_s) == 0


@pytest.mark.parametrize("channels", [[0, 0], [0, 2], [-1, 0]])
def test_batch_refuses_bad_paths(channels: list[int]) -> None:
    with pytest.raises(AssertionError, match="channel"):
        solve_flows(
            np.full(2, BYTE_PER_NS),
            np.array([0, 2]),
            np.array(channels),
            np.array([0.0]),
            np.array([1]),
        )


def test_loop_share_is_the_bytes_of_the_loop_over_the_budget() -> None:
    # 50 bytes/ns * 2,100 ns over 50 frames of 4,160 bytes
    assert PfcParams().loop_share(np.array([400e9]))[0] == pytest.approx(105_000 / 208_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mtu_bytes", 0),
        ("loop_delay_ns", -1),
        ("xon_bytes", 4159),
        ("xoff_bytes", 40 * 4160 - 1),
        ("num_priorities", 0),
        ("num_priorities", 9),
    ],
)
def test_parameters_no_switch_can_have_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"fabric\.pfc\.{name}: {name} is {value}\. Write "):
        PfcParams(**{name: value})  # type: ignore[arg-type]  # a flag is among the fields
