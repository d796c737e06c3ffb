"""What one step asks of one GPU: operations, bytes read and exchanged; no hardware yet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from typing import Final

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import (
    TOKEN_KINDS,
    KVGeometry,
    LayerGroup,
    LayerLayout,
    check_parallel,
    layer_token_bytes,
)
from kvfabric.kvcache.parameters import (
    ParameterCount,
    WeightFormat,
    replicated_bytes,
    weight_bytes,
    weight_format,
)
from kvfabric.units import ceil_div

# Shares of experts are integers of this many parts, so that every machine gets the same bytes.
_SHARE_BITS: Final = 64
_FLOPS_PER_WEIGHT: Final = 2
_ACTIVATION_BYTES: Final = 2
_SPARSE_HEADS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """The attention of all layers of one kind.

    Attributes:
        prefill_flops_per_pair: operations per query token and token it attends to.
        decode_flops_per_pair: the same for a query token alone (differs for latent attention).
        kv_bytes_per_token: cache read per token attended to.
        window: most tokens that a query attends to, itself included; None for all. They need not
            be the last ones.
    """

    prefill_flops_per_pair: int
    decode_flops_per_pair: int
    kv_bytes_per_token: int
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWork:
    """Routed experts: each token picks ``num_active`` of ``num_experts`` in every such layer.

    Attributes:
        num_experts: routed experts of a layer.
        num_active: experts that one token uses.
        num_layers: layers with routed experts.
        weight_bytes: of all routed experts of all layers.
        matmul_flops_per_token: in the experts that one token uses, all layers.
        row_bytes_per_token: memory traffic of the rows that the experts exchange, all layers.
    """

    num_experts: int
    num_active: int
    num_layers: int
    weight_bytes: int
    matmul_flops_per_token: int
    row_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """Work of one tensor-parallel rank of a worker, summed over the pipeline stages.

    A step passes the stages one after the other, so that their sum is what a step waits for. The
    head (``lm_head``) runs once per request in the step and not per token.

    Attributes:
        tp: GPUs that share each layer.
        pp: pipeline stages.
        num_layers: layers of all stages.
        num_latent_layers: of those, with latent attention.
        num_index_layers: of those, with an index that picks what is attended to.
        matmul_flops_per_token: in the linear layers that every token passes, without the head.
        latent_flops_per_token: of those, in the projections of latent attention.
        head_flops_per_request: in the head.
        dense_weight_bytes: read in every step, the head included.
        experts: routed experts, or None.
        attention: one entry per kind of layer.
        state_bytes_per_request: recurrent state read and written per request and step.
        activation_bytes_per_token: memory traffic between those products.
        all_reduce_bytes_per_token: size of one all-reduce per token.
        num_all_reduces: per step.
        is_fp8_matmul: matrix products run on 8-bit operands.
    """

    tp: int
    pp: int
    num_layers: int
    num_latent_layers: int = 0
    num_index_layers: int = 0
    matmul_flops_per_token: int
    latent_flops_per_token: int = 0
    head_flops_per_request: int
    dense_weight_bytes: int
    experts: ExpertWork | None
    attention: tuple[AttentionWork, ...]
    state_bytes_per_request: int
    activation_bytes_per_token: int
    all_reduce_bytes_per_token: int
    num_all_reduces: int
    is_fp8_matmul: bool

    def __post_init__(self) -> None:
        """Refuse what no worker can be."""
        for name in ("tp", "pp", "num_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}", hint="Write a count from 1")
        if any(part.window is not None and part.window < 1 for part in self.attention):
            raise ConfigError("attention window below 1 token", hint="Write None for no window")


def causal_pairs(num_tokens: int, num_history_tokens: int, window: int | None) -> int:
    """Return the pairs of query token and token attended to, for a chunk behind its history.

    The query at position p attends to ``min(p + 1, window)`` tokens, itself included.

    >>> causal_pairs(3, 2, None)  # 3 + 4 + 5
    12
    >>> causal_pairs(3, 2, 4)  # 3 + 4 + 4
    11
    """
    if window is None:
        return num_tokens * num_history_tokens + num_tokens * (num_tokens + 1) // 2
    num_growing = min(num_tokens, max(0, window - num_history_tokens))
    return causal_pairs(num_growing, num_history_tokens, None) + window * (num_tokens - num_growing)


def tokens_attended(num_tokens: int, num_history_tokens: int, window: int | None) -> int:
    """Return the distinct tokens that the queries of a chunk attend to."""
    total = num_history_tokens + num_tokens
    return total if window is None else min(total, window - 1 + num_tokens)


def expert_shares(num_experts: int, num_active: int) -> tuple[int, ...]:
    """Return the expected share of experts that t tokens touch, in parts of 2**64, for t = 0, 1...

    Entry t is ``1 - (1 - num_active / num_experts) ** t``; the last entry holds for all t beyond.

    Source: expected distinct experts under uniform, independent routing (derived). Real routing is
    skewed, so that fewer are touched.
    """
    if not 1 <= num_active <= num_experts:
        raise ConfigError(
            f"{num_active} active of {num_experts} experts", hint="Write 1 <= active <= experts"
        )
    whole = 1 << _SHARE_BITS
    num_steps = _SHARE_BITS * num_experts // num_active + 1
    kept = num_experts - num_active
    missed = accumulate(
        repeat(None, num_steps), lambda left, _: left * kept // num_experts, initial=whole
    )
    return tuple(whole - left for left in missed)


def expert_bytes_by_tokens(experts: ExpertWork) -> tuple[int, ...]:
    """Return the expert bytes that a step of t tokens reads, for t = 0, 1...; see above."""
    shares = expert_shares(experts.num_experts, experts.num_active)
    return tuple(experts.weight_bytes * share >> _SHARE_BITS for share in shares)


def work_from_geometry(
    geometry: KVGeometry,
    *,
    tp: int = 1,
    pp: int = 1,
    weights: str | None = None,
    kv_dtype_bytes: int | None = None,
) -> ModelWork:
    """Return the work of one tensor-parallel rank of a worker with ``tp * pp`` GPUs.

    Norms and the router count as products, a chunked layer as a window of its chunk, and
    activations as 16 bits wide: all of them upper bounds. Unequal pipeline stages need no count: a
    step passes them all.

    Args:
        geometry: the model.
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        weights: weight format, such as ``fp8``; as published by default.
        kv_dtype_bytes: bytes per cached element; the model's own by default.

    Raises:
        UnsupportedError: the parameters of this family cannot be counted.
        ConfigError: ranks that do not divide the model.

    Source: 2 operations per weight and token (multiply, add); scores and weighted values take
    2 x heads x (query size + output size) per pair and layer (derived).
    """
    check_parallel(geometry, tp=tp, pp=pp)
    parameters = geometry.parameters
    if parameters is None:
        raise UnsupportedError(
            f"no parameter count for model_type {geometry.model_type!r}",
            hint="Step times need a family whose parameters can be counted",
        )
    stored = weight_format(weights or geometry.weight_format)
    head = parameters.output_head or parameters.embedding
    replicated = sum(layer.replicated for layer in parameters.layers)
    latent = sum(layer.latent for layer in parameters.layers) - replicated
    dense = sum(layer.dense for layer in parameters.layers) - replicated
    dense_bytes = weight_bytes(_without_experts(parameters, head), stored)
    whole_bytes = replicated_bytes(parameters, stored, layers=range(geometry.num_layers))
    state_bytes = sum(g.layout.state_bytes * len(g.layers) for g in geometry.groups)
    cache = geometry.dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
    is_split = tp > 1
    return ModelWork(
        tp=tp,
        pp=pp,
        num_layers=geometry.num_layers,
        num_latent_layers=_num_layers(geometry, lambda layout: layout.is_latent),
        num_index_layers=_num_layers(geometry, lambda layout: layout.index_dim > 0),
        matmul_flops_per_token=_FLOPS_PER_WEIGHT * replicated
        + ceil_div(_FLOPS_PER_WEIGHT * dense, tp),
        latent_flops_per_token=_FLOPS_PER_WEIGHT * replicated
        + ceil_div(_FLOPS_PER_WEIGHT * latent, tp),
        head_flops_per_request=ceil_div(_FLOPS_PER_WEIGHT * head, tp),
        dense_weight_bytes=ceil_div(dense_bytes - whole_bytes, tp) + whole_bytes,
        experts=_expert_work(geometry.hidden_size, parameters, stored, tp),
        attention=tuple(
            part
            for group in geometry.groups
            if group.layout.kind in TOKEN_KINDS
            for part in _attention_work(group, tp, cache)
        ),
        state_bytes_per_request=2 * ceil_div(state_bytes, tp),
        activation_bytes_per_token=_activation_bytes(geometry, dense, replicated, tp),
        all_reduce_bytes_per_token=_ACTIVATION_BYTES * geometry.hidden_size if is_split else 0,
        num_all_reduces=2 * geometry.num_layers if is_split else 0,
        is_fp8_matmul=stored.name == "fp8",
    )


def _without_experts(parameters: ParameterCount, head: int) -> ParameterCount:
    """Return what every step reads: rows of the embedding are few, a tied head is read whole."""
    layers = tuple(replace(layer, experts=0, active_experts=0) for layer in parameters.layers)
    return replace(parameters, embedding=0, output_head=head, layers=layers)


def _expert_work(
    hidden_size: int, parameters: ParameterCount, stored: WeightFormat, tp: int
) -> ExpertWork | None:
    """Return the routed experts of one rank, which holds a share of every expert.

    Per token, layer and expert: the row of the hidden size is gathered, the result written, and
    read again to be summed; between, the width is written and read by three kernels (2 + 2 for the
    first product and its gate, 1 + 1 for the activation), width being weights / hidden size. The
    sum is written once.

    Source: derived from the kernels that run in series: product, activation, product, sum.
    """
    if not parameters.num_experts:
        return None
    layers = tuple(replace(layer, dense=0) for layer in parameters.layers)
    routed = replace(parameters, embedding=0, output_head=0, final_norm=0, layers=layers)
    num_layers = sum(bool(layer.experts) for layer in layers)
    used = sum(layer.active_experts for layer in layers)
    whole_rows = (3 * parameters.num_active_experts + 1) * hidden_size * num_layers
    between = ceil_div(2 * used, hidden_size * tp)
    return ExpertWork(
        num_experts=parameters.num_experts,
        num_active=parameters.num_active_experts,
        num_layers=num_layers,
        weight_bytes=ceil_div(weight_bytes(routed, stored), tp),
        matmul_flops_per_token=ceil_div(_FLOPS_PER_WEIGHT * used, tp),
        row_bytes_per_token=_ACTIVATION_BYTES * (whole_rows + between),
    )


def _num_layers(geometry: KVGeometry, is_such: Callable[[LayerLayout], bool]) -> int:
    return sum(len(group.layers) for group in geometry.groups if is_such(group.layout))


def _attention_work(group: LayerGroup, tp: int, dtype_bytes: int) -> Sequence[AttentionWork]:
    """Return the attention of one group of layers.

    A decode over latents works on the latents themselves, scores and values alike (values without
    their rotary part: counted 6 % high for DeepSeek).
    """
    layout, num_layers = group.layout, len(group.layers)
    num_heads = ceil_div(layout.num_query_heads, tp)
    prefill_dims = layout.query_dim + layout.output_dim
    decode_dims = 2 * layout.key_dim if layout.is_latent else prefill_dims
    token_bytes = layer_token_bytes(layout, dtype_bytes=dtype_bytes, tp=tp)
    whole = AttentionWork(
        prefill_flops_per_pair=2 * num_layers * num_heads * prefill_dims,
        decode_flops_per_pair=2 * num_layers * num_heads * decode_dims,
        kv_bytes_per_token=num_layers * token_bytes,
        window=layout.window_tokens or None,
    )
    return _indexed(whole, layout, num_layers, num_heads) if layout.index_dim else (whole,)


def _indexed(
    whole: AttentionWork, layout: LayerLayout, num_layers: int, num_heads: int
) -> Sequence[AttentionWork]:
    """Return an attention to what an index picks, and the index itself, whole on every rank.

    Prompts attend to latents as decodes do, by kernels that compute 64 or 128 heads.

    Source: FlashMLA's sparse kernels (heads) and the reference implementation of DeepSeek-V3.2.
    """
    padded_heads = _SPARSE_HEADS * ceil_div(num_heads, _SPARSE_HEADS)
    picked_flops = 2 * num_layers * padded_heads * 2 * layout.key_dim
    index_flops = 2 * num_layers * layout.index_dim
    picked = replace(
        whole,
        prefill_flops_per_pair=picked_flops,
        decode_flops_per_pair=picked_flops,
        window=layout.index_top_tokens or None,
    )
    index = AttentionWork(
        prefill_flops_per_pair=index_flops,
        decode_flops_per_pair=index_flops,
        kv_bytes_per_token=num_layers * layout.index_bytes,
    )
    return picked, index


def _activation_bytes(geometry: KVGeometry, dense: int, replicated: int, tp: int) -> int:
    """Return the memory traffic of a token between the products of all layers, experts apart.

    Two additions with norm read and write the residual stream and their input: 8 rows of the
    hidden size per layer, whole on every rank. Between, each linear layer has one side that is not
    the residual stream; rotary, activation and cache writes pass over each about once, and its
    width is weights / hidden size.

    Source: derived; Llama-3.1-70B TP8 on H200 with 4,096 tokens gives 12.8 ms at 84 % of the
    memory bandwidth, aiconfigurator-core 0.12.0 has 14.0 ms beside products, attention and
    all-reduces.
    """
    residual = 8 * geometry.hidden_size * geometry.num_layers
    between = ceil_div(dense + tp * replicated, geometry.hidden_size * tp)
    return _ACTIVATION_BYTES * (residual + between)
