"""Print how many requests per second the serving simulation gets through.

    python bench/bench_serving.py azure [--requests 4000] [--repeat 3] [--profile]
    python bench/bench_serving.py scaling [--largest 1000000]
    python bench/bench_serving.py mooncake

``azure``: the Azure conversation trace, Llama-3.1-70B TP8 on H100, one prefill and one decode
worker, hand-offs over a rail-optimised fabric, block ids and prefix cache included. ``scaling``:
generated requests on 64 + 64 workers, ten times as many, a hundred times. ``mooncake``: the
one-hour conversation trace on 64 + 64 workers over ZCube. Traces come from the reference data
(``KVFABRIC_REFERENCE``).
"""

import argparse
import cProfile
import os
import pstats
import resource
import sys
import time  # noqa: TID251 — a bench reads a clock
from dataclasses import replace
from pathlib import Path

from kvfabric.app.models import load_geometry
from kvfabric.catalog.gpus import gpu
from kvfabric.compiled_core import is_core_compiled
from kvfabric.metrics.latency import Slo
from kvfabric.plan.compare import build_fabric, design_on
from kvfabric.plan.fleet import build_fleet, build_simulation
from kvfabric.plan.request import FabricChoice, NetworkRequest, PlanRequest, WorkerRequest
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.sim.simulation import RunResult
from kvfabric.workload.read import read_trace

REFERENCE = Path(os.environ.get("KVFABRIC_REFERENCE", Path(__file__).parents[2] / "shared/data"))
AZURE = "traces/azure/AzureLLMInferenceTrace_conv.csv.xz"
MOONCAKE = "traces/mooncake/conversation_trace.jsonl.xz"
SIZES = (10_000, 100_000, 1_000_000)


def request_of(workload: Workload, workers: WorkerRequest, kind: str, policy: str) -> PlanRequest:
    """Return the plan that a bench runs one design of."""
    return PlanRequest(
        name="bench",
        model_name="llama-3.1-70b",
        geometry=load_geometry("llama-3.1-70b"),
        gpu=gpu("h100-sxm-80gb"),
        num_users=100,
        num_context_tokens=8000,
        workers=workers,
        network=NetworkRequest(
            nic_rate_bps=400_000_000_000,
            fabrics=(FabricChoice(kind=kind),),
            load_balancing=(policy,),
        ),
        workload=workload,
        slo=Slo(ttft_ns=2_000_000_000, tpot_ns=50_000_000),
    )


def run(request: PlanRequest, *, profile: bool = False) -> tuple[RunResult, float]:
    """Return the result of one design and the CPU seconds of the run alone."""
    fleet = build_fleet(request)
    fabric = build_fabric(request, request.network.fabrics[0])
    network = design_on(request, fabric, request.network.load_balancing[0]).network
    simulation = build_simulation(request, fleet, network, is_disaggregated=True)
    profiler = cProfile.Profile()
    start = time.process_time()
    result = profiler.runcall(simulation.run) if profile else simulation.run()
    seconds = time.process_time() - start
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    return result, seconds


def report(name: str, result: RunResult, seconds: float) -> None:
    """Print one line."""
    count = len(result.records)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{name:28s} {count:9,d} requests {seconds:8.2f} CPU s {count / seconds:9,.0f} req/s"
        f" {result.num_events / count:6.2f} events/request  peak {peak:.2f} GB"
    )


def azure(num_requests: int, repeat: int, *, profile: bool) -> None:
    """Bench the first requests of the Azure conversation trace."""
    whole = read_trace(REFERENCE / AZURE, on_bad_rows="skip")
    workload = replace(whole, requests=whole.requests[:num_requests])
    workers = WorkerRequest(num_prefill=1, num_decode=1, block_size=16)
    request = request_of(workload, workers, "roft", "ecmp")
    for _ in range(repeat):
        report("azure 1P+1D", *run(request))
    if profile:
        run(request, profile=True)


def scaling(largest: int) -> None:
    """Bench generated load on 64 + 64 workers, at one rate, ever longer."""
    for num_requests in (size for size in SIZES if size <= largest):
        requests = tuple(
            RequestSpec(
                request_id=i,
                arrival_ns=i * 3_000_000,
                num_prompt_tokens=200 + 1237 * i % 2000,
                num_output_tokens=50 + 613 * i % 400,
            )
            for i in range(num_requests)
        )
        workload = Workload(
            name="generated", requests=requests, hash_block_tokens=0, num_rows=num_requests
        )
        workers = WorkerRequest(num_prefill=64, num_decode=64, block_size=16)
        report("generated 64P+64D", *run(request_of(workload, workers, "zcube", "assigned")))


def mooncake(*, profile: bool) -> None:
    """Bench the one-hour Mooncake conversation trace on 128 workers over ZCube."""
    workload = read_trace(REFERENCE / MOONCAKE)
    workers = WorkerRequest(num_prefill=64, num_decode=64, block_size=64)
    request = request_of(workload, workers, "zcube", "assigned")
    report("mooncake 64P+64D", *run(request))
    report("mooncake 64P+64D", *run(request))
    if profile:
        run(request, profile=True)


def main() -> None:
    """Run the bench named on the command line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("which", choices=["azure", "scaling", "mooncake"])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    core = (
        "machine code" if is_core_compiled() else "interpreted (./scripts/compile makes it faster)"
    )
    print(f"serving core: {core}")
    if args.which == "azure":
        azure(args.requests, args.repeat, profile=args.profile)
    elif args.which == "scaling":
        scaling(args.largest)
    else:
        mooncake(profile=args.profile)


if __name__ == "__main__":
    main()
