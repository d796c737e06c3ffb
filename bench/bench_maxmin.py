"""Print how many flows per CPU second the max-min engines get through, side by side.

    python bench/bench_maxmin.py [workload_1024h_10k_load0.5.txt.gz]

Without a file, the one in the reference data is taken (``KVFABRIC_REFERENCE``). The second table
draws a like workload at load 0.8; the third is the cost of the first and of later program starts.
"""

import gzip
import os
import subprocess
import sys
import tempfile
import time  # noqa: TID251 — a bench reads a clock
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvfabric.fabric.engines.maxmin import MaxMinEngine, solve_flows
from kvfabric.fabric.engines.maxmin_reference import ReferenceEngine
from kvfabric.fabric.engines.maxmin_tables import Floats, Ints

REFERENCE = Path(os.environ.get("KVFABRIC_REFERENCE", Path(__file__).parents[2] / "shared/data"))
WORKLOAD = "fabric/maxmin/workload_1024h_10k_load0.5.txt.gz"
LINK_BPS = 400e9

FIRST_USE = """
import time; start = time.process_time()
import numpy as np
from kvfabric.fabric.engines.maxmin import MaxMinEngine
engine = MaxMinEngine(np.full(2, 1e9))
engine.start_flows(0, [[0], [1]], [100, 100])
engine.cancel_flows(1, [0])
engine.advance(10**9)
print(time.process_time() - start)
"""


class Workload(NamedTuple):
    """The arguments of ``solve_flows``."""

    capacity_bps: Floats
    path_start: Ints
    path_channels: Ints
    start_s: Floats
    size_bytes: Ints


def load_workload(path: Path) -> Workload:
    """Return flows from ``N L F``, L bytes/s, then ``src dst start size num_links link...``."""
    with gzip.open(path, "rt") as file:
        _, num_links, _ = map(int, file.readline().split())
        capacity_bps: list[float] = []
        while len(capacity_bps) < num_links:
            capacity_bps += [8 * float(word) for word in file.readline().split()]
        rows = [words for line in file if (words := line.split())]
    paths = [np.array(row[5:], np.int64) for row in rows]
    return Workload(
        np.array(capacity_bps),
        np.cumsum([0, *map(len, paths)]),
        np.concatenate(paths),
        np.array([float(row[2]) for row in rows]),
        np.array([int(row[3]) for row in rows]),
    )


def draw_workload(radix: int, num_flows: int, load: float, seed: int = 1) -> Workload:
    """Return Poisson KV transfers of 64 MB to 8 GB over a three-tier fat tree.

    The hosts of even leaves send to those of odd leaves over hashed paths. Channels, in order: host
    up, host down, then leaf up and down, then aggregation up and down.
    """
    rng = np.random.default_rng(seed)
    half = radix // 2
    num_hosts, least, most = radix * half * half, 64e6, 8e9
    hosts = np.arange(num_hosts).reshape(-1, 2, half)
    source = rng.choice(hosts[:, 0].ravel(), num_flows)
    target = rng.choice(hosts[:, 1].ravel(), num_flows)
    sizes = np.exp(rng.uniform(np.log(least), np.log(most), num_flows)).astype(np.int64)
    mean_bytes = (most - least) / np.log(most / least)
    arrivals_per_s = load * num_hosts / 2 * LINK_BPS / 8 / mean_bytes
    up, across = rng.integers(0, half, (2, num_flows))
    source_pod, target_pod = source // half**2, target // half**2
    host_up, host_down = source, num_hosts + target
    leaf_up = 2 * num_hosts + source // half * half + up
    leaf_down = 3 * num_hosts + target // half * half + up
    core_up = 4 * num_hosts + (source_pod * half + up) * half + across
    core_down = 5 * num_hosts + (target_pod * half + up) * half + across
    rows = np.stack([host_up, leaf_up, core_up, core_down, leaf_down, host_down], axis=1)
    is_used = np.ones_like(rows, bool)
    is_used[:, 2:4] = (source_pod != target_pod)[:, None]
    return Workload(
        np.full(6 * num_hosts, LINK_BPS),
        np.concatenate([[0], np.cumsum(is_used.sum(axis=1))]),
        rows[is_used],
        np.cumsum(rng.exponential(1 / arrivals_per_s, num_flows)),
        sizes,
    )


def drive(engine: MaxMinEngine | ReferenceEngine[float], workload: Workload, num: int) -> None:
    """Run the first flows of a workload event by event, as a simulator would."""
    starts_ns = np.rint(workload.start_s[:num] * 1e9).astype(np.int64).tolist()
    paths = np.split(workload.path_channels, workload.path_start[1:-1])
    for flow, start_ns in enumerate(starts_ns):
        while (next_ns := engine.next_completion_ns()) is not None and next_ns <= start_ns:
            engine.advance(next_ns)
        engine.start_flows(start_ns, [paths[flow].tolist()], [int(workload.size_bytes[flow])])
    while (next_ns := engine.next_completion_ns()) is not None:
        engine.advance(next_ns)


def cpu_s(run: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of some runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def show(name: str, num_flows: int, seconds: float) -> None:
    """Print one row."""
    print(f"{name:<44}{num_flows:>8}{seconds:>10.3f}{num_flows / seconds:>14,.0f}")


def compare(title: str, workload: Workload, *, repeats: int, num_reference: int) -> None:
    """Print one table."""
    num = len(workload.start_s)
    capacity_bps = [int(bps) for bps in workload.capacity_bps]
    solve_flows(*workload)  # compiles
    print(f"\n{title:<44}{'flows':>8}{'CPU s':>10}{'flows/CPU s':>14}")
    show("one call, affected flows only", num, cpu_s(lambda: solve_flows(*workload), repeats))
    full_s = cpu_s(lambda: solve_flows(*workload, full_solve_above=0.0), 1)
    show("one call, all flows at every event", num, full_s)
    driven_s = cpu_s(lambda: drive(MaxMinEngine(workload.capacity_bps), workload, num), repeats)
    show("event by event from Python", num, driven_s)
    reference_s = cpu_s(
        lambda: drive(ReferenceEngine(capacity_bps, float), workload, num_reference), 1
    )
    show("readable reference, first flows only", num_reference, reference_s)


def show_first_use() -> None:
    """Print the CPU time of a small run with an empty and with a warm cache of compiled code."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", FIRST_USE]
        for name in ("first program start, compiling", "later program starts"):
            done = subprocess.run(  # noqa: S603 — our own interpreter and text
                command,
                env=os.environ | {"NUMBA_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"{name:<44}{'':>8}{float(done.stdout):>10.2f}")


def main() -> None:
    """Print the tables."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE / WORKLOAD
    if path.exists():
        compare("1,024 hosts, load 0.5", load_workload(path), repeats=5, num_reference=100)
    else:
        print(f"{path} is not here; the first table is left out")
    compare(
        "1,024 hosts, load 0.8, drawn",
        draw_workload(16, 10_000, 0.8),
        repeats=1,
        num_reference=100,
    )
    large = draw_workload(32, 100_000, 0.5)
    print(f"\n{'8,192 hosts, load 0.5, drawn':<44}{'flows':>8}{'CPU s':>10}{'flows/CPU s':>14}")
    show("one call, affected flows only", 100_000, cpu_s(lambda: solve_flows(*large), 1))
    print()
    show_first_use()


if __name__ == "__main__":
    main()
