"""Does a profile of this machine predict what the engine does on it?

Records step times, control and transfer times, runs requests through a real cluster, simulates the
same requests with the profile, and prints both. Ratios, no absolute promise: run it on a machine
that does nothing else.

    python bench/bench_prediction.py --model smollm2 --threads 1
    python bench/bench_prediction.py --model smollm2 --threads 1 --decode 1
"""

import argparse
import time  # noqa: TID251 - measures
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from kvfabric.engine.block_hashes import block_hashes
from kvfabric.engine.cluster_settings import ClusterSettings, coordinator_of, schedulers_of
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import FinishReason, Sampling
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec, make_executor
from kvfabric.engine.local_cluster import LocalCluster
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.engine.profile_recorder import (
    control_ns,
    needed_blocks,
    record_step_times,
    transfer_line,
)
from kvfabric.metrics.latency import tpot_ns, ttft_ns
from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig
from kvfabric.units import ceil_div

BATCHES, CONTEXTS = (1, 2, 4, 8), (32, 384)
CHUNKS, HISTORIES = (16, 128, 352), (0, 128)


@dataclass
class Collector:
    """Keeps records."""

    records: list[RequestRecord] = field(default_factory=list[RequestRecord])

    def on_token(self, request_id: int, token_id: int) -> None:
        """Let a token go."""

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        """Keep the record."""
        del finish
        self.records.append(record)


@dataclass
class Line:
    """A network where every transfer takes a constant and its bytes."""

    start_ns: int
    bytes_per_s: int
    moving: dict[int, int] = field(default_factory=dict[int, int])

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin a transfer."""
        bytes_ns = transfer.num_bytes * 10**9 // self.bytes_per_s
        self.moving[transfer.transfer_id] = now_ns + self.start_ns + bytes_ns

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Drop a transfer."""
        del now_ns
        del self.moving[transfer_id]

    def next_completion_ns(self) -> int | None:
        """Return the next end."""
        return min(self.moving.values(), default=None)

    def advance(self, now_ns: int) -> list[int]:
        """Return what has ended."""
        done = sorted((end, i) for i, end in self.moving.items() if end <= now_ns)
        for _, transfer_id in done:
            del self.moving[transfer_id]
        return [transfer_id for _, transfer_id in done]


def run(
    settings: ClusterSettings,
    spec: ExecutorSpec,
    requests: Sequence[GenerateRequest],
    gaps_s: Sequence[float],
) -> tuple[DecisionLog, int]:
    """Return the log of a real run, and the bytes of a block."""
    collector, log = Collector(), DecisionLog()
    cluster: LocalCluster | ProcessCluster
    if settings.num_workers > 1:
        cluster = ProcessCluster(settings, spec, collector, log=log)
    else:
        made = make_executor(spec)
        cluster = LocalCluster(
            settings,
            [made.executor],
            collector,
            block_bytes=made.layout.block_bytes,
            num_layers=made.layout.num_layers,
            log=log,
        )
    with cluster:
        for request, gap_s in zip(requests, gaps_s, strict=True):
            time.sleep(gap_s)
            cluster.loop.submit(request)
        while len(collector.records) < len(requests):
            cluster.raise_if_failed()
            time.sleep(0.01)
    return log, cluster.block_bytes


def simulate(
    settings: ClusterSettings, log: DecisionLog, times: StepTimes, line: Line, block_bytes: int
) -> list[RequestRecord]:
    """Return what the simulation predicts for the requests of a run, as they arrived."""
    outputs = {record.request_id: record.num_output_tokens for record in log.records}
    specs = [
        RequestSpec(
            request_id=arrival.request_id,
            arrival_ns=arrival.time_ns,
            num_prompt_tokens=arrival.num_prompt_tokens,
            num_output_tokens=outputs[arrival.request_id],
            max_tokens=arrival.max_tokens,
            block_hashes=arrival.block_hashes,
        )
        for arrival in log.arrivals
    ]
    workload = Workload(
        name="run",
        requests=tuple(specs),
        hash_block_tokens=settings.block_size,
        num_rows=len(specs),
    )
    workers = [
        (
            scheduler,
            SimExecutor(
                MeasuredStepModel(times),
                outputs,
                samples_first_token=not settings.num_decode or worker >= settings.num_prefill,
            ),
        )
        for worker, scheduler in enumerate(schedulers_of(settings))
    ]
    coordinator = coordinator_of(settings, block_bytes)
    simulation = Simulation(SimulationConfig(), workload, coordinator, workers, line)
    return list(simulation.run().records)


