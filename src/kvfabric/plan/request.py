"""What a plan compares: one model, load and GPU fleet over several fabrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvfabric.catalog.gpus import Gpu
from kvfabric.catalog.prices import PRICE_BOOK, PriceBook
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.engines.choice import MAX_MIN
from kvfabric.fabric.engines.pfc_params import PfcParams
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.kvcache.resharding import LatentSenders
from kvfabric.metrics.latency import Slo
from kvfabric.perf.efficiency import Efficiency
from kvfabric.perf.transfer_times import TransferTimes
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.failures import WorkerFailure, check_failures
from kvfabric.plan.pool import PoolRequest
from kvfabric.plan.worker_request import Placement, WorkerRequest, check_layout, check_servers
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.workload import Workload
from kvfabric.serving.coordinator_config import HandoffMode, OnExpiry, Reservation
from kvfabric.serving.decode_choice import DecodePolicy
from kvfabric.serving.router import RoutingPolicy
from kvfabric.workload.recorded_run import MeasuredRequest

__all__ = [
    "NO_FABRIC",
    "FabricChoice",
    "HandoffPolicy",
    "NetworkRequest",
    "Placement",
    "PlanRequest",
    "WorkerRequest",
    "check_fleet",
    "check_plan_request",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricChoice:
    """One fabric to compare; None takes the builder's default.

    Attributes:
        kind: of the builder.
        radix: ports per switch at the rate of a NIC port.
        num_tiers: layers of switches.
        oversubscription: downlink over uplink capacity of the leaves.
        shape: sizes that one kind alone has, such as ``planes``.
        failures: what has failed of it, as ``fabric.failures.parse_failures`` reads it.
        label: name in the report; the kind by default.
        cables: what decides the type of a cable, for parts and price.
    """

    kind: str
    radix: int | None = None
    num_tiers: int | None = None
    oversubscription: float = 1.0
    shape: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    label: str | None = None
    cables: CableRule = CableRule.PLANNED


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
        engine: how flows share links: ``max-min``, ``pfc`` or ``pfc-stepped``.
        pfc: thresholds and loop delay of priority flow control; not for ``max-min``.
        time_scale: of ``pfc-stepped``.
    """

    nic_rate_bps: int
    fabrics: tuple[FabricChoice, ...]
    load_balancing: tuple[str, ...]
    queue_pairs: int = 4
    placement: Placement = Placement.SPLIT
    switch_capacity_bps: int | None = None
    engine: str = MAX_MIN
    pfc: PfcParams = field(default_factory=PfcParams)
    time_scale: int = 1

    @property
    def has_pauses(self) -> bool:
        """Return whether the engine follows priority flow control."""
        return self.engine != MAX_MIN


