"""From a plan to running parts: block pools, step times, GPUs of each worker, one simulation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kvfabric.catalog.gpus import Gpu
from kvfabric.errors import CapacityError, ConfigError
from kvfabric.kvcache.geometry import kv_dtype_bytes, wire_bytes_by_rank
from kvfabric.perf.handoff import HANDOFF_SETUP_NS
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.work import work_from_geometry
from kvfabric.plan.request import Placement, PlanRequest
from kvfabric.plan.sizing import Sizing, size
from kvfabric.plan.sizing_request import SizingRequest
from kvfabric.protocol.ports import Network, StepTimeModel
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator, CoordinatorConfig
from kvfabric.serving.router import Router
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.simulation import Simulation, SimulationConfig
from kvfabric.units import ceil_div

# A prefill worker must be able to take any number of senders: with latent attention the copies are
# equal, so all ranks share the sending.
_ALL_RANKS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What all designs of a plan have in common.

    Attributes:
        sizing: KV need and one worker's pool, for the plan's users and context; None without a GPU.
        scheduler: limits of every worker.
        model: step times of every worker.
        notes: simplifications that entered.
    """

    sizing: Sizing | None
    scheduler: SchedulerConfig
    model: StepTimeModel
    notes: tuple[str, ...]


def build_fleet(request: PlanRequest) -> Fleet:
    """Return the fleet of a plan.

    Raises:
        CapacityError: a worker cannot hold the weights or a single block.
        ConfigError: a number is out of range.
    """
    sizing = None if request.gpu is None else size(_sizing_request(request, request.gpu))
    block_size, num_blocks = request.workers.block_size, _num_blocks(request, sizing)
    scheduler = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=request.workers.max_num_seqs,
        max_num_batched_tokens=request.workers.max_num_batched_tokens,
        max_model_len=_max_model_len(request, (num_blocks - 1) * block_size),
        enable_prefix_caching=request.workers.enable_prefix_caching,
    )
    notes = tuple(_notes(request, sizing))
    return Fleet(sizing=sizing, scheduler=scheduler, model=_step_model(request), notes=notes)


def _step_model(request: PlanRequest) -> StepTimeModel:
    if request.step_model is not None:
        return request.step_model
    weights = request.workers.weight_dtype
    work = work_from_geometry(
        request.geometry,
        tp=request.workers.tp,
        weights=None if weights == "auto" else weights,
        kv_dtype_bytes=_kv_element_bytes(request),
    )
    if request.gpu is None:
        raise _no_gpu("the roofline needs its peaks")
    return RooflineModel(work, request.gpu, request.efficiency)


def _kv_element_bytes(request: PlanRequest) -> int:
    return kv_dtype_bytes(request.workers.kv_dtype, request.geometry, where="kv_dtype")


def _no_gpu(why: str) -> ConfigError:
    return ConfigError(
        f"no GPU is named, and {why}",
        where="gpu",
        hint="Name a catalog GPU, or give perf kind profile and workers.num_blocks",
    )


def _num_blocks(request: PlanRequest, sizing: Sizing | None) -> int:
    """Return the blocks of a worker: as given, else from our own sizing."""
    given = request.workers.num_blocks
    if given is not None:
        return given
    if sizing is None:
        raise _no_gpu("the KV pool is sized from its memory")
    if not sizing.fits:
        raise CapacityError(sizing.verdict)
    return _simulated_blocks(sizing)


def _sizing_request(request: PlanRequest, gpu: Gpu) -> SizingRequest:
    workers = request.workers
    return SizingRequest(
        model_name=request.model_name,
        geometry=request.geometry,
        gpu=gpu,
        num_users=request.num_users,
        num_context_tokens=request.num_context_tokens,
        tp=workers.tp,
        kv_dtype=workers.kv_dtype,
        weight_dtype=workers.weight_dtype,
        block_size=workers.block_size,
        max_num_batched_tokens=workers.max_num_batched_tokens,
        max_num_seqs=workers.max_num_seqs,
        gpu_memory_utilization=workers.gpu_memory_utilization,
    )


def _simulated_blocks(sizing: Sizing) -> int:
    """Return the blocks of a pool with one table per request that holds as many such requests.

    The simulator keeps one block table per request. Where layers differ, the real engine keeps
    several; then the pool is the one in which as many requests of the longest length fit.
    """
    pool, request = sizing.pool, sizing.request
    if pool.num_block_tables <= 1 and pool.block_tokens == request.block_size:
        return pool.num_blocks
    blocks_per_request = ceil_div(request.longest_tokens, request.block_size)
    return int(pool.max_concurrency * blocks_per_request) + 1


