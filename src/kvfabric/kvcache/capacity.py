"""How many KV blocks, tokens and requests fit into a worker's memory, as vLLM 0.19 counts them.

Source: derived from the start-up logs of 59 vLLM 0.19.0 runs on H100 (llm-d-planner pull request
205, 2026-04-22); 40 of them are the tests of this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.errors import CapacityError, ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import (
    KVGeometry,
    LayerGroup,
    LayerKind,
    LayerLayout,
    layer_token_bytes,
    layers_on_pp_rank,
)
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import GIB, ceil_div

# One layout with fewer than 1.25 times the layers of the scarcest is padded instead of split.
# Source: vLLM 0.19, ``_get_kv_cache_groups_uniform_page_size``.
_PADDING_LIMIT_PERCENT = 125
# Attention kernels want blocks of a multiple of 16 tokens when a state page sets the block size.
_KERNEL_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share one block table.

    Attributes:
        kind: how their cache grows.
        layers: indices of the layers.
        block_size: tokens per block; a state group uses one block per request.
        window_tokens: window or chunk; 0 for full attention and states.
    """

    kind: LayerKind
    layers: tuple[int, ...]
    block_size: int
    window_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCapacity:
    """The block pool of one worker.

    Attributes:
        num_blocks: blocks of the pool, block 0 included.
        num_tokens: the "GPU KV cache size" that vLLM 0.19 logs; newer versions log
            ``max_concurrency * max_model_len`` instead.
        max_concurrency: requests of ``max_model_len`` tokens the pool holds, as logged.
        blocks_per_request: blocks of one such request.
        max_model_len: tokens of the longest request.
        max_num_batched_tokens: most tokens per step.
        groups: block tables of every request.
        block_size: tokens per block; the smallest when groups differ.
        page_bytes: bytes of one block in one layer on one rank; 0 when layers differ in one group.
        block_bytes: bytes of one block in all its layers on the pipeline rank that binds.
    """

    num_blocks: int
    num_tokens: int
    max_concurrency: float
    blocks_per_request: int
    max_model_len: int
    max_num_batched_tokens: int
    groups: tuple[CacheGroup, ...]
    block_size: int
    page_bytes: int
    block_bytes: int

    @property
    def num_usable_blocks(self) -> int:
        """Return the blocks requests can have: block 0 is the null block."""
        return max(0, self.num_blocks - 1)

    def requests_of(self, num_tokens: int) -> int:
        """Return how many requests of this length fit at once, whole blocks each."""
        return self.num_usable_blocks // self.blocks_of(num_tokens)

    def blocks_of(self, num_tokens: int) -> int:
        """Return the blocks of one request of this length."""
        return blocks_per_request(
            self.groups, num_tokens, max_num_batched_tokens=self.max_num_batched_tokens
        )


def blocks_per_request(
    groups: Sequence[CacheGroup], num_tokens: int, *, max_num_batched_tokens: int
) -> int:
    """Return the blocks one request of this length needs in all its tables, at most.

    A sliding layer keeps its window and the tokens of one step, which start and end inside a block:
    ceil(min(window - 1 + step, length) / block) + 1. A chunked layer keeps ceil(min(chunk + step,
    length) / block). A state layer keeps one block.
    """
    return sum(_table_blocks(group, num_tokens, max_num_batched_tokens) for group in groups)


def _table_blocks(group: CacheGroup, num_tokens: int, step_tokens: int) -> int:
    if group.kind is LayerKind.STATE:
        return 1
    if group.kind is LayerKind.SLIDING:
        kept = min(group.window_tokens - 1 + step_tokens, num_tokens)
        return ceil_div(kept, group.block_size) + 1
    if group.kind is LayerKind.CHUNKED:
        return ceil_div(min(group.window_tokens + step_tokens, num_tokens), group.block_size)
    return ceil_div(num_tokens, group.block_size)


