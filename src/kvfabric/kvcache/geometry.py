"""What a model keeps of each token in its KV cache, layer by layer, and the bytes that makes.

Source: 2 x layers x KV heads x head size x bytes for multi-head, grouped-query and multi-query
attention; layers x (latent + rotary part) x bytes for multi-head latent attention (DeepSeek-V2,
arXiv 2405.04434, section 2.1). Every other layer kind is counted as what it is.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.parameters import ParameterCount
from kvfabric.units import ceil_div


class LayerKind(Enum):
    """How a layer's cache grows with the context."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    STATE = "state"
    NONE = "none"


GROWING_KINDS = frozenset({LayerKind.FULL})
WINDOWED_KINDS = frozenset({LayerKind.SLIDING, LayerKind.CHUNKED})
TOKEN_KINDS = GROWING_KINDS | WINDOWED_KINDS

# "auto" means the element size of the model itself.
KV_DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    """What one layer caches. Counts are of the whole layer, before tensor parallelism.

    Attributes:
        kind: how it grows.
        num_query_heads: query heads.
        num_kv_heads: cached heads; 1 for a latent cache.
        key_dim: elements per token of one cached key head (latent cache: latent plus rotary part).
        value_dim: elements per token of one cached value head (latent cache: 0).
        query_dim: elements of one query head in the score product, as prefill computes it.
        output_dim: elements of one head's output.
        window_tokens: most tokens kept by a sliding or chunked layer; 0 for the others.
        is_latent: the cache is one latent vector that every tensor-parallel rank needs whole.
        index_bytes: bytes per token of the index of a sparse attention beside the cache.
        index_dim: elements of all heads of that index together, in its score product.
        index_top_tokens: most tokens that the index picks for a query; 0 for all.
        state_bytes: constant bytes per request of a linear-attention or state-space layer.
    """

    kind: LayerKind
    num_query_heads: int = 0
    num_kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    query_dim: int = 0
    output_dim: int = 0
    window_tokens: int = 0
    is_latent: bool = False
    index_bytes: int = 0
    index_dim: int = 0
    index_top_tokens: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that cache alike, by their index in the model."""

    layout: LayerLayout
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGeometry:
    """A model as capacity and step-time models see it.

    Attributes:
        model_type: as in the config.
        num_layers: layers of all kinds.
        hidden_size: width of the residual stream.
        num_attention_heads: query heads of a full-attention layer.
        vocab_size: tokens in the vocabulary, or None when the config does not say.
        max_context_tokens: the longest context the model allows, or None.
        groups: all layers, grouped by layout, in order of first appearance.
        dtype_bytes: bytes per element of the model's own type, which an "auto" cache uses.
        weight_format: name of the format its weights are published in.
        parameters: the counts, or None for families whose counts are not modelled.
        notes: what the figures leave out.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int | None
    max_context_tokens: int | None
    groups: tuple[LayerGroup, ...]
    dtype_bytes: int = 2
    weight_format: str = "bf16"
    parameters: ParameterCount | None = None
    notes: tuple[str, ...] = ()

    def num_layers_of(self, kinds: Collection[LayerKind]) -> int:
        """Return the number of layers of these kinds."""
        return sum(len(group.layers) for group in self.groups if group.layout.kind in kinds)


def kv_dtype_bytes(name: str, geometry: KVGeometry, *, where: str = "") -> int:
    """Return the bytes per cached element of ``auto``, ``bf16``, ``fp16``, ``fp32`` or ``fp8``.

    Raises:
        UnsupportedError: any other type.
    """
    if name == "auto":
        return geometry.dtype_bytes
    if name not in KV_DTYPE_BYTES:
        raise UnsupportedError(
            f"unknown KV cache type {name!r}",
            where=where,
            hint=f"Write one of auto, {', '.join(KV_DTYPE_BYTES)}",
        )
    return KV_DTYPE_BYTES[name]


def layer_token_bytes(layout: LayerLayout, *, dtype_bytes: int, tp: int = 1) -> int:
    """Return the cached bytes of one token in one layer on one tensor-parallel rank.

    Ranks divide the heads; with more ranks than heads each rank keeps one whole head. A latent is
    whole on every rank. The index of a sparse attention is not included.
    """
    if layout.kind not in TOKEN_KINDS:
        return 0
    num_heads = layout.num_kv_heads if layout.is_latent else ceil_div(layout.num_kv_heads, tp)
    return num_heads * (layout.key_dim + layout.value_dim) * dtype_bytes


def kv_bytes_per_token(
    geometry: KVGeometry,
    *,
    dtype_bytes: int | None = None,
    tp: int = 1,
    kinds: Collection[LayerKind] = TOKEN_KINDS,
) -> int:
    """Return the cached bytes per token in all layers of these kinds, on one rank.

    ``GROWING_KINDS`` gives the part that grows with the context without end, ``WINDOWED_KINDS`` the
    part that stops at a window. ``tp=1`` gives the whole model.
    """
    size = geometry.dtype_bytes if dtype_bytes is None else dtype_bytes
    return sum(
        len(group.layers) * layer_token_bytes(group.layout, dtype_bytes=size, tp=tp)
        for group in geometry.groups
        if group.layout.kind in kinds
    )


def index_bytes_per_token(geometry: KVGeometry) -> int:
    """Return the bytes per token of sparse-attention indexes in all layers, on one rank."""
    return sum(len(group.layers) * group.layout.index_bytes for group in geometry.groups)


