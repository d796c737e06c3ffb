"""Limits and step times of the workers of a fleet, kind by kind."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvfabric.catalog.gpus import Gpu
from kvfabric.errors import CapacityError, ConfigError
from kvfabric.kvcache.geometry import kv_dtype_bytes
from kvfabric.perf.context_parallel_steps import ContextParallelSteps
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.work import work_from_geometry
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.sizing import Sizing, size
from kvfabric.plan.sizing_request import SizingRequest
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.serving.config import SchedulerConfig
from kvfabric.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The workers of one kind.

    Attributes:
        sizing: KV need and one worker's pool, for the plan's users and context; None without a GPU.
        scheduler: limits.
        model: step times.
    """

    sizing: Sizing | None
    scheduler: SchedulerConfig
    model: StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What all designs of a plan have in common.

    Attributes:
        sizing: KV need and the pool of one prefill (or aggregated) worker, of one of its ranks if
            it is context-parallel; None without a GPU.
        scheduler: limits of every worker, or of prefill workers if there are others.
        model: step times of the same.
        notes: simplifications that entered.
        own_decode: decode workers, if they are not like prefill workers.
        rank: a context-parallel rank as a worker of its own, if there are any.
    """

    sizing: Sizing | None
    scheduler: SchedulerConfig
    model: StepTimeModel
    notes: tuple[str, ...]
    own_decode: Engine | None = None
    rank: Engine | None = None

    @property
    def prefill(self) -> Engine:
        """Return prefill (or aggregated) workers."""
        return Engine(sizing=self.sizing, scheduler=self.scheduler, model=self.model)

    @property
    def decode(self) -> Engine:
        """Return decode workers."""
        return self.prefill if self.own_decode is None else self.own_decode


def build_fleet(request: PlanRequest) -> Fleet:
    """Return the fleet of a plan.

    Raises:
        CapacityError: a worker cannot hold the weights or a single block.
        ConfigError: a number is out of range.
    """
    workers = request.workers
    sizing = _sizing(request, workers.tp)
    num_blocks = _num_blocks(workers.num_blocks, sizing)
    model = _step_model(request, workers.tp, request.step_model)
    notes = tuple(_notes(request, sizing))
    if workers.are_alike:
        scheduler = _scheduler(request, num_blocks, num_blocks)
        return Fleet(sizing=sizing, scheduler=scheduler, model=model, notes=notes)
    has_own_size = workers.decode_gpus != workers.tp
    decode_sizing = _sizing(request, workers.decode_gpus) if has_own_size else sizing
    decode_given = workers.decode_num_blocks
    decode_blocks = _num_blocks(
        workers.num_blocks if decode_given is None else decode_given, decode_sizing
    )
    decode_model = model
    if has_own_size:
        decode_model = _step_model(request, workers.decode_gpus, request.decode_step_model)
    cp = workers.prefill_cp
    prefill_blocks = (num_blocks - 1) * cp + 1
    fewest = min(prefill_blocks, decode_blocks)
    return Fleet(
        sizing=sizing,
        scheduler=_scheduler(request, prefill_blocks, fewest),
        model=model if cp == 1 else ContextParallelSteps(model, cp),
        notes=(*notes, *_decode_notes(request, decode_sizing), *_cp_notes(request)),
        own_decode=Engine(
            sizing=decode_sizing,
            scheduler=_scheduler(request, decode_blocks, fewest),
            model=decode_model,
        ),
        rank=None
        if cp == 1
        else Engine(sizing=sizing, scheduler=_rank_scheduler(request, num_blocks), model=model),
    )


def _scheduler(request: PlanRequest, num_blocks: int, fewest_blocks: int) -> SchedulerConfig:
    """Return the limits of a worker; every worker must hold the longest request."""
    workers = request.workers
    longest = _max_model_len(request, (fewest_blocks - 1) * workers.block_size)
    return _limits(request, num_blocks, longest)


def _rank_scheduler(request: PlanRequest, num_blocks: int) -> SchedulerConfig:
    pool_tokens = (num_blocks - 1) * request.workers.block_size
    longest = min(pool_tokens, _max_model_len(request, pool_tokens))
    return _limits(request, num_blocks, longest)


def _limits(request: PlanRequest, num_blocks: int, longest: int) -> SchedulerConfig:
    workers = request.workers
    return SchedulerConfig(
        num_blocks=num_blocks,
        block_size=workers.block_size,
        max_num_seqs=workers.max_num_seqs,
        max_num_batched_tokens=workers.max_num_batched_tokens,
        max_model_len=longest,
        enable_prefix_caching=workers.enable_prefix_caching,
    )


# ---- step times --------------------------------------------------------------------------------


def _step_model(request: PlanRequest, tp: int, given: StepTimeModel | None) -> StepTimeModel:
    if given is not None:
        return given
    weights = request.workers.weight_dtype
    work = work_from_geometry(
        request.geometry,
        tp=tp,
        weights=None if weights == "auto" else weights,
        kv_dtype_bytes=kv_element_bytes(request),
    )
    if request.gpu is None:
        raise _no_gpu("the roofline needs its peaks")
    return RooflineModel(work, request.gpu, request.efficiency)


def kv_element_bytes(request: PlanRequest) -> int:
    """Return the bytes per cached element of a plan."""
    return kv_dtype_bytes(request.workers.kv_dtype, request.geometry, where="kv_dtype")


def _no_gpu(why: str) -> ConfigError:
    return ConfigError(
        f"no GPU is named, and {why}",
        where="gpu",
        hint="Name a catalog GPU, or give perf kind profile or step-times and workers.num_blocks",
    )


# ---- KV blocks ---------------------------------------------------------------------------------


def _num_blocks(given: int | None, sizing: Sizing | None) -> int:
    """Return the blocks of a worker: as given, else from our own sizing."""
    if given is not None:
        return given
    if sizing is None:
        raise _no_gpu("the KV pool is sized from its memory")
    if not sizing.fits:
        raise CapacityError(sizing.verdict)
    return _simulated_blocks(sizing)


def _sizing(request: PlanRequest, tp: int) -> Sizing | None:
    return None if request.gpu is None else size(_sizing_request(request, request.gpu, tp))


def _sizing_request(request: PlanRequest, gpu: Gpu, tp: int) -> SizingRequest:
    workers = request.workers
    return SizingRequest(
        model_name=request.model_name,
        geometry=request.geometry,
        gpu=gpu,
        num_users=request.num_users,
        num_context_tokens=request.num_context_tokens,
        tp=tp,
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


# ---- notes -------------------------------------------------------------------------------------


def _notes(request: PlanRequest, sizing: Sizing | None) -> Iterator[str]:
    yield from request.geometry.notes
    if request.kv_pool is not None and not request.has_pool:
        yield (
            "the load names no prefixes that requests share: nothing can be reused, and the KV pool"
            " is left out"
        )
    given = request.workers.num_blocks
    if given is not None:
        which = "worker" if request.workers.are_alike else _rank_name(request)
        yield f"{given:,} KV blocks per {which} as given{_own_sizing(sizing)}"
    elif sizing is not None and sizing.pool.num_block_tables > 1:
        yield (
            "layers of several kinds: the simulator keeps one block table per request, sized so"
            " that as many requests of the longest length fit as in the real engine"
        )


def _rank_name(request: PlanRequest) -> str:
    return "prefill worker" if request.workers.prefill_cp == 1 else "context-parallel rank"


def _own_sizing(sizing: Sizing | None) -> str:
    return "" if sizing is None else f"; our own sizing gives {_simulated_blocks(sizing):,}"


def _decode_notes(request: PlanRequest, sizing: Sizing | None) -> Iterator[str]:
    given = request.workers.decode_num_blocks
    if given is not None:
        yield f"{given:,} KV blocks per decode worker as given{_own_sizing(sizing)}"


def _cp_notes(request: PlanRequest) -> Iterator[str]:
    workers = request.workers
    if workers.prefill_cp > 1:
        yield (
            f"a prefill worker holds the KV cache of {workers.prefill_cp} context-parallel ranks,"
            " each with its share of every prompt's tokens"
        )
        if request.compare_aggregated:
            yield (
                "in the fleet without disaggregation each context-parallel rank is a worker of its"
                " own"
            )
