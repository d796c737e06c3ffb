"""The event-driven PFC engine ends flows when a packet-level simulator does, on the same paths.

Source of the completion times: see ``packet_level``; of the paused port time: ``PAUSED_PORT_US``.
"""

import numpy as np
import pytest
from packet_level import WORKLOADS, read_run

from kvfabric.fabric.engines.pfc import PfcEngine, PfcSolution, solve_flows
from kvfabric.plan.validation.packet_level import (
    PAUSED_PORT_US,
    FctErrors,
    PacketLevelRun,
    fct_errors,
)

# Largest error of the 99th percentile; of permutations of short flows it may be twice as large.
P99_BOUND = {"perm128": 0.10, "perm1024n": 0.10}


def solve(run: PacketLevelRun, *, cut: float = 1e-3, max_sweeps: int = 150) -> PfcSolution:
    return solve_flows(
        run.capacity_bps,
        run.path_start,
        run.path_channels,
        run.start_s,
        run.size_bytes,
        cut=cut,
        max_sweeps=max_sweeps,
    )


def errors(run: PacketLevelRun, solution: PfcSolution) -> FctErrors:
    return fct_errors(solution.finish_s - run.start_s + run.round_trip_s, run.fct_s)


@pytest.mark.parametrize("name", WORKLOADS)
def test_completion_times_are_those_of_packets(name: str) -> None:
    run = read_run(name)
    found = errors(run, solve(run))
    assert abs(found.mean) < 0.05
    assert abs(found.p99) < P99_BOUND.get(name, 0.05)
    assert found.per_flow < 0.10


@pytest.mark.parametrize("name", PAUSED_PORT_US)
def test_ports_are_paused_as_long_as_at_packet_level(name: str) -> None:
    paused_us = solve(read_run(name)).paused_s.sum() * 1e6
    assert paused_us == pytest.approx(PAUSED_PORT_US[name], rel=0.05)


@pytest.mark.parametrize("name", ["perm128", "kv128", "kv128mid"])
def test_ending_a_solve_early_moves_completion_times_little(name: str) -> None:
    run = read_run(name)
    early, late = solve(run), solve(run, cut=1e-4, max_sweeps=2000)
    assert early.finish_s.mean() == pytest.approx(late.finish_s.mean(), rel=0.005)


def test_queues_stay_within_what_the_ingress_ports_may_hold() -> None:
    """32 senders come to the target's leaf over its four uplinks and its other three ports."""
    run = read_run("incast128")
    peak = solve(run).peak_queue_bytes
    budget_bytes = 50 * 4160
    assert peak.max() <= 7 * budget_bytes * 1.01
    assert np.argmax(peak) == run.channel_names.index("LS0->DST0")


def test_events_one_by_one_give_the_batch() -> None:
    """Starts are rounded to whole ns here."""
    run = read_run("kv128mid")
    engine = PfcEngine(run.capacity_bps)
    finish_ns: dict[int, int] = {}
    starts_ns = np.rint(run.start_s * 1e9).astype(int).tolist()
    ids = np.argsort(starts_ns, kind="stable").tolist()
    for flow in ids:
        while (next_ns := engine.next_completion_ns()) is not None and next_ns <= starts_ns[flow]:
            finish_ns |= {ids[ended]: next_ns for ended in engine.advance(next_ns)}
            engine.check_invariants()
        engine.start_flows(starts_ns[flow], [run.paths[flow]], [int(run.size_bytes[flow])])
        engine.check_invariants()
    while (next_ns := engine.next_completion_ns()) is not None:
        finish_ns |= {ids[ended]: next_ns for ended in engine.advance(next_ns)}
        engine.check_invariants()
    finish_s = np.array([finish_ns[flow] for flow in range(run.num_flows)]) / 1e9
    assert finish_s == pytest.approx(solve(run).finish_s, rel=2e-3)
    sizes = np.zeros(len(run.channel_names))
    np.add.at(sizes, run.path_channels, np.repeat(run.size_bytes, np.diff(run.path_start)))
    assert engine.carried_bytes() == pytest.approx(sizes, rel=1e-12)