def calibrate(
    settings: ClusterSettings, spec: ExecutorSpec, prompts: Sequence[int]
) -> tuple[DecisionLog, int]:
    """Return the log of prompts of these lengths, one at a time, and the bytes of a block."""
    requests = [
        GenerateRequest(i, tuple((i + j) % 199 for j in range(n)), Sampling(4, ignore_eos=True))
        for i, n in enumerate(prompts)
    ]
    return run(settings, spec, requests, [0.5] * len(requests))


def requests_of(num: int, rate: float, seed: int) -> tuple[list[GenerateRequest], list[float]]:
    """Return requests of many lengths, and the pauses before them."""
    random = Random(seed)  # noqa: S311 - a load, not a secret
    requests: list[GenerateRequest] = []
    for i in range(num):
        prompt = tuple(random.randrange(200) for _ in range(random.randint(32, 350)))
        sampling = Sampling(random.randint(8, 40), ignore_eos=True)
        requests.append(GenerateRequest(i, prompt, sampling, block_hashes(prompt, 16)))
    return requests, [random.expovariate(rate) for _ in requests]


def mean_ms(values: Sequence[int | None]) -> float:
    """Return the mean in ms."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) / 1e6


def main() -> None:
    """Measure, run, predict, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--fake-step-ms", type=float, default=0.0, help="of every step, with --model fake"
    )
    parser.add_argument("--decode", type=int, default=0)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second")
    options = parser.parse_args()
    settings = ClusterSettings(
        num_decode=options.decode, num_blocks=512, max_model_len=512, max_num_seqs=8
    )
    num_blocks = max(512, needed_blocks(BATCHES, CONTEXTS, settings.block_size))
    spec = ExecutorSpec(
        model=options.model,
        num_blocks=num_blocks,
        block_size=settings.block_size,
        dtype=options.dtype,
        num_threads=options.threads,
        fake_step_ns=round(options.fake_step_ms * 1e6),
    )
    fake = ExecutorSpec(model=FAKE, num_blocks=512, block_size=settings.block_size)
    control_log, _ = calibrate(settings, fake, [40] * 8)
    times = record_step_times(
        make_executor(spec).executor,
        settings.block_size,
        batches=BATCHES,
        contexts=CONTEXTS,
        chunks=CHUNKS,
        histories=HISTORIES,
        control_ns=control_ns(control_log),
        repeats=3,
        source=Source(SourceKind.MEASURED, f"this machine, {options.model}, {options.dtype}"),
    )
    for name, axis, grid in (
        ("decode, ms", BATCHES, times.decode_ns),
        ("prefill, ms", CHUNKS, times.prefill_ns),
    ):
        for size, row in zip(axis, grid, strict=True):
            print(f"{name:12} {size:4}  " + "  ".join(f"{ns / 1e6:8.2f}" for ns in row))
    print(f"control      {times.control_ns / 1e6:8.3f} ms per step")
    line = Line(0, 10**12)
    if options.decode:
        lengths = [16, 320] * 4
        log, block_bytes = calibrate(settings, spec, lengths)
        line = Line(*transfer_line(log, [ceil_div(n, 16) * block_bytes for n in lengths]))
        print(f"transfer     {line.start_ns / 1e6:.2f} ms and {line.bytes_per_s / 1e9:.2f} GB/s")
    requests, gaps_s = requests_of(options.requests, options.rate, seed=1)
    log, block_bytes = run(settings, spec, requests, gaps_s)
    predicted = simulate(settings, log, times, line, block_bytes)
    for name, of in (("TTFT", ttft_ns), ("TPOT", tpot_ns)):
        real, said = mean_ms([of(r) for r in log.records]), mean_ms([of(r) for r in predicted])
        print(
            f"mean {name}: measured {real:.1f} ms, predicted {said:.1f} ms, {said / real - 1:+.1%}"
        )


if __name__ == "__main__":
    main()