def request_bytes(
    geometry: KVGeometry,
    num_tokens: int,
    *,
    dtype_bytes: int | None = None,
    tp: int = 1,
    layers: range | None = None,
) -> int:
    """Return the bytes that one request of this context length keeps on one rank.

    Sliding and chunked layers are capped at their window, state layers are constant, sparse
    indexes are counted; nothing is rounded up to blocks.

    Args:
        geometry: the model.
        num_tokens: tokens in the context.
        dtype_bytes: bytes per cached element; the model's own by default.
        tp: tensor-parallel ranks; 1 gives the whole model.
        layers: the layers of one pipeline rank; all by default.
    """
    size = geometry.dtype_bytes if dtype_bytes is None else dtype_bytes
    return sum(
        _layers_inside(group, layers)
        * _layer_request_bytes(group.layout, num_tokens, dtype_bytes=size, tp=tp)
        for group in geometry.groups
    )


def kept_tokens(layout: LayerLayout, num_tokens: int) -> int:
    """Return how many tokens of a context a layer still keeps."""
    if layout.kind not in TOKEN_KINDS:
        return 0
    return min(num_tokens, layout.window_tokens) if layout.window_tokens else num_tokens


def _layer_request_bytes(layout: LayerLayout, num_tokens: int, *, dtype_bytes: int, tp: int) -> int:
    kept = kept_tokens(layout, num_tokens)
    per_token = layer_token_bytes(layout, dtype_bytes=dtype_bytes, tp=tp) + layout.index_bytes
    return kept * per_token + ceil_div(layout.state_bytes, tp)


def _layers_inside(group: LayerGroup, layers: range | None) -> int:
    if layers is None:
        return len(group.layers)
    return sum(1 for layer in group.layers if layer in layers)


def layers_on_pp_rank(num_layers: int, *, pp: int, pp_rank: int) -> range:
    """Return the layers of one pipeline rank.

    Layers left over go to the ranks before the last one, from the back: the last rank also holds
    the output head. Source: vLLM 0.19, ``get_pp_indices`` (61 layers on 4 ranks: 15, 15, 16, 15).
    """
    each, rest = divmod(num_layers, pp)
    sizes = [each + (1 if pp - 1 - rest <= rank < pp - 1 else 0) for rank in range(pp)]
    start = sum(sizes[:pp_rank])
    return range(start, start + sizes[pp_rank])


def wire_bytes_by_rank(
    geometry: KVGeometry,
    num_tokens: int,
    *,
    tp: int = 1,
    pp: int = 1,
    dtype_bytes: int | None = None,
    num_latent_senders: int = 1,
) -> tuple[int, ...]:
    """Return the bytes each rank sends to hand off one request, at index ``pp_rank * tp + rank``.

    Heads repeated on several ranks are sent by each of them. A latent is sent once in all, evenly
    by the first ``num_latent_senders`` ranks of each pipeline rank: copies do not multiply bytes.
    """
    size = geometry.dtype_bytes if dtype_bytes is None else dtype_bytes
    num_senders = min(num_latent_senders, tp)
    sent = []
    for pp_rank in range(pp):
        layers = layers_on_pp_rank(geometry.num_layers, pp=pp, pp_rank=pp_rank)
        split, shared = _split_and_latent_bytes(
            geometry, num_tokens, dtype_bytes=size, tp=tp, layers=layers
        )
        each, rest = divmod(shared, num_senders)
        latent = [each + (1 if rank < rest else 0) for rank in range(num_senders)]
        sent += [split + (latent[rank] if rank < num_senders else 0) for rank in range(tp)]
    return tuple(sent)


def _split_and_latent_bytes(
    geometry: KVGeometry, num_tokens: int, *, dtype_bytes: int, tp: int, layers: range
) -> tuple[int, int]:
    """Return the bytes every rank sends itself, and those of the latent layers all share."""
    split = latent = 0
    for group in geometry.groups:
        num_bytes = _layers_inside(group, layers) * _layer_request_bytes(
            group.layout, num_tokens, dtype_bytes=dtype_bytes, tp=tp
        )
        if group.layout.is_latent:
            latent += num_bytes
        else:
            split += num_bytes
    return split, latent


def check_parallel(geometry: KVGeometry, *, tp: int, pp: int = 1, where: str = "") -> None:
    """Refuse a split that the engine refuses too.

    Source: vLLM 0.19 wants query heads, KV heads (or their copies) and the vocabulary, padded to
    64, divided evenly by tensor-parallel ranks.

    Raises:
        ConfigError: names what cannot be divided.
    """
    if pp < 1 or pp > geometry.num_layers:
        raise ConfigError(
            f"pipeline size {pp} with {geometry.num_layers} layers",
            where=where,
            hint=f"Write a number from 1 to {geometry.num_layers}",
        )
    problem = "is less than 1" if tp < 1 else undivided(geometry, tp)
    if problem:
        fits = [size for size in (1, 2, 4, 8, 16, 32) if not undivided(geometry, size)]
        raise ConfigError(
            f"tensor-parallel size {tp} {problem}",
            where=where,
            hint=f"Sizes that work: {', '.join(map(str, fits))}",
        )


def undivided(geometry: KVGeometry, tp: int) -> str:
    """Return what ``tp`` ranks cannot divide, in words, or an empty text."""
    for group in geometry.groups:
        layout = group.layout
        if layout.num_query_heads % tp:
            return f"does not divide {layout.num_query_heads} attention heads"
        num_heads = layout.num_kv_heads
        if num_heads and not layout.is_latent and num_heads % tp and tp % num_heads:
            return f"neither divides {num_heads} KV heads nor is a multiple of them"
    if geometry.vocab_size is not None and ceil_div(geometry.vocab_size, 64) * 64 % tp:
        return f"does not divide a vocabulary of {geometry.vocab_size}"
    return ""