NO_FABRIC = NetworkRequest(nic_rate_bps=0, fabrics=(), load_balancing=())


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffPolicy:
    """How KV cache gets from prefill to decode; see ``CoordinatorConfig``.

    Attributes:
        mode: when it moves.
        num_layer_groups: groups in which layers are streamed; layer-wise only.
        reservation: when decode blocks are reserved.
        on_expiry: what becomes of its request then.
        max_restarts: how often a request may start anew because its worker died.
        senders: which ranks send a latent that all of them hold; also of prefixes that are fetched
            from other servers.
    """

    mode: HandoffMode = HandoffMode.WHOLE_PROMPT
    num_layer_groups: int = 8
    reservation: Reservation = Reservation.PREFILL_FIRST
    on_expiry: OnExpiry = OnExpiry.FAIL
    max_restarts: int = 1
    senders: LatentSenders = LatentSenders.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Everything ``kvfabric plan`` and ``kvfabric simulate`` need, resolved.

    Attributes:
        name: for the report.
        model_name: catalog name or path.
        geometry: the model.
        gpu: of every worker; None where a profile and a given number of blocks stand for it.
        num_users: for the KV sizing.
        num_context_tokens: per user, for the KV sizing.
        workers: the fleet.
        network: the fabrics.
        workload: the load.
        slo: latency targets.
        routing: how prefill workers are chosen.
        decode_choice: how decode workers are chosen.
        signal_interval_ns: how often workers report to the router.
        handoff_deadline_ns: when a hand-off is given up.
        handoff: how KV cache gets to decode workers.
        efficiency: of the roofline.
        step_model: step times of every worker; None for the roofline of the GPU.
        decode_step_model: of decode workers, where they have other GPUs than ``step_model`` is of.
        compare_aggregated: also run the fleet without disaggregation.
        seed: of everything random.
        measured: what a real engine did with the requests of a recorded run.
        failures: workers that die during the run.
        kv_pool: prefixes kept outside HBM; None: in HBM only.
        price_book: prices of the parts of the fabrics.
        transfer_times: of whole transfers, measured; used where no fabric is named.
    """

    name: str
    model_name: str
    geometry: KVGeometry
    gpu: Gpu | None
    num_users: int
    num_context_tokens: int
    workers: WorkerRequest
    network: NetworkRequest
    workload: Workload
    slo: Slo
    routing: RoutingPolicy = RoutingPolicy.PREFIX_AWARE
    decode_choice: DecodePolicy = DecodePolicy.LEAST_LOADED
    signal_interval_ns: int = 50_000_000
    handoff_deadline_ns: int = 60_000_000_000
    handoff: HandoffPolicy = HandoffPolicy()
    efficiency: Efficiency | None = None
    step_model: StepTimeModel | None = None
    decode_step_model: StepTimeModel | None = None
    compare_aggregated: bool = True
    seed: int = 0
    measured: tuple[MeasuredRequest, ...] = ()
    failures: tuple[WorkerFailure, ...] = ()
    kv_pool: PoolRequest | None = None
    price_book: PriceBook = PRICE_BOOK
    transfer_times: TransferTimes | None = None

    @property
    def has_pool(self) -> bool:
        """Return whether prefixes outside HBM are kept and can be named by other requests."""
        return self.kv_pool is not None and self.workload.hash_block_tokens > 0

    @property
    def uses_fabric(self) -> bool:
        """Return whether a run moves bytes over a fabric."""
        if self.moves_as_measured:
            return False
        return self.workers.num_decode > 0 or (self.has_pool and bool(self.network.fabrics))

    @property
    def moves_as_measured(self) -> bool:
        """Return whether hand-offs take what was measured: no fabric is named to carry them."""
        is_apart = self.workers.num_decode > 0
        return is_apart and self.transfer_times is not None and not self.network.fabrics

    @property
    def decode_first(self) -> bool:
        """Return whether decode workers are asked for their blocks before the prefill."""
        is_apart = self.workers.num_decode > 0
        return is_apart and self.handoff.reservation is Reservation.DECODE_FIRST


def check_plan_request(request: PlanRequest) -> None:
    """Refuse a fleet that cannot be laid out, and a plan without designs.

    Raises:
        ConfigError: names the setting and what to write instead.
    """
    check_fleet(request, least_decode=1)
    if not request.network.fabrics or not request.network.load_balancing:
        raise ConfigError("nothing to compare", where="fabric", hint="Name a fabric and a policy")


def check_fleet(request: PlanRequest, *, least_decode: int = 0) -> None:
    """Refuse a fleet that cannot be laid out.

    Args:
        request: with the fleet.
        least_decode: fewest decode workers; without any, every worker does both and no fabric is
            needed.

    Raises:
        ConfigError: names the setting and what to write instead.
    """
    workers = request.workers
    for name, least in (("num_prefill", 1), ("num_decode", least_decode), ("tp", 1)):
        if getattr(workers, name) < least:
            raise ConfigError(
                f"{getattr(workers, name)} is too few",
                where=f"workers.{name}",
                hint=f"Write {least} or more",
            )
    _check_data_ranks(request)
    check_layout(workers, request.geometry)
    if request.uses_fabric:
        check_servers(workers, request.network.placement)
    check_failures(request.failures, workers.names)
    hash_tokens = request.workload.hash_block_tokens
    if hash_tokens % workers.block_size:
        raise ConfigError(
            f"blocks of {workers.block_size} tokens do not divide the {hash_tokens} tokens of a"
            " hash of the workload",
            where="workers.block_size",
            hint="Choose a block size that divides it",
        )


def _check_data_ranks(request: PlanRequest) -> None:
    workers, num_ranks = request.workers, request.workers.num_data_ranks
    if num_ranks == 1:
        return
    for name in ("num_prefill", "num_decode"):
        if getattr(workers, name) % num_ranks:
            raise ConfigError(
                f"{getattr(workers, name)} workers, in groups of {num_ranks} data-parallel ranks",
                where=f"workers.{name}",
                hint=f"Write a multiple of {num_ranks}: a worker is one rank",
            )
    if workers.num_decode and request.handoff.mode is HandoffMode.LAYER_WISE:
        raise UnsupportedError(
            "data-parallel ranks with layer-wise hand-offs",
            where="handoff.mode",
            hint="Write whole_prompt",
        )
