"""One worker of a sizing: the memory of its GPUs, its block pool, and the smallest that works."""

from dataclasses import dataclass

from kvfabric.errors import CapacityError, UnsupportedError
from kvfabric.kvcache.capacity import (
    KVCapacity,
    Reserves,
    default_reserves,
    kv_capacity,
    kv_memory,
)
from kvfabric.kvcache.geometry import check_parallel, layers_on_pp_rank, undivided
from kvfabric.kvcache.parameters import rank_weight_bytes
from kvfabric.plan.sizing_request import SizingRequest
from kvfabric.units import ceil_div

_TP_SIZES = (1, 2, 4, 8)
TP_RULE = "smallest of 1, 2, 4, 8 whose workers hold the weights and one user's context"
_AMPLE_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of each GPU of one pipeline rank.

    Attributes:
        weight_bytes: weights, or None when the KV memory was given.
        kv_bytes: what is left for KV blocks; negative when weights and reserves do not fit.
    """

    weight_bytes: int | None
    kv_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """``tp`` x ``pp`` GPUs with one copy of the weights and one block pool.

    Attributes:
        tp: tensor-parallel GPUs per pipeline rank.
        ranks: one entry per pipeline rank.
        reserves: of each GPU, or None when the KV memory was given.
        capacity: the pool, or None when there is no room for a single block.
        blocks_per_user: blocks of one context.
        max_users: most requests that the engine runs at once.
        shortfall_bytes: bytes missing per GPU for one context; 0 when one fits.
    """

    tp: int
    ranks: tuple[RankMemory, ...]
    reserves: Reserves | None
    capacity: KVCapacity | None
    blocks_per_user: int
    max_users: int
    shortfall_bytes: int

    @property
    def num_users(self) -> int:
        """Return how many contexts the worker holds at once."""
        if self.capacity is None:
            return 0
        return min(self.max_users, self.capacity.num_usable_blocks // self.blocks_per_user)

    @property
    def least_kv_bytes(self) -> int:
        """Return the KV memory of the GPU with the least."""
        return min(rank.kv_bytes for rank in self.ranks)


def find_worker(request: SizingRequest) -> Worker:
    """Return the worker of the given size, else the smallest that holds one user's context.

    When none does, the largest that the model can be divided over.

    Raises:
        ConfigError: the worker's GPUs cannot divide the model.
        UnsupportedError: the weights cannot be counted.
    """
    geometry = request.geometry
    if request.tp is not None:
        check_parallel(geometry, tp=request.tp, pp=request.pp, where="tp")
        return _worker_of(request, request.tp)
    check_parallel(geometry, tp=1, pp=request.pp, where="pp")
    sizes = [tp for tp in _TP_SIZES if not undivided(geometry, tp)]
    for tp in sizes[:-1]:
        worker = _worker_of(request, tp)
        if worker.num_users:
            return worker
    return _worker_of(request, sizes[-1])


def _worker_of(request: SizingRequest, tp: int) -> Worker:
    given = request.kv_memory_bytes
    reserves = None
    if given is None:
        reserves = default_reserves(
            request.geometry, tp=tp, pp=request.pp, max_num_seqs=request.max_num_seqs
        )
        ranks = tuple(_rank(request, tp, pp_rank, reserves) for pp_rank in range(request.pp))
    else:
        ranks = (RankMemory(weight_bytes=None, kv_bytes=given),) * request.pp
    capacity = _capacity(request, tp, ranks)
    ample = _pool(request, tp, [_AMPLE_BYTES] * request.pp)
    blocks = ample.blocks_of(request.num_context_tokens)
    needed = (blocks + 1) * ample.block_bytes  # and the null block
    holds_one = capacity is not None and capacity.num_usable_blocks >= blocks
    return Worker(
        tp=tp,
        ranks=ranks,
        reserves=reserves,
        capacity=capacity,
        blocks_per_user=blocks,
        max_users=request.max_num_seqs,
        shortfall_bytes=0 if holds_one else needed - min(rank.kv_bytes for rank in ranks),
    )


def _rank(request: SizingRequest, tp: int, pp_rank: int, reserves: Reserves) -> RankMemory:
    layers = layers_on_pp_rank(request.geometry.num_layers, pp=request.pp, pp_rank=pp_rank)
    weights = _rank_weights(request, tp, layers)
    kv_bytes = kv_memory(
        visible_bytes=request.gpu.visible_bytes,
        gpu_memory_utilization=request.gpu_memory_utilization,
        weight_bytes=weights,
        reserves=reserves,
    )
    return RankMemory(weight_bytes=weights, kv_bytes=kv_bytes)


def _rank_weights(request: SizingRequest, tp: int, layers: range) -> int:
    geometry = request.geometry
    if request.total_weight_bytes is not None:
        return ceil_div(request.total_weight_bytes * len(layers), geometry.num_layers * tp)
    if geometry.parameters is None:
        raise UnsupportedError(
            f"cannot count the weights of model type {geometry.model_type!r}",
            where=request.model_name,
            hint="Give the KV memory per GPU in GiB, or the bytes of all weights",
        )
    return rank_weight_bytes(geometry.parameters, request.stored_weights, tp=tp, layers=layers)


def _capacity(request: SizingRequest, tp: int, ranks: tuple[RankMemory, ...]) -> KVCapacity | None:
    try:
        return _pool(request, tp, [rank.kv_bytes for rank in ranks])
    except CapacityError:
        return None


def _pool(request: SizingRequest, tp: int, kv_bytes: list[int]) -> KVCapacity:
    return kv_capacity(
        request.geometry,
        kv_bytes,
        tp=tp,
        pp=request.pp,
        dtype_bytes=request.kv_element_bytes,
        block_size=request.block_size,
        max_model_len=request.longest_tokens,
        max_num_batched_tokens=request.max_num_batched_tokens,
    )
