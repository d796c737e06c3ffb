"""The time-stepped engine on cases whose answer follows by hand."""

import numpy as np
import pytest
from flow_runs import end_instants_ns

from kvfabric.errors import CapacityError
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.fabric.engines.pfc_stepped import PfcSteppedEngine
from kvfabric.fabric.engines.pfc_stepped_tables import MAX_DELAY_STEPS, plan_steps
from kvfabric.fabric.graph import FloatArray

LINK_BPS = 400e9  # 50 bytes per ns
MIB = 1 << 20
STEP_NS = 700


def links(count: int) -> FloatArray:
    return np.full(count, LINK_BPS)


def test_a_step_is_a_third_of_the_loop_and_less_on_links_that_fill_the_budget_in_it() -> None:
    plan = plan_steps(PfcParams(), LINK_BPS)
    assert plan.step_ns == 2_100 / 3
    assert plan.delay_steps == 6  # twice the loop: see there
    fast = plan_steps(PfcParams(), 8 * LINK_BPS)
    assert fast.step_ns == pytest.approx(40 * 4160 / 4 / 400)
    assert fast.delay_steps == round(4_200 / fast.step_ns)
    assert plan_steps(PfcParams(loop_delay_ns=0), LINK_BPS).delay_steps == 0
    assert plan_steps(PfcParams(loop_delay_ns=10**6), LINK_BPS).delay_steps <= MAX_DELAY_STEPS


def test_a_lone_flow_runs_at_line_rate_and_takes_a_step_per_further_hop() -> None:
    size = 16 * MIB
    (end_ns,) = end_instants_ns(PfcSteppedEngine(links(5)), [(0, [0, 1, 2, 3, 4], size)])
    assert size / 50 < end_ns <= size / 50 + 5 * STEP_NS


def test_flows_of_one_nic_share_it_evenly() -> None:
    flows = [(0, [0, 1], 10 * MIB), (0, [0, 2], 10 * MIB)]
    ends = end_instants_ns(PfcSteppedEngine(links(3)), flows)
    assert ends.tolist() == pytest.approx([20 * MIB / 50] * 2, rel=0.01)


def test_a_congested_egress_is_shared_per_ingress_port_not_per_flow() -> None:
    """Three flows over one uplink and one over another meet: 1/6 each against 1/2.

    Back-pressure acts on ports; max-min would give each a quarter. Source: DCQCN, SIGCOMM 2015,
    section 2.2 (parking lot). The port of one flow gets 3 % less: pauses come and go in cycles.
    """
    size = 100 * MIB
    uplink_a, uplink_b, out = 4, 5, 6
    flows = [(0, [nic, uplink_a, out], size) for nic in range(3)]
    flows.append((0, [3, uplink_b, out], size))
    ends = end_instants_ns(PfcSteppedEngine(links(7)), flows)
    assert ends[3] == pytest.approx(2 * size / 50, rel=0.05)
    assert ends[:3].tolist() == pytest.approx([4 * size / 50] * 3, rel=0.05)


def test_a_flow_behind_a_pause_is_a_victim() -> None:
    """Three ports meet at ``busy`` with a third each; NIC 0 could send half there, half elsewhere.

    Paused as a whole, it sends a third to either. Nothing of the flow to ``free`` is full.
    """
    uplink, busy, free = 3, 4, 5
    size = 20 * MIB
    flows = [(0, [0, uplink, busy], size), (0, [0, uplink, free], size)]
    flows += [(0, [1, 6, busy], size), (0, [2, 7, busy], size)]
    engine = PfcSteppedEngine(links(8))
    ends = end_instants_ns(engine, flows)
    assert engine.num_victims() == 1
    assert ends[1] == pytest.approx(3 * size / 50, rel=0.08)
    paused = engine.paused_ns()
    assert paused[uplink] > 0
    assert paused[busy] == 0
    assert engine.peak_queue_bytes()[busy] > PfcParams().xoff_bytes


