"""Does a profile of this machine predict what the engine does on it?

Records profiles, runs requests through a real cluster, simulates the same requests with each one
and prints both. One profile is of an executor that has the machine to itself; with several workers
another one is recorded in place: a load runs through the same cluster, and lines are fitted to its
steps and transfers. A third one is fitted to the steps of the run itself, as ``serve --record``
does: it tells what of the error is the simulation's, not that of another time and load. Ratios, no
absolute promise: run it on a machine that does nothing else, since what else runs changes between
the record and the run.

    python bench/bench_prediction.py --model smollm2 --threads 1
    python bench/bench_prediction.py --model smollm2 --threads 1 --decode 1
"""

import argparse
import time  # noqa: TID251 - measures
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from kvfabric.engine.block_hashes import block_hashes
from kvfabric.engine.cluster_settings import ClusterSettings, coordinator_of, schedulers_of
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import FinishReason, Sampling
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec, make_executor
from kvfabric.engine.local_cluster import LocalCluster
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.engine.profile_in_place import LoadShape, fit_step_times
from kvfabric.engine.profile_recorder import control_ns, needed_blocks, record_step_times
from kvfabric.engine.record_in_place import run_in_place
from kvfabric.engine.traffic_log import step_times_of
from kvfabric.metrics.latency import tpot_ns, ttft_ns
from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.perf.transfer_times import MeasuredTransfers, TransferTimes
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig

BATCHES, CONTEXTS = (1, 2, 4, 8), (32, 384)
CHUNKS, HISTORIES = (16, 64, 128, 240, 352), (0, 128)
_NO_TRANSFERS = TransferTimes(
    setup_ns=0, bytes_per_s=10**12, source=Source(SourceKind.ASSUMED, "nothing moves")
)


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
    settings: ClusterSettings, log: DecisionLog, times: StepTimes, block_bytes: int
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
    network = MeasuredTransfers(times.transfers or _NO_TRANSFERS)
    simulation = Simulation(SimulationConfig(), workload, coordinator, workers, network)
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


def in_place(settings: ClusterSettings, spec: ExecutorSpec, source: Source) -> StepTimes:
    """Return a profile of the cluster under a load of its own."""
    log = run_in_place(settings, spec, LoadShape())
    return fit_step_times(
        log,
        settings,
        batches=BATCHES,
        contexts=CONTEXTS,
        chunks=CHUNKS,
        histories=HISTORIES,
        source=source,
    )


def show(times: StepTimes) -> None:
    """Print a profile."""
    print(times.source.text)
    for name, axis, grid in (
        ("decode, ms", times.batches, times.decode_ns),
        ("prefill, ms", times.chunks, times.prefill_ns),
    ):
        for size, row in zip(axis, grid, strict=True):
            print(f"  {name:12} {size:4}  " + "  ".join(f"{ns / 1e6:8.2f}" for ns in row))
    print(f"  control      {times.control_ns / 1e6:8.3f} ms per step")
    if times.transfers is not None:
        setup_ns, rate = times.transfers.setup_ns, times.transfers.bytes_per_s
        print(f"  transfer     {setup_ns / 1e6:.2f} ms and {rate / 1e9:.2f} GB/s")


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
    alone = record_step_times(
        make_executor(spec).executor,
        settings.block_size,
        batches=BATCHES,
        contexts=CONTEXTS,
        chunks=CHUNKS,
        histories=HISTORIES,
        control_ns=control_ns(control_log),
        repeats=3,
        source=Source(SourceKind.MEASURED, f"{options.model}, {options.dtype}, alone"),
    )
    profiles = [alone]
    if settings.num_workers > 1:
        source = Source(SourceKind.MEASURED, f"{options.model}, {options.dtype}, in place")
        placed = in_place(settings, spec, source)
        profiles = [replace(alone, transfers=placed.transfers), placed]
    requests, gaps_s = requests_of(options.requests, options.rate, seed=1)
    log, block_bytes = run(settings, spec, requests, gaps_s)
    source = Source(SourceKind.MEASURED, f"{options.model}, {options.dtype}, of the run itself")
    profiles.append(step_times_of(log, settings, source))
    for times in profiles:
        show(times)
        predicted = simulate(settings, log, times, block_bytes)
        for name, of in (("TTFT", ttft_ns), ("TPOT", tpot_ns)):
            real, said = mean_ms([of(r) for r in log.records]), mean_ms([of(r) for r in predicted])
            ratio = f"{said / real - 1:+.1%}"
            print(f"  mean {name}: measured {real:.1f} ms, predicted {said:.1f} ms, {ratio}")


if __name__ == "__main__":
    main()
