"""Speed of the time-stepped engine with priority flow control.

Clos of 128 hosts, 300 transfers of 16 to 256 MB from one half to the other at several loads, driven
event by event as a cluster simulation does. Best of three, CPU time.

Run: python bench/bench_pfc_stepped.py
"""

import sys
import time  # noqa: TID251 — a benchmark reads the clock

import numpy as np

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.engines.pfc_stepped import PfcSteppedEngine
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.load_balancing import make_load_balancer

NUM_GPUS, NUM_FLOWS, NIC_BPS, MB = 128, 300, 400 * 10**9, 10**6
Flow = tuple[int, tuple[int, ...], int]


def flows_at(load: float, topology: Topology) -> list[Flow]:
    """Return flows in order of start; ``load`` is the share of the senders' NICs."""
    balancer, rng = make_load_balancer("ecmp", topology), np.random.default_rng(1)
    half = NUM_GPUS // 2
    mean_gap_ns = 136 * MB * 8e9 / NIC_BPS / (load * half)
    now_ns, flows = 0.0, []
    for i in range(NUM_FLOWS):
        now_ns += rng.exponential(mean_gap_ns)
        src, dst = int(rng.integers(half)), half + int(rng.integers(half))
        (subflow,) = balancer.route(src, dst, int(rng.integers(16, 257)) * MB, i)
        flows.append((int(now_ns), subflow.channels, subflow.num_bytes))
    return flows


def cpu_s(engine: PfcSteppedEngine, flows: list[Flow]) -> float:
    """Return the CPU time of starting and ending all flows."""
    begin = time.process_time()
    for start_ns, path, num_bytes in flows:
        while (next_ns := engine.next_completion_ns()) is not None and next_ns <= start_ns:
            engine.advance(next_ns)
        engine.start_flows(start_ns, [path], [num_bytes])
    while (next_ns := engine.next_completion_ns()) is not None:
        engine.advance(next_ns)
    return time.process_time() - begin


def main() -> int:
    """Print one line per load and time scale."""
    topology = build_topology("clos", NUM_GPUS, radix=16, nic_rate_bps=NIC_BPS)
    print(f"{'load':>5} {'scale':>5} {'CPU s':>8} {'flows/CPU s':>12} {'M flow-steps':>13}")
    for load in (0.05, 0.2, 0.4):
        flows = flows_at(load, topology)
        for scale in (1, 10):
            engines = [
                PfcSteppedEngine(topology.channel_capacity_bps, time_scale=scale) for _ in range(3)
            ]
            best = min(cpu_s(engine, flows) for engine in engines)
            steps = engines[0].num_flow_steps / 1e6
            print(f"{load:>5} {scale:>5} {best:>8.3f} {NUM_FLOWS / best:>12,.0f} {steps:>13.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
