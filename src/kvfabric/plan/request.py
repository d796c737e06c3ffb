"""What a plan compares: one model, load and GPU fleet over several fabrics."""

from dataclasses import dataclass
from enum import Enum

from kvfabric.catalog.gpus import Gpu
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.metrics.latency import Slo
from kvfabric.perf.roofline import Efficiency
from kvfabric.protocol.workload import Workload
from kvfabric.serving.router import RoutingPolicy

SERVER_GPUS = 8


class Placement(Enum):
    """Where prefill and decode workers stand; it decides which links a hand-off crosses."""

    SPLIT = "split"  # prefill workers in the first servers, decode workers after them
    INTERLEAVED = "interleaved"  # evenly mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """The workers of the fleet; names as in vLLM.

    Attributes:
        num_prefill: prefill workers.
        num_decode: decode workers.
        tp: GPUs per worker.
        kv_dtype: ``auto`` or a cache type.
        weight_dtype: ``auto`` or a weight format.
        block_size: tokens per KV block.
        max_num_seqs: most requests per step.
        max_num_batched_tokens: most tokens per step.
        max_model_len: most tokens of one request; None: what model and KV memory allow.
        gpu_memory_utilization: share of the visible memory the engine may use.
        enable_prefix_caching: find full blocks again by prefix.
    """

    num_prefill: int
    num_decode: int
    tp: int = 8
    kv_dtype: str = "auto"
    weight_dtype: str = "auto"
    block_size: int = 64
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of the fleet."""
        return (self.num_prefill + self.num_decode) * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricChoice:
    """One fabric to compare; None takes the builder's default.

    Attributes:
        kind: of the builder.
        radix: ports per switch at the rate of a NIC port.
        num_tiers: layers of switches.
        oversubscription: downlink over uplink capacity of the leaves.
        label: name in the report; the kind by default.
    """

    kind: str
    radix: int | None = None
    num_tiers: int | None = None
    oversubscription: float = 1.0
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRequest:
    """The fabrics of a plan and how traffic is spread over them.

    Attributes:
        nic_rate_bps: of the NIC of every GPU.
        fabrics: kinds to compare.
        load_balancing: policies to compare on each of them.
        queue_pairs: connections per NIC port under ``ecmp``.
        placement: of prefill and decode workers over the servers.
        switch_capacity_bps: of every switch whose fabric names no radix; None: 51.2 Tbit/s.
    """

    nic_rate_bps: int
    fabrics: tuple[FabricChoice, ...]
    load_balancing: tuple[str, ...]
    queue_pairs: int = 4
    placement: Placement = Placement.SPLIT
    switch_capacity_bps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Everything ``kvfabric plan`` needs, resolved.

    Attributes:
        name: for the report.
        model_name: catalog name or path.
        geometry: the model.
        gpu: of every worker.
        num_users: for the KV sizing.
        num_context_tokens: per user, for the KV sizing.
        workers: the fleet.
        network: the fabrics.
        workload: the load.
        slo: latency targets.
        routing: how prefill workers are chosen.
        signal_interval_ns: how often workers report to the router.
        handoff_deadline_ns: when a hand-off is given up.
        efficiency: of the step-time model.
        compare_aggregated: also run the fleet without disaggregation.
        seed: of everything random.
    """

    name: str
    model_name: str
    geometry: KVGeometry
    gpu: Gpu
    num_users: int
    num_context_tokens: int
    workers: WorkerRequest
    network: NetworkRequest
    workload: Workload
    slo: Slo
    routing: RoutingPolicy = RoutingPolicy.PREFIX_AWARE
    signal_interval_ns: int = 50_000_000
    handoff_deadline_ns: int = 60_000_000_000
    efficiency: Efficiency | None = None
    compare_aggregated: bool = True
    seed: int = 0


def check_plan_request(request: PlanRequest) -> None:
    """Refuse a fleet that cannot be laid out.

    Raises:
        ConfigError: names the setting and what to write instead.
    """
    workers = request.workers
    for name in ("num_prefill", "num_decode", "tp"):
        if getattr(workers, name) < 1:
            raise ConfigError(
                f"{getattr(workers, name)} is too few",
                where=f"workers.{name}",
                hint="Write 1 or more",
            )
    if SERVER_GPUS % workers.tp:
        raise ConfigError(
            f"tp {workers.tp} does not divide the {SERVER_GPUS} GPUs of a server",
            where="workers.tp",
            hint="Write 1, 2, 4 or 8",
        )
    if workers.num_gpus % SERVER_GPUS:
        raise ConfigError(
            f"{workers.num_gpus} GPUs do not fill servers of {SERVER_GPUS}",
            where="workers",
            hint="Change the number of workers",
        )
    hash_tokens = request.workload.hash_block_tokens
    if hash_tokens % workers.block_size:
        raise ConfigError(
            f"blocks of {workers.block_size} tokens do not divide the {hash_tokens} tokens of a"
            " hash of the workload",
            where="workers.block_size",
            hint="Choose a block size that divides it",
        )
    if not request.network.fabrics or not request.network.load_balancing:
        raise ConfigError("nothing to compare", where="fabric", hint="Name a fabric and a policy")