def kv_capacity(
    geometry: KVGeometry,
    kv_bytes: int | Sequence[int],
    *,
    tp: int = 1,
    pp: int = 1,
    dtype_bytes: int | None = None,
    block_size: int = 16,
    max_model_len: int,
    max_num_batched_tokens: int = 8192,
) -> KVCapacity:
    """Return the block pool that this much KV memory makes.

    Args:
        geometry: the model.
        kv_bytes: memory for KV blocks on one rank; one number, or one per pipeline rank.
        tp: tensor-parallel ranks.
        pp: pipeline ranks; the one with room for the fewest blocks binds.
        dtype_bytes: bytes per cached element; the model's own by default.
        block_size: tokens per block.
        max_model_len: tokens of the longest request.
        max_num_batched_tokens: most tokens per step.

    Raises:
        CapacityError: there is no room for a single block.
        ConfigError: a number is out of range.
    """
    for name, value in (
        ("block_size", block_size),
        ("max_model_len", max_model_len),
        ("max_num_batched_tokens", max_num_batched_tokens),
    ):
        if value < 1:
            raise ConfigError(f"{name} is {value}", hint="Write at least 1")
    size = geometry.dtype_bytes if dtype_bytes is None else dtype_bytes
    pool = _pool_layout(geometry, dtype_bytes=size, tp=tp, block_size=block_size)
    by_rank = [kv_bytes] * pp if isinstance(kv_bytes, int) else list(kv_bytes)
    num_blocks, block_bytes = _binding_rank(geometry, pool, by_rank, pp=pp)
    if num_blocks < 1:
        raise CapacityError(
            f"no room for a KV block: one takes {block_bytes:,} bytes per rank and there are "
            f"{max(0, min(by_rank)):,}"
        )
    needed = blocks_per_request(
        pool.groups, max_model_len, max_num_batched_tokens=max_num_batched_tokens
    )
    smallest = min(group.block_size for group in pool.groups)
    return KVCapacity(
        num_blocks=num_blocks,
        num_tokens=num_blocks // len(pool.groups) * smallest,
        max_concurrency=num_blocks / needed,
        blocks_per_request=needed,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        groups=pool.groups,
        block_size=smallest,
        page_bytes=pool.page_bytes,
        block_bytes=block_bytes,
    )