def test_pausing_queue_pairs_spares_the_other_flows_of_a_nic() -> None:
    """Two of three flows of one NIC go to a target that ten other NICs keep busy."""
    size = 10 * MIB
    flows = [(0, [0, 20], size), (0, [0, 21], size)]
    flows += [(0, [nic, 20], size) for nic in range(1, 11)]
    whole = end_instants_ns(PfcSteppedEngine(links(22)), flows)
    pairs = end_instants_ns(PfcSteppedEngine(links(22), PfcParams(pauses_queue_pair=True)), flows)
    assert pairs[1] < 0.7 * whole[1]
    assert pairs[1] < 2.1 * size / 50
    assert pairs.max() == pytest.approx(whole.max(), rel=0.02)


def test_queues_stay_within_threshold_and_loop() -> None:
    """Per ingress: XOFF and what arrives while the pause travels (two loops and two steps)."""
    engine = PfcSteppedEngine(links(9))
    end_instants_ns(engine, [(0, [nic, 8], 10 * MIB) for nic in range(8)])
    params = PfcParams()
    per_ingress = params.xoff_bytes + 50 * (2 * params.loop_delay_ns + 2 * STEP_NS)
    assert engine.peak_queue_bytes()[8] <= 8 * per_ingress


def test_answers_do_not_depend_on_who_looks_in_between() -> None:
    rng = np.random.default_rng(5)
    flows = [
        (int(rng.integers(0, 300_000)), [int(rng.integers(4)), 4 + int(rng.integers(2))], 2 * MIB)
        for _ in range(20)
    ]
    looked_at = end_instants_ns(PfcSteppedEngine(links(6)), flows, checks=True)
    left_alone = end_instants_ns(PfcSteppedEngine(links(6)), flows)
    assert looked_at.tolist() == left_alone.tolist()


def test_a_start_before_the_predicted_end_moves_it() -> None:
    engine = PfcSteppedEngine(links(3))
    size = 10 * MIB
    engine.start_flows(0, [[0, 2]], [size])
    alone = engine.next_completion_ns()
    engine.start_flows(1_000, [[1, 2]], [size])
    both = engine.next_completion_ns()
    assert alone is not None
    assert both is not None
    assert both > 1.9 * alone
    engine.cancel_flows(2_000, [1, 7])
    again = engine.next_completion_ns()
    assert again is not None
    assert alone <= again < 1.05 * alone
    assert engine.advance(again) == [0]
    assert engine.next_completion_ns() is None


def test_time_between_events_is_jumped_over() -> None:
    engine = PfcSteppedEngine(links(4))
    hour_ns = 3600 * 10**9
    flows = [(0, [0, 2], 400 * MIB), (0, [1, 3], 800 * MIB), (hour_ns, [0, 3], MIB)]
    ends = end_instants_ns(engine, flows)
    assert ends[2] > hour_ns
    assert engine.num_flow_steps < 100


def test_slots_are_used_again() -> None:
    engine = PfcSteppedEngine(links(3))
    for turn in range(300):
        engine.start_flows(turn * 10**6, [[0, 2], [1, 2]], [1000, 1000])
        engine.advance(turn * 10**6 + 500_000)
    assert engine.num_active == 0
    assert len(engine._tables.flows) == 64


def test_a_longer_time_scale_keeps_the_rates_of_long_flows() -> None:
    size = 400 * MIB
    flows = [(0, [nic, 4 + nic // 2, 6], size * (1 + nic)) for nic in range(4)]
    fine = PfcSteppedEngine(links(7))
    coarse = PfcSteppedEngine(links(7), time_scale=20)
    ends = end_instants_ns(fine, flows)
    assert end_instants_ns(coarse, flows).tolist() == pytest.approx(ends.tolist(), rel=0.02)
    assert coarse.num_flow_steps < fine.num_flow_steps / 15
    worst = fine.peak_queue_bytes().max()
    assert coarse.peak_queue_bytes().max() == pytest.approx(worst, rel=0.1)


def test_flows_that_wait_for_each_other_in_a_cycle_are_an_error_and_no_hang() -> None:
    """A ring of four switches, every flow two hops along it: the textbook deadlock."""
    ring = [4, 5, 6, 7]
    flows = [[i, ring[i], ring[(i + 1) % 4], ring[(i + 2) % 4], 8 + i] for i in range(4)]
    paths = [path for path in flows for _ in range(4)]
    engine = PfcSteppedEngine(links(12))
    engine.start_flows(0, paths, [100 * MIB] * len(paths))
    with pytest.raises(CapacityError, match="stand still"):
        engine.next_completion_ns()