def _max_model_len(request: PlanRequest, pool_tokens: int) -> int:
    """Return the longest request: as given, else what the model and a worker's pool allow."""
    limit = request.geometry.max_context_tokens or pool_tokens
    given = request.workers.max_model_len
    if given is not None and given > limit:
        raise ConfigError(
            f"{request.model_name} has positions for {limit:,} tokens, not {given:,}",
            where="workers.max_model_len",
            hint=f"Write at most {limit}",
        )
    return min(limit, pool_tokens) if given is None else given


def _notes(request: PlanRequest, sizing: Sizing | None) -> Iterator[str]:
    yield from request.geometry.notes
    given = request.workers.num_blocks
    if given is not None:
        own = "" if sizing is None else f"; our own sizing gives {_simulated_blocks(sizing):,}"
        yield f"{given:,} KV blocks per worker as given{own}"
    elif sizing is not None and sizing.pool.num_block_tables > 1:
        yield (
            "layers of several kinds: the simulator keeps one block table per request, sized so"
            " that as many requests of the longest length fit as in the real engine"
        )


def worker_gpus(request: PlanRequest) -> tuple[tuple[int, ...], ...]:
    """Return the fabric GPUs of each worker, prefill workers first, ranks in order."""
    workers = request.workers
    num_workers = workers.num_prefill + workers.num_decode
    slots = list(range(num_workers))
    if request.network.placement is Placement.INTERLEAVED:
        decode = {slot * num_workers // workers.num_decode for slot in range(workers.num_decode)}
        slots = [s for s in slots if s not in decode] + [s for s in slots if s in decode]
    return tuple(tuple(range(slot * workers.tp, (slot + 1) * workers.tp)) for slot in slots)


MakeExecutor = Callable[[StepTimeModel, Mapping[int, int], bool], SimExecutor]


def plain_executor(
    model: StepTimeModel, output_lengths: Mapping[int, int], samples_first_token: bool
) -> SimExecutor:
    """Return an executor that keeps nothing of what it ran."""
    return SimExecutor(model, output_lengths, samples_first_token=samples_first_token)


def build_simulation(
    request: PlanRequest,
    fleet: Fleet,
    network: Network,
    *,
    is_disaggregated: bool,
    make_executor: MakeExecutor = plain_executor,
) -> Simulation:
    """Return a simulation of the plan's load, ready to run.

    Args:
        request: the plan.
        fleet: its parts.
        network: moves the hand-offs.
        is_disaggregated: False lets every worker do both.
        make_executor: makes the executor of each worker, in order, from step times, true output
            lengths, and whether the last step of a prompt samples its first token.
    """
    num_workers = request.workers.num_prefill + request.workers.num_decode
    num_decode = request.workers.num_decode if is_disaggregated else 0
    num_prefill = num_workers - num_decode
    lengths = {spec.request_id: spec.num_output_tokens for spec in request.workload.requests}
    workers = [
        (
            Scheduler(fleet.scheduler),
            make_executor(fleet.model, lengths, not is_disaggregated or worker >= num_prefill),
        )
        for worker in range(num_workers)
    ]
    router = Router(
        request.routing,
        num_prefill=num_prefill,
        num_decode=num_decode,
        signal_interval_ns=request.signal_interval_ns,
    )
    config = SimulationConfig(
        transfer_setup_ns=HANDOFF_SETUP_NS,
        async_scheduling=request.workers.async_scheduling,
        lockstep=_lockstep(num_workers, request.workers.num_data_ranks),
    )
    coordinator = Coordinator(_coordinator_config(request, fleet, num_decode), router)
    return Simulation(config, request.workload, coordinator, workers, network)


def _lockstep(num_workers: int, num_data_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the workers that step together, neighbours of one kind."""
    if num_data_ranks == 1:
        return ()
    starts = range(0, num_workers, num_data_ranks)
    return tuple(tuple(range(start, start + num_data_ranks)) for start in starts)


def _coordinator_config(request: PlanRequest, fleet: Fleet, num_decode: int) -> CoordinatorConfig:
    element_bytes, handoff = _kv_element_bytes(request), request.handoff

    def rank_bytes(num_tokens: int) -> tuple[int, ...]:
        return wire_bytes_by_rank(
            request.geometry,
            num_tokens,
            tp=request.workers.tp,
            dtype_bytes=element_bytes,
            num_latent_senders=_ALL_RANKS,
        )

    return CoordinatorConfig(
        worker_gpus=worker_gpus(request),
        num_decode=num_decode,
        block_size=request.workers.block_size,
        hash_block_tokens=request.workload.hash_block_tokens,
        max_model_len=fleet.scheduler.max_model_len,
        rank_bytes=rank_bytes,
        handoff_deadline_ns=request.handoff_deadline_ns,
        reservation=handoff.reservation,
        handoff=handoff.mode,
        num_layer_groups=handoff.num_layer_groups,
        on_expiry=handoff.on_expiry,
        max_restarts=handoff.max_restarts,
    )