def _binding_rank(
    geometry: KVGeometry, pool: "_PoolLayout", kv_bytes_by_rank: Sequence[int], *, pp: int
) -> tuple[int, int]:
    """Return the blocks of the pipeline rank with room for the fewest, and its bytes per block."""
    assert len(kv_bytes_by_rank) == pp
    found = []
    for pp_rank, kv_bytes in enumerate(kv_bytes_by_rank):
        layers = layers_on_pp_rank(geometry.num_layers, pp=pp, pp_rank=pp_rank)
        block_bytes = max(pool.table_bytes(group, layers) for group in pool.groups)
        if block_bytes:
            found.append((max(0, kv_bytes) // block_bytes, block_bytes))
    return min(found)


@dataclass(frozen=True, slots=True)
class _PoolLayout:
    """Block tables, the bytes of one page when all are alike, else those of each layer."""

    groups: tuple[CacheGroup, ...]
    page_bytes: int
    layer_bytes: dict[int, int]

    def table_bytes(self, group: CacheGroup, layers: range) -> int:
        """Return the bytes that one block of this table takes in these layers."""
        return sum(self.layer_bytes[layer] for layer in group.layers if layer in layers)


def _pool_layout(
    geometry: KVGeometry, *, dtype_bytes: int, tp: int, block_size: int
) -> _PoolLayout:
    caching = [group for group in geometry.groups if group.layout.kind is not LayerKind.NONE]
    if not any(group.layout.kind is not LayerKind.STATE for group in caching):
        raise UnsupportedError(f"{geometry.model_type!r} has no attention layers to size")
    if len({(group.layout.kind, group.layout.window_tokens) for group in caching}) == 1:
        return _one_table(caching, dtype_bytes=dtype_bytes, tp=tp, block_size=block_size)
    return _split_tables(caching, dtype_bytes=dtype_bytes, tp=tp, block_size=block_size)


def _one_table(
    caching: Sequence[LayerGroup], *, dtype_bytes: int, tp: int, block_size: int
) -> _PoolLayout:
    """Lay out layers that keep the same tokens: one table, pages as large as each layer needs."""
    bytes_by_layer = {
        layer: block_size * _rank_token_bytes(group.layout, dtype_bytes, tp)
        for group in caching
        for layer in group.layers
    }
    layout = caching[0].layout
    table = CacheGroup(
        kind=layout.kind,
        layers=tuple(sorted(bytes_by_layer)),
        block_size=block_size,
        window_tokens=layout.window_tokens,
    )
    sizes = set(bytes_by_layer.values())
    return _PoolLayout((table,), sizes.pop() if len(sizes) == 1 else 0, bytes_by_layer)


def _split_tables(
    caching: Sequence[LayerGroup], *, dtype_bytes: int, tp: int, block_size: int
) -> _PoolLayout:
    """Lay out layers of several kinds: pages of one size, tables of nearly equally many layers."""
    token_bytes = {
        group.layout: _rank_token_bytes(group.layout, dtype_bytes, tp)
        for group in caching
        if group.layout.kind is not LayerKind.STATE
    }
    state_bytes = max(ceil_div(group.layout.state_bytes, tp) for group in caching)
    tokens = _aligned_block_size(state_bytes, max(token_bytes.values()), block_size)
    page_bytes = tokens * max(token_bytes.values())
    tables = [
        CacheGroup(
            kind=group.layout.kind,
            layers=layers,
            block_size=_unified_block_size(page_bytes, token_bytes.get(group.layout), tokens),
            window_tokens=group.layout.window_tokens,
        )
        for group in caching
        for layers in _split(group.layers, _table_layers([len(g.layers) for g in caching]))
    ]
    bytes_by_layer = {layer: page_bytes for group in caching for layer in group.layers}
    return _PoolLayout(tuple(tables), page_bytes, bytes_by_layer)


def _rank_token_bytes(layout: LayerLayout, dtype_bytes: int, tp: int) -> int:
    return layer_token_bytes(layout, dtype_bytes=dtype_bytes, tp=tp) + layout.index_bytes


def _aligned_block_size(state_bytes: int, token_bytes: int, block_size: int) -> int:
    """Return the block size at which a page of attention holds a whole state.

    Source: vLLM 0.19 logs 544 tokens for Qwen3-Next-80B and 784 for Qwen3.5-27B on one GPU.
    """
    needed = _KERNEL_TOKENS * ceil_div(state_bytes, _KERNEL_TOKENS * token_bytes)
    return max(block_size, needed)


def _unified_block_size(page_bytes: int, token_bytes: int | None, tokens: int) -> int:
    """Return the block size that gives a layout the common page size; states keep theirs."""
    if token_bytes is None:
        return tokens
    block_size, rest = divmod(page_bytes, token_bytes)
    if rest or block_size % tokens:
        raise UnsupportedError(
            f"layers of {token_bytes} and {page_bytes // tokens} bytes per token cannot share "
            "pages of one size"
        )
    return block_size


def _table_layers(num_layers: Sequence[int]) -> int:
    """Return how many layers share a table: those of the scarcest kind, padded if nearly equal."""
    fewest, most = min(num_layers), max(num_layers)
    return most if most * 100 < fewest * _PADDING_LIMIT_PERCENT else fewest


def _split(layers: Sequence[int], table_layers: int) -> list[tuple[int, ...]]:
    """Split layers over tables in turn, so that every pipeline rank has some of each table."""
    num_tables = ceil_div(len(layers), table_layers)
    return [tuple(layers[first::num_tables]) for first in range(num_tables)]


# ---- memory for KV -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserves:
    """Memory of one rank that is neither weights nor KV blocks.

    Attributes:
        activation_bytes: peak of one step at the full token budget.
        non_torch_bytes: CUDA context and communication buffers.
        source: where the two come from.
    """

    activation_bytes: int
    non_torch_bytes: int
    source: Source


# Least squares over the 28 models and formats run without pipeline ranks: 0.28 GiB and 14.2 bytes
# for each logit of a step with as many requests as the engine allows (1,024 there). Largest error
# 0.5 GiB; an RTX 4090 that allows 256 requests fits too.
_ACTIVATION_FLOOR_BYTES = 3 * GIB // 10
_BYTES_PER_LOGIT = 14
# Without the vocabulary: the mean of the runs.
_ACTIVATION_MEAN_BYTES = 21 * GIB // 10
# Means of the runs: 0.24 to 0.27 GiB alone (0.46 once), 2.06 to 2.21 with tensor-parallel ranks,
# 0.07 per pipeline rank without them.
_NON_TORCH_ALONE_BYTES = GIB // 4
_NON_TORCH_TENSOR_BYTES = 213 * GIB // 100
_NON_TORCH_PIPELINE_BYTES = 7 * GIB // 100

RESERVES_SOURCE = Source(
    SourceKind.DERIVED,
    "fit to 40 vLLM 0.19.0 start-ups on H100 (llm-d-planner pull request 205); within 0.5 GiB",
    "2026-04-22",
)


def default_reserves(
    geometry: KVGeometry, *, tp: int = 1, pp: int = 1, max_num_seqs: int = 1024
) -> Reserves:
    """Return the reserves of one rank, as vLLM 0.19 measured them on H100.

    The peak comes from the logits of ``max_num_seqs`` requests; steps of much more than 8,192
    tokens need more.
    """
    logits = max_num_seqs * (geometry.vocab_size or 0)
    is_known = geometry.vocab_size is not None
    activation = _ACTIVATION_FLOOR_BYTES + _BYTES_PER_LOGIT * logits
    alone = _NON_TORCH_ALONE_BYTES if pp == 1 else _NON_TORCH_PIPELINE_BYTES
    return Reserves(
        activation_bytes=activation if is_known else _ACTIVATION_MEAN_BYTES,
        non_torch_bytes=_NON_TORCH_TENSOR_BYTES if tp > 1 else alone,
        source=RESERVES_SOURCE,
    )


def kv_memory(
    *, visible_bytes: int, gpu_memory_utilization: float, weight_bytes: int, reserves: Reserves
) -> int:
    """Return the bytes one rank has left for KV blocks; negative when the rest does not fit.

    Args:
        visible_bytes: memory of the GPU as its driver shows it.
        gpu_memory_utilization: share of it that the engine may use, above 0 and at most 1.
        weight_bytes: weights of the rank.
        reserves: what else it needs.

    Raises:
        ConfigError: the share is out of range.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization is {gpu_memory_utilization}",
            hint="Write a share above 0 and at most 1, such as 0.9",
        )
    budget = int(visible_bytes * gpu_memory_utilization)
    return budget - weight_bytes - reserves.activation_bytes - reserves.non_torch_bytes
