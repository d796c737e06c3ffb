"""How much KV cache a model and its users need, and how many GPUs hold it.

A worker is ``tp`` x ``pp`` GPUs with one copy of the weights and one block pool, as vLLM 0.19
divides memory. Figures "per GPU" are those of the pipeline rank with the least KV memory.
"""

from dataclasses import dataclass, fields

from kvfabric.kvcache.geometry import (
    GROWING_KINDS,
    WINDOWED_KINDS,
    index_bytes_per_token,
    kv_bytes_per_token,
    request_bytes,
)
from kvfabric.kvcache.parameters import weight_bytes
from kvfabric.plan.kv_equations import kv_equations
from kvfabric.plan.sizing_request import SizingRequest, check_sizing_request
from kvfabric.plan.sizing_worker import TP_RULE, Worker, find_worker
from kvfabric.units import ceil_div, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KVNeed:
    """What the users need, whatever holds it.

    Attributes:
        equations: the arithmetic in words.
        kv_bytes_per_token: all layers of the whole model, those with a window included.
        kv_bytes_per_token_growing: the part that grows with the context without end.
        kv_bytes_per_token_windowed: the part that stops at a window.
        index_bytes_per_token: index of a sparse attention, beside the KV cache.
        state_bytes_per_user: constant state of linear-attention layers.
        kv_bytes_per_user: one context, windows, index and state counted, without block rounding.
        kv_bytes_total: all users.
        gpus_for_kv: GPUs whose visible memory holds the total and nothing else.
    """

    equations: tuple[str, ...]
    kv_bytes_per_token: int
    kv_bytes_per_token_growing: int
    kv_bytes_per_token_windowed: int
    index_bytes_per_token: int
    state_bytes_per_user: int
    kv_bytes_per_user: int
    kv_bytes_total: int
    gpus_for_kv: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """How a worker's memory is divided; None for what was not needed because KV memory was given.

    Attributes:
        visible_bytes_per_gpu: memory the driver shows.
        visible_source: where that was read.
        weight_bytes: the whole model.
        weight_bytes_per_gpu: the share of one GPU.
        activation_bytes_per_gpu: peak of one step.
        non_torch_bytes_per_gpu: context and communication buffers.
        reserves_source: where the two come from.
        kv_bytes_per_token_per_gpu: share of one GPU, whole heads and whole latents.
        kv_bytes_per_gpu: memory for KV blocks; negative when weights and reserves do not fit.
        kv_bytes_per_worker: KV memory of all GPUs of a worker.
    """

    visible_bytes_per_gpu: int
    visible_source: str
    weight_bytes: int | None
    weight_bytes_per_gpu: int | None
    activation_bytes_per_gpu: int | None
    non_torch_bytes_per_gpu: int | None
    reserves_source: str | None
    kv_bytes_per_token_per_gpu: int
    kv_bytes_per_gpu: int
    kv_bytes_per_worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """The block pool of a worker; zeros when there is no room for a single block.

    Attributes:
        num_blocks: blocks, block 0 included, which no request can have.
        num_tokens: the "GPU KV cache size" that vLLM 0.19 logs.
        max_concurrency: requests of ``max_model_len`` tokens, as in that log.
        block_tokens: tokens per block; more than asked for where a state layer sets the page size.
        num_block_tables: block tables per request.
        page_bytes: one block in one layer on one GPU; 0 when layers differ.
        blocks_per_user: blocks of one context, rounded up in every table.
        users_per_worker: contexts that fit at once.
    """

    num_blocks: int
    num_tokens: int
    max_concurrency: float
    block_tokens: int
    num_block_tables: int
    page_bytes: int
    blocks_per_user: int
    users_per_worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The answer of ``kvfabric size``.

    Attributes:
        request: what was asked.
        tp: tensor-parallel GPUs per worker.
        tp_rule: how ``tp`` was found.
        need: what the users need.
        memory: how a worker's memory is divided.
        pool: its blocks.
        workers_needed: workers for all users, or None when one user does not fit.
        gpus_needed: their GPUs, or None.
        fits: whether a worker holds the weights and at least one user's context.
        shortfall_bytes: bytes missing per GPU for one user's context; 0 when it fits.
        verdict: the answer in one sentence.
    """

    request: SizingRequest
    tp: int
    tp_rule: str
    need: KVNeed
    memory: WorkerMemory
    pool: WorkerPool
    workers_needed: int | None
    gpus_needed: int | None
    fits: bool
    shortfall_bytes: int
    verdict: str


def size(request: SizingRequest) -> Sizing:
    """Return how much KV cache the users need and how many GPUs hold it.

    Raises:
        ConfigError: a number is out of range, the context is longer than the model allows, or
            the worker's GPUs cannot divide the model.
        UnsupportedError: an unknown type, or weights that cannot be counted.
    """
    check_sizing_request(request)
    worker = find_worker(request)
    num_users = worker.num_users
    workers = ceil_div(request.num_users, num_users) if num_users else None
    gpus = None if workers is None else workers * worker.tp * request.pp
    return Sizing(
        request=request,
        tp=worker.tp,
        tp_rule=TP_RULE if request.tp is None else "given",
        need=_need(request),
        memory=_memory(request, worker),
        pool=_pool(worker),
        workers_needed=workers,
        gpus_needed=gpus,
        fits=workers is not None,
        shortfall_bytes=worker.shortfall_bytes,
        verdict=_misfit(request, worker) if gpus is None else _fit(request, worker, gpus),
    )


def _need(request: SizingRequest) -> KVNeed:
    geometry, element = request.geometry, request.kv_element_bytes
    per_user = request_bytes(geometry, request.num_context_tokens, dtype_bytes=element)
    total = per_user * request.num_users
    return KVNeed(
        equations=kv_equations(geometry, dtype_bytes=element),
        kv_bytes_per_token=kv_bytes_per_token(geometry, dtype_bytes=element),
        kv_bytes_per_token_growing=kv_bytes_per_token(
            geometry, dtype_bytes=element, kinds=GROWING_KINDS
        ),
        kv_bytes_per_token_windowed=kv_bytes_per_token(
            geometry, dtype_bytes=element, kinds=WINDOWED_KINDS
        ),
        index_bytes_per_token=index_bytes_per_token(geometry),
        state_bytes_per_user=request_bytes(geometry, 0, dtype_bytes=element),
        kv_bytes_per_user=per_user,
        kv_bytes_total=total,
        gpus_for_kv=ceil_div(total, request.gpu.visible_bytes),
    )


def _memory(request: SizingRequest, worker: Worker) -> WorkerMemory:
    reserves = worker.reserves
    tightest = min(worker.ranks, key=lambda rank: rank.kv_bytes)
    return WorkerMemory(
        visible_bytes_per_gpu=request.gpu.visible_bytes,
        visible_source=str(request.gpu.visible_source),
        weight_bytes=_all_weights(request),
        weight_bytes_per_gpu=tightest.weight_bytes,
        activation_bytes_per_gpu=reserves.activation_bytes if reserves else None,
        non_torch_bytes_per_gpu=reserves.non_torch_bytes if reserves else None,
        reserves_source=str(reserves.source) if reserves else None,
        kv_bytes_per_token_per_gpu=kv_bytes_per_token(
            request.geometry, dtype_bytes=request.kv_element_bytes, tp=worker.tp
        ),
        kv_bytes_per_gpu=tightest.kv_bytes,
        kv_bytes_per_worker=worker.tp * sum(rank.kv_bytes for rank in worker.ranks),
    )


def _all_weights(request: SizingRequest) -> int | None:
    if request.total_weight_bytes is not None:
        return request.total_weight_bytes
    if request.kv_memory_gib is not None or request.geometry.parameters is None:
        return None
    return weight_bytes(request.geometry.parameters, request.stored_weights)


def _pool(worker: Worker) -> WorkerPool:
    capacity = worker.capacity
    return WorkerPool(
        num_blocks=capacity.num_blocks if capacity else 0,
        num_tokens=capacity.num_tokens if capacity else 0,
        max_concurrency=capacity.max_concurrency if capacity else 0.0,
        block_tokens=capacity.block_size if capacity else 0,
        num_block_tables=len(capacity.groups) if capacity else 0,
        page_bytes=capacity.page_bytes if capacity else 0,
        blocks_per_user=worker.blocks_per_user,
        users_per_worker=worker.num_users,
    )


def _fit(request: SizingRequest, worker: Worker, num_gpus: int) -> str:
    num_workers = num_gpus // (worker.tp * request.pp)
    return (
        f"{request.num_users:,} users of {request.num_context_tokens:,} tokens need "
        f"{num_gpus:,} x {request.gpu.name}: {num_workers:,} workers of "
        f"{worker.tp * request.pp} with {worker.num_users:,} users each"
    )


def _misfit(request: SizingRequest, worker: Worker) -> str:
    missing = format_bytes(worker.shortfall_bytes)
    what = f"{request.model_name} on {worker.tp * request.pp} x {request.gpu.name}"
    if worker.least_kv_bytes < 0:
        over = format_bytes(-worker.least_kv_bytes)
        return (
            f"{what} does not fit: weights and reserves exceed the memory of a GPU by {over}, "
            f"and with one user's context {missing} are missing on each"
        )
    return (
        f"{what} does not fit: the KV cache of one user's context of "
        f"{request.num_context_tokens:,} tokens lacks {missing} on each GPU"
    )


def sizing_to_dict(sizing: Sizing) -> dict[str, object]:
    """Return the sizing as plain values in one flat mapping, always in the same order."""
    request = sizing.request
    asked: dict[str, object] = {
        "model": request.model_name,
        "gpu": request.gpu.name,
        "users": request.num_users,
        "context_tokens": request.num_context_tokens,
        "tp": sizing.tp,
        "tp_rule": sizing.tp_rule,
        "pp": request.pp,
        "gpus_per_worker": sizing.tp * request.pp,
        "kv_dtype": request.kv_dtype,
        "kv_element_bytes": request.kv_element_bytes,
        "weight_format": _weight_name(request),
        "block_size": request.block_size,
        "max_model_len": request.longest_tokens,
        "max_num_batched_tokens": request.max_num_batched_tokens,
        "max_num_seqs": request.max_num_seqs,
        "gpu_memory_utilization": request.gpu_memory_utilization,
    }
    parts = _plain(sizing.need) | _plain(sizing.memory) | _plain(sizing.pool)
    return asked | parts | _verdict(sizing)


def _weight_name(request: SizingRequest) -> str | None:
    has_no_weights = request.kv_memory_gib is not None or request.total_weight_bytes is not None
    return None if has_no_weights else request.stored_weights.name


def _verdict(sizing: Sizing) -> dict[str, object]:
    return {
        "workers_needed": sizing.workers_needed,
        "gpus_needed": sizing.gpus_needed,
        "fits": sizing.fits,
        "shortfall_bytes": sizing.shortfall_bytes,
        "verdict": sizing.verdict,
        "notes": list(sizing.request.geometry.notes),
    }


def _plain(part: KVNeed | WorkerMemory | WorkerPool) -> dict[str, object]:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }
