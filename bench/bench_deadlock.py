"""Print how long the deadlock check takes on fabrics of 4,096 GPUs.

python bench/bench_deadlock.py
"""

import time  # noqa: TID251 — a bench reads a clock

from kvfabric.fabric.build import BUILDERS, build_topology
from kvfabric.fabric.deadlocks.deadlock import deadlock_report

GBIT = 10**9
NUM_GPUS = 4096
# kind: NIC rate in Gbit/s, ports per switch
SIZES = {
    "clos": (400, 64),
    "roft": (400, 64),
    "rail-only": (400, 64),
    "multi-plane": (400, 64),
    "hpn": (400, 128),
    "zcube": (400, 128),
    "dragonfly": (400, 23),
    "bcube": (400, 64),
}


def main() -> None:
    """Print one line per kind, with the time of graph, paths and check together."""
    for kind, (rate, radix) in SIZES.items():
        if kind not in BUILDERS:
            continue
        topology = build_topology(kind, NUM_GPUS, nic_rate_bps=rate * GBIT, radix=radix)
        start, clock = time.process_time(), time.perf_counter()
        report = deadlock_report(topology, "ecmp")
        used, wall = time.process_time() - start, time.perf_counter() - clock
        print(f"{topology.name}: {used:.1f} CPU s, {wall:.1f} s, {report.num_dependencies} pairs")
        print(f"  {report.lines()[0]}")


if __name__ == "__main__":
    main()
