"""Print how many flows per CPU second the event-driven PFC engine gets through, by load.

    python bench/bench_pfc.py

1,024 hosts on a three-tier fat tree of 400 Gbit/s links, 512 of which send to the other 512 over
hashed paths; Poisson arrivals, sizes log-uniform from 0.1 to 10 GB; the load is that of the sending
NICs. The max-min engine runs beside it on the same flows.
"""

import time  # noqa: TID251 — a bench reads a clock
from collections.abc import Callable

import numpy as np
from bench_maxmin import LINK_BPS, Workload, draw_workload

from kvfabric.fabric.engines import maxmin, pfc

LEAST_BYTES, MOST_BYTES = 1e8, 1e10
NUM_SENDERS = 512
RUNS = ((0.05, 20_000), (0.10, 20_000), (0.15, 10_000), (0.20, 10_000))


def draw(load: float, num_flows: int) -> Workload:
    """Return the flows of one load."""
    workload = draw_workload(16, num_flows, load)
    rng = np.random.default_rng(2)
    sizes = np.exp(rng.uniform(np.log(LEAST_BYTES), np.log(MOST_BYTES), num_flows))
    mean_bytes = (MOST_BYTES - LEAST_BYTES) / np.log(MOST_BYTES / LEAST_BYTES)
    flows_per_s = load * NUM_SENDERS * LINK_BPS / 8 / mean_bytes
    starts = np.cumsum(rng.exponential(1 / flows_per_s, num_flows))
    return workload._replace(size_bytes=sizes.astype(np.int64), start_s=starts)


def drive(workload: Workload) -> None:
    """Run the flows of a workload event by event, as a simulator would."""
    engine = pfc.PfcEngine(workload.capacity_bps)
    starts_ns = np.rint(workload.start_s * 1e9).astype(np.int64).tolist()
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


def show(load: float, workload: Workload) -> None:
    """Print one row."""
    num_flows = len(workload.start_s)
    solution = pfc.solve_flows(*workload)  # compiles
    fair_s = maxmin.solve_flows(*workload)
    rates = [
        num_flows / cpu_s(lambda: pfc.solve_flows(*workload), 5),
        num_flows / cpu_s(lambda: drive(workload), 2),
        num_flows / cpu_s(lambda: maxmin.solve_flows(*workload), 5),
    ]
    share = solution.num_unconverged / solution.num_solves
    slower = (solution.finish_s - workload.start_s).mean() / (fair_s - workload.start_s).mean()
    columns = "".join(f"{rate:>10,.0f}" for rate in rates)
    print(f"{load:>5.2f}{num_flows:>8}{columns}{share:>14.2%}{slower:>12.3f}")


def main() -> None:
    """Print one row per load."""
    print(f"{'load':>5}{'flows':>8}{'pfc':>10}{'driven':>10}{'max-min':>10}  flows per CPU second")
    print(f"{'':>13}{'in one call':>10}{'by events':>10}   unconverged  mean FCT pfc / max-min")
    for load, num_flows in RUNS:
        show(load, draw(load, num_flows))


if __name__ == "__main__":
    main()
