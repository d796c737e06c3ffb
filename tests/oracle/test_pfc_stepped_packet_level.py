"""The time-stepped engine against packet-level runs of RoCE with PFC on the same paths."""

import numpy as np
import pytest
from flow_runs import end_instants_ns
from packet_level import WORKLOADS, read_run

from kvfabric.fabric.engines.pfc_stepped import PfcSteppedEngine
from kvfabric.plan.validation.packet_level import PAUSED_PORT_US, fct_errors

HELD_PAUSES = ("incast128", "incastv128", "perm128")


@pytest.mark.parametrize("name", WORKLOADS)
def test_completion_times(name: str) -> None:
    """Mean and p99 within 5 %, single flows within 10 % on average.

    A fluid moves a hop per step; the packets take the round trip until the last is acknowledged.
    """
    run = read_run(name)
    engine = PfcSteppedEngine(run.capacity_bps)
    starts_ns = np.round(run.start_s * 1e9).astype(np.int64)
    ends_ns = end_instants_ns(
        engine,
        list(zip(starts_ns.tolist(), run.paths, run.size_bytes.tolist(), strict=True)),
    )
    num_hops = np.array([len(path) for path in run.paths])
    in_switches_s = (num_hops - 1) * engine.step_ns * 1e-9
    fct_s = (ends_ns - starts_ns) * 1e-9 + run.round_trip_s - in_switches_s
    errors = fct_errors(fct_s, run.fct_s)
    assert abs(errors.mean) < 0.05
    assert abs(errors.p99) < 0.05
    assert errors.per_flow < 0.10
    if name in HELD_PAUSES:
        assert engine.paused_ns().sum() / 1e3 == pytest.approx(PAUSED_PORT_US[name], rel=0.10)
