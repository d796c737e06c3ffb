"""Small clusters with stand-in step times and a stand-in network, for tests of the control code."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import (
    CoordinatorConfig,
    HandoffMode,
    OnExpiry,
    Reservation,
)
from kvfabric.serving.router import Router, RoutingPolicy
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig

BYTES_PER_TOKEN = 3
GPUS_PER_WORKER = 2


class LinearModel:
    """Step time = 1000 + 7 per token + 1 per 16 context tokens, in ns; runs by plain addition."""

    source = Source(SourceKind.ASSUMED, "test double")

    def mixed_step_ns(self, shape: StepShape) -> int:
        tokens = shape.num_decodes + sum(num for num, _ in shape.prefill)
        context = shape.context_tokens + sum(num + history for num, history in shape.prefill)
        return 1000 + 7 * tokens + context // 16

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        steps = range(num_iterations)
        return sum(
            self.mixed_step_ns(StepShape(num_decodes, context_tokens + i * num_decodes))
            for i in steps
        )

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        spent = 0
        for i in range(max_iterations):
            spent += self.mixed_step_ns(StepShape(num_decodes, context_tokens + i * num_decodes))
            if spent >= elapsed_ns:
                return i + 1
        return max_iterations


@dataclass
class ConstantNetwork:
    """Every transfer takes ``latency_ns`` plus one ns per byte, whatever else moves."""

    latency_ns: int = 500
    moved_bytes: int = 0
    _done: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _cancelled: set[int] = field(default_factory=set[int])

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        self.moved_bytes += transfer.num_bytes
        end_ns = now_ns + self.latency_ns + transfer.num_bytes
        heapq.heappush(self._done, (end_ns, transfer.transfer_id))

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        del now_ns
        self._cancelled.add(transfer_id)

    def next_completion_ns(self) -> int | None:
        while self._done and self._done[0][1] in self._cancelled:
            heapq.heappop(self._done)
        return self._done[0][0] if self._done else None

    def advance(self, now_ns: int) -> Sequence[int]:
        done: list[int] = []
        while (next_ns := self.next_completion_ns()) is not None and next_ns <= now_ns:
            done.append(heapq.heappop(self._done)[1])
        return done


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Settings of a small cluster."""

    num_prefill: int = 1
    num_decode: int = 0
    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 200
    max_tokens: int = 1 << 31
    max_iterations: int = 1 << 62
    policy: RoutingPolicy = RoutingPolicy.ROUND_ROBIN
    hash_block_tokens: int = 0
    handoff_deadline_ns: int = 1 << 60
    setup_ns: int = 100
    signal_interval_ns: int = 5000
    prefix_caching: bool = True
    async_scheduling: bool = False
    reservation: Reservation = Reservation.PREFILL_FIRST
    handoff: HandoffMode = HandoffMode.WHOLE_PROMPT
    num_layer_groups: int = 1
    on_expiry: OnExpiry = OnExpiry.FAIL
    max_restarts: int = 1
    lockstep: tuple[tuple[int, ...], ...] = ()


def rank_bytes(num_tokens: int) -> tuple[int, ...]:
    return (num_tokens * BYTES_PER_TOKEN,) * GPUS_PER_WORKER


def build(cluster: Cluster, workload: Workload, network: ConstantNetwork) -> Simulation:
    """Return a simulation that has not run yet."""
    num_workers = cluster.num_prefill + cluster.num_decode
    coordinator_config = CoordinatorConfig(
        worker_gpus=tuple(
            tuple(range(w * GPUS_PER_WORKER, (w + 1) * GPUS_PER_WORKER)) for w in range(num_workers)
        ),
        num_decode=cluster.num_decode,
        block_size=cluster.block_size,
        hash_block_tokens=cluster.hash_block_tokens,
        max_model_len=cluster.max_model_len,
        rank_bytes=rank_bytes,
        handoff_deadline_ns=cluster.handoff_deadline_ns,
        reservation=cluster.reservation,
        handoff=cluster.handoff,
        num_layer_groups=cluster.num_layer_groups,
        on_expiry=cluster.on_expiry,
        max_restarts=cluster.max_restarts,
    )
    router = Router(cluster.policy, num_prefill=cluster.num_prefill, num_decode=cluster.num_decode)
    lengths = {spec.request_id: spec.num_output_tokens for spec in workload.requests}
    workers = [
        (Scheduler(scheduler_config(cluster)), _executor(cluster, lengths, worker))
        for worker in range(num_workers)
    ]
    config = SimulationConfig(
        transfer_setup_ns=cluster.setup_ns,
        max_tokens=cluster.max_tokens,
        async_scheduling=cluster.async_scheduling,
        lockstep=cluster.lockstep,
    )
    coordinator = Coordinator(coordinator_config, router)
    return Simulation(config, workload, coordinator, workers, network)


def scheduler_config(cluster: Cluster) -> SchedulerConfig:
    return SchedulerConfig(
        num_blocks=cluster.num_blocks,
        block_size=cluster.block_size,
        max_num_seqs=cluster.max_num_seqs,
        max_num_batched_tokens=cluster.max_num_batched_tokens,
        max_model_len=cluster.max_model_len,
        enable_prefix_caching=cluster.prefix_caching,
    )


def _executor(cluster: Cluster, lengths: dict[int, int], worker: int) -> SimExecutor:
    only_prefills = bool(cluster.num_decode) and worker < cluster.num_prefill
    return SimExecutor(
        LinearModel(),
        lengths,
        samples_first_token=not only_prefills,
        max_iterations=cluster.max_iterations,
    )


def workload_of(requests: Sequence[RequestSpec], hash_block_tokens: int = 0) -> Workload:
    return Workload(
        name="test",
        requests=tuple(requests),
        hash_block_tokens=hash_block_tokens,
        num_rows=len(requests),
    )
