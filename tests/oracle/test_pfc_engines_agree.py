"""The event-driven and the time-stepped engine on fabrics without packet-level data.

They share no arithmetic: stationary prices against queues and thresholds step by step.
"""

import numpy as np
import pytest
from flow_runs import Flow, end_instants_ns

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.choice import make_engine
from kvfabric.fabric.graph import FloatArray, Topology
from kvfabric.fabric.routes.load_balancing import make_load_balancer
from kvfabric.plan.validation.packet_level import fct_errors

MB = 10**6
NUM_GPUS = 64
NIC_BPS = 400 * 10**9
LOAD = 0.4  # of the senders' NICs


def flows_on(topology: Topology, seed: int) -> list[Flow]:
    """Return the sub-flows of 150 transfers from one half of the servers to the other.

    As from prefill to decode: Poisson, 32 to 256 MB, so that with two ports no sub-flow has less
    than 16 MB.
    """
    balancer = make_load_balancer("ecmp", topology, seed=seed)
    rng = np.random.default_rng(seed)
    half = NUM_GPUS // 2
    mean_gap_ns = 144 * MB * 8e9 / NIC_BPS / (LOAD * half)
    now_ns = 0.0
    flows: list[Flow] = []
    for i in range(150):
        now_ns += rng.exponential(mean_gap_ns)
        src, dst = int(rng.integers(half)), half + int(rng.integers(half))
        size = int(rng.integers(32, 257)) * MB
        subflows = balancer.route(src, dst, size, i)
        flows += [(int(now_ns), subflow.channels, subflow.num_bytes) for subflow in subflows]
    return flows


def completion_times_s(engine: str, topology: Topology) -> FloatArray:
    times = []
    for seed in (1, 2):
        flows = flows_on(topology, seed)
        ends_ns = end_instants_ns(make_engine(engine, topology.channel_capacity_bps), flows)
        times.append((ends_ns - np.array([start_ns for start_ns, _, _ in flows])) * 1e-9)
    return np.concatenate(times)


@pytest.mark.parametrize("kind", ["clos", "zcube", "roft", "rail-only"])
def test_mean_and_p99_are_within_five_percent(kind: str) -> None:
    """Measured, mean and p99: clos +0.6, +2.9 %; zcube +0.2, 0; roft -0.6, -4.8; rail-only
    +0.8, -0.4.

    A p99 of 300 to 600 flows is three to six of them.
    """
    topology = build_topology(kind, NUM_GPUS, radix=16, nic_rate_bps=NIC_BPS)
    event, stepped = (completion_times_s(name, topology) for name in ("pfc", "pfc-stepped"))
    errors = fct_errors(event, stepped)
    assert abs(errors.mean) < 0.05
    assert abs(errors.p99) < 0.05
