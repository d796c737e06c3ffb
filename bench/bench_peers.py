"""Print our speed beside AISimulate's, the fastest peer known, on the same requests in one run.

    python bench/bench_peers.py --aisimulate OTHER/bin/aisimulate [--requests 4000] [--rounds 3]

OTHER is an environment of its own (it needs 1.5 GB):

    pip install --only-binary aisimulate aisimulate==0.13.0.dev202610270000000085

Work: the first requests of the Azure conversation trace as Mooncake rows whose blocks nobody
shares; Llama-3.1-70B on one prefill and one decode worker of 8 H100, blocks of 16 tokens. The
peer's hand-off is one rate (25 GB/s) without a network; ours has eight flows over a rail-optimised
fabric with ECMP. Both replay the same file by their commands; the machine's speed cancels out only
within a round, so rounds alternate.

- process: CPU seconds of the command, start to end;
- simulation: requests per second without the start. Of the peer what it prints as wall time, and
  beside it the slope between this many requests and a quarter of them, which leaves out tables that
  it loads on the way. Of ours one run after a first one, in CPU seconds.
"""

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench_serving import AZURE, REFERENCE, request_of, run

from kvfabric.compiled_core import is_core_compiled
from kvfabric.plan.request import WorkerRequest
from kvfabric.protocol.workload import RequestSpec
from kvfabric.workload.read import read_trace

HASH_TOKENS = 512
THEIRS = """
traffic:
  source: {{type: trace, paths: ["{trace}"], format: mooncake, block_size: 512}}
  load: {{type: trace_timestamps}}
engine:
  mode: disaggregated
  model: meta-llama/Meta-Llama-3.1-70B
  hardware: h100_sxm
  backend: vllm
  workers:
    prefill: {{parallelism: {{tensor: 8}}, kv_cache: {{block_size: 16}}}}
    decode: {{parallelism: {{tensor: 8}}, kv_cache: {{block_size: 16}}}}
  kv_transfer: {{bandwidth_gb_per_second: 25}}
"""
OURS = """
schema_version: 1
name: bench
model: llama-3.1-70b
gpu: h100-sxm-80gb
workers: {prefill: 1, decode: 1, tp: 8}
fabric: {nic_rate: 400 Gbit/s, kinds: [roft], load_balancing: [ecmp]}
workload: {kind: trace}
"""


class Round(NamedTuple):
    """What one round gave: CPU seconds of the commands, requests per second of the simulations."""

    their_process_s: float
    their_printed: float
    their_slope: float
    our_process_s: float
    our_rate: float


def write_trace(requests: tuple[RequestSpec, ...], file: Path) -> None:
    """Write requests as rows with hashes that no two of them share."""
    next_hash = 0
    with file.open("w") as rows:
        for spec in requests:
            num_hashes = -(-spec.num_prompt_tokens // HASH_TOKENS)
            row = {
                "timestamp": spec.arrival_ns // 1_000_000,
                "input_length": spec.num_prompt_tokens,
                "output_length": spec.num_output_tokens,
                "hash_ids": list(range(next_hash, next_hash + num_hashes)),
            }
            next_hash += num_hashes
            rows.write(json.dumps(row) + "\n")


def timed(command: list[str], folder: Path) -> tuple[float, str]:
    """Return the CPU seconds of a command and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = subprocess.run(  # noqa: S603 — commands named by who runs this
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if made.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{made.stdout}{made.stderr}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, made.stdout + made.stderr


def run_theirs(aisimulate: str, trace: Path) -> tuple[float, float]:
    """Return CPU seconds of the process and seconds of the simulation as it prints them."""
    config = trace.with_suffix(".yaml")
    config.write_text(THEIRS.format(trace=trace))
    command = [aisimulate, "predict", "-c", str(config), "--overwrite"]
    seconds, text = timed(command, trace.parent)
    found = re.search(r"Wall Time \(ms\): ([\d,.]+)", text)
    if found is None:
        raise SystemExit(f"no wall time in what {aisimulate} printed:\n{text}")
    return seconds, float(found[1].replace(",", "")) / 1000


def run_ours(trace: Path) -> float:
    """Return CPU seconds of the process of our command."""
    scenario = trace.with_suffix(".ours.yaml")
    scenario.write_text(OURS)
    kvfabric = str(Path(sys.executable).with_name("kvfabric"))
    command = [kvfabric, "simulate", str(scenario), "--trace", str(trace)]
    return timed(command, trace.parent)[0]


def simulation_of(trace: Path) -> Callable[[], float]:
    """Return what runs our simulation of a trace and returns its requests per CPU second."""
    workload = read_trace(trace)
    workers = WorkerRequest(num_prefill=1, num_decode=1, block_size=16)
    request = request_of(workload, workers, "roft", "ecmp")
    return lambda: len(workload.requests) / run(request)[1]


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--aisimulate", required=True, metavar="FILE")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"our core: {'machine code' if is_core_compiled() else 'interpreted'}")
    whole = read_trace(REFERENCE / AZURE, on_bad_rows="skip")
    num, num_few = args.requests, args.requests // 4
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as folder:
        many, few = Path(folder, "many.jsonl"), Path(folder, "few.jsonl")
        write_trace(whole.requests[:num], many)
        write_trace(whole.requests[:num_few], few)
        ours = simulation_of(many)
        ours()
        for _ in range(args.rounds):
            _, few_s = run_theirs(args.aisimulate, few)
            process_s, many_s = run_theirs(args.aisimulate, many)
            slope = (num - num_few) / (many_s - few_s)
            one = Round(process_s, num / many_s, slope, run_ours(many), ours())
            rounds.append(one)
            print(
                f"AISimulate: process {one.their_process_s:6.2f} CPU s, simulation"
                f" {one.their_printed:6,.0f} (slope {one.their_slope:6,.0f}) requests/s"
                f"   kvfabric: process {one.our_process_s:6.2f} CPU s, simulation"
                f" {one.our_rate:6,.0f} requests/s"
            )
    ratios = {
        "simulation, as it prints": [one.our_rate / one.their_printed for one in rounds],
        "simulation, by the slope": [one.our_rate / one.their_slope for one in rounds],
        "process": [one.their_process_s / one.our_process_s for one in rounds],
    }
    for name, values in ratios.items():
        print(
            f"kvfabric is {statistics.median(values):.2f} times as fast ({name};"
            f" {min(values):.2f} to {max(values):.2f})"
        )


if __name__ == "__main__":
    main()
