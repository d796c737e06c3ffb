"""10,000 flows among 1,024 hosts end when SimGrid says they end.

Source: SimGrid 3.32, network model CM02, run on a three-tier fat tree of radix 16 with 400 Gbit/s
links; half of the hosts send KV caches (64 MB to 8 GB, log-uniform, Poisson arrivals at load 0.5)
to the other half. The folder ``fabric/maxmin`` of the reference data holds the workload and
SimGrid's finish instants.
"""

import numpy as np
import pytest
from reference import reference_path

from kvfabric.app.validate_reference import ReferenceFolder
from kvfabric.fabric.engines.maxmin import MaxMinEngine, solve_flows
from kvfabric.plan.validation.reference import TimedFlows


@pytest.fixture(scope="module")
def workload() -> TimedFlows:
    folder = reference_path("fabric/maxmin")
    return ReferenceFolder(folder.parents[1]).timed_flows()


@pytest.mark.parametrize("full_solve_above", [1 / 3, 1.0])
def test_batch_ends_every_flow_when_simgrid_does(
    workload: TimedFlows, full_solve_above: float
) -> None:
    finish_s = solve_flows(
        workload.capacity_bps,
        workload.path_start,
        workload.path_channels,
        workload.start_s,
        workload.size_bytes,
        full_solve_above=full_solve_above,
    )
    took_s, simgrid_s = finish_s - workload.start_s, workload.finish_s - workload.start_s
    assert len(finish_s) == 10_000
    assert np.max(np.abs(took_s / simgrid_s - 1)) < 1e-9


def test_engine_in_whole_ns_stays_within_ten_ns_of_simgrid(workload: TimedFlows) -> None:
    """Starts and ends are rounded to whole ns here, and flows pass the shift on to others."""
    engine = MaxMinEngine(workload.capacity_bps)
    finish_ns: dict[int, int] = {}
    starts_ns = np.rint(workload.start_s * 1e9).astype(int).tolist()
    paths = np.split(workload.path_channels, workload.path_start[1:-1])
    for flow, start_ns in enumerate(starts_ns):
        while (next_ns := engine.next_completion_ns()) is not None and next_ns <= start_ns:
            finish_ns |= dict.fromkeys(engine.advance(next_ns), next_ns)
        engine.start_flows(start_ns, [paths[flow].tolist()], [int(workload.size_bytes[flow])])
    while (next_ns := engine.next_completion_ns()) is not None:
        finish_ns |= dict.fromkeys(engine.advance(next_ns), next_ns)
    ended_ns = np.array([finish_ns[flow] for flow in range(len(starts_ns))])
    assert np.max(np.abs(ended_ns - workload.finish_s * 1e9)) < 10


def test_channels_carry_all_bytes_of_a_burst(workload: TimedFlows) -> None:
    """The first 1,000 flows start together, so that whole trees of channels are saturated."""
    num_flows = 1000
    engine = MaxMinEngine(workload.capacity_bps)
    paths = np.split(workload.path_channels, workload.path_start[1:-1])[:num_flows]
    sizes = workload.size_bytes[:num_flows]
    engine.start_flows(0, [path.tolist() for path in paths], sizes.tolist())
    engine.check_invariants()
    engine.advance(10**13)
    expected = np.zeros(len(workload.capacity_bps))
    np.add.at(expected, np.concatenate(paths), np.repeat(sizes, [len(path) for path in paths]))
    assert engine.num_active == 0
    assert engine.carried_bytes() == pytest.approx(expected, rel=1e-12)
