"""What the ranks of a context-parallel prefill exchange in each layer, as flows between ranks.

A chunk's tokens are split over N ranks, and so is the cached history before it. Formulas per layer
and GPU, with S new and P cached tokens, S split evenly (rings: context parallelism for
million-token inference, arXiv 2411.01783; all-to-all: Ulysses, arXiv 2309.14509; both as quoted in
secondary notes, the papers were not read again):

* pass-KV, ring or all-gather: ``(N - 1) / N x (S + P) x KV bytes``;
* pass-Q: ``(N - 1) / N x S x query bytes`` round the ring, then as much of partial outputs;
* Ulysses: four all-to-alls, ``(N - 1) / N x (S / N) x (query + KV + output bytes)``; each rank
  keeps the cache of its heads for all tokens, so that the history does not move.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import TOKEN_KINDS, KVGeometry, LayerLayout, layer_token_bytes
from kvfabric.protocol.transfer import RankTransfer
from kvfabric.units import ceil_div

LSE_BYTES: Final = 4
"""Bytes of the log-sum-exp that goes with one head's partial output: one 32-bit float."""


class CpExchange(Enum):
    """How the ranks of a prefill see each other's tokens."""

    ALL_GATHER_KV = "all_gather"
    RING_KV = "ring_pass_kv"
    RING_Q = "ring_pass_q"
    ULYSSES = "all_to_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionHeads:
    """What one token carries in one attention layer, on one GPU of a context-parallel rank.

    Attributes:
        num_query_heads: query heads of the GPU.
        num_kv_heads: cached heads of the GPU; 1 for a latent cache.
        query_bytes: of one query head.
        kv_bytes: of one cached head, keys and values.
        output_bytes: of one head's output.
        lse_bytes: sent with each partial output of a head.
    """

    num_query_heads: int
    num_kv_heads: int
    query_bytes: int
    kv_bytes: int
    output_bytes: int
    lse_bytes: int = LSE_BYTES

    @property
    def token_query_bytes(self) -> int:
        """Return the bytes of all queries of a token."""
        return self.num_query_heads * self.query_bytes

    @property
    def token_kv_bytes(self) -> int:
        """Return the bytes of all keys and values of a token."""
        return self.num_kv_heads * self.kv_bytes

    @property
    def token_partial_bytes(self) -> int:
        """Return the bytes of a token's outputs over a part of the keys."""
        return self.num_query_heads * (self.output_bytes + self.lse_bytes)


def attention_heads(
    layout: LayerLayout, *, tp: int = 1, dtype_bytes: int = 2, kv_dtype_bytes: int | None = None
) -> AttentionHeads:
    """Return the heads of one layer on one of ``tp`` tensor-parallel GPUs.

    Args:
        layout: the layer.
        tp: GPUs that share the heads within each context-parallel rank.
        dtype_bytes: bytes per element of queries and outputs.
        kv_dtype_bytes: bytes per element of keys and values as sent; ``dtype_bytes`` by default.
    """
    if layout.kind not in TOKEN_KINDS:
        raise UnsupportedError(
            f"context parallelism over a {layout.kind.value} layer",
            hint="Only attention layers exchange keys, values or queries",
        )
    kv_bytes = dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
    num_kv_heads = layout.num_kv_heads if layout.is_latent else ceil_div(layout.num_kv_heads, tp)
    latent_dim = layout.key_dim if layout.is_latent else 0
    return AttentionHeads(
        num_query_heads=ceil_div(layout.num_query_heads, tp),
        num_kv_heads=num_kv_heads,
        # Partial attention over latents is computed on the latents themselves.
        query_bytes=(latent_dim or layout.query_dim) * dtype_bytes,
        kv_bytes=layer_token_bytes(layout, dtype_bytes=kv_bytes, tp=tp) // num_kv_heads,
        output_bytes=(latent_dim or layout.output_dim) * dtype_bytes,
    )


# ---- one layer ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CpRound:
    """Flows of one layer that run at the same time, between ranks 0 .. N - 1.

    ``is_overlapped`` means that attention over what is there already runs beside them.
    """

    flows: tuple[RankTransfer, ...]
    is_overlapped: bool


def layer_rounds(
    exchange: CpExchange,
    heads: AttentionHeads,
    *,
    num_ranks: int,
    num_new: int,
    num_cached: int = 0,
) -> tuple[CpRound, ...]:
    """Return what one GPU of each rank sends in one layer, round after round.

    Rings overlap with attention; all-gathers and all-to-alls do not.

    Args:
        exchange: how.
        heads: what a token carries.
        num_ranks: context-parallel ranks.
        num_new: tokens of the chunk, split over the ranks as evenly as can be, the first longer.
        num_cached: tokens before it that its queries attend to, split likewise.

    Raises:
        ConfigError: heads that the ranks of an all-to-all cannot divide.
    """
    if num_ranks < 1 or num_new < 0 or num_cached < 0:
        raise ConfigError(
            f"{num_new} tokens behind {num_cached} on {num_ranks} context-parallel ranks",
            hint="Write one rank or more, and counts from 0",
        )
    new = split_tokens(num_new, num_ranks)
    kept = [a + b for a, b in zip(new, split_tokens(num_cached, num_ranks), strict=True)]
    match exchange:
        case CpExchange.ALL_GATHER_KV:
            sent = [count * heads.token_kv_bytes for count in kept]
            rounds = [CpRound(_all_pairs([[size] * num_ranks for size in sent]), False)]
        case CpExchange.RING_KV:
            rounds = _ring([count * heads.token_kv_bytes for count in kept])
        case CpExchange.RING_Q:
            back = [count * heads.token_partial_bytes for count in new]
            rounds = _ring([count * heads.token_query_bytes for count in new])
            rounds.append(CpRound(_all_pairs([back] * num_ranks), False))
        case CpExchange.ULYSSES:
            rounds = _ulysses(heads, new)
    return tuple(one for one in rounds if one.flows)


def split_tokens(num_tokens: int, num_ranks: int) -> list[int]:
    """Return the tokens of each rank.

    >>> split_tokens(10, 4)
    [3, 3, 2, 2]
    """
    each, rest = divmod(num_tokens, num_ranks)
    return [each + (rank < rest) for rank in range(num_ranks)]


def _ring(shard_bytes: Sequence[int]) -> list[CpRound]:
    """Return N - 1 rounds; each rank passes on the shard that it got in the one before."""
    num_ranks = len(shard_bytes)
    return [
        CpRound(
            tuple(
                RankTransfer(rank, (rank + 1) % num_ranks, shard_bytes[(rank - hop) % num_ranks])
                for rank in range(num_ranks)
                if shard_bytes[(rank - hop) % num_ranks]
            ),
            True,
        )
        for hop in range(num_ranks - 1)
    ]


def _all_pairs(sizes: Sequence[Sequence[int]]) -> tuple[RankTransfer, ...]:
    """Return a flow of ``sizes[src][dst]`` bytes for every pair of different ranks."""
    return tuple(
        RankTransfer(src, dst, size)
        for src, row in enumerate(sizes)
        for dst, size in enumerate(row)
        if src != dst and size
    )


def _ulysses(heads: AttentionHeads, new: Sequence[int]) -> list[CpRound]:
    """Return the queries, keys and values to the rank of their head, and the outputs back."""
    num_ranks = len(new)
    queries, kv_heads = heads.num_query_heads, heads.num_kv_heads
    if queries % num_ranks or (kv_heads % num_ranks and num_ranks % kv_heads):
        raise ConfigError(
            f"all-to-all over {num_ranks} ranks with {queries} query and {kv_heads} KV heads",
            hint="Write ranks that divide the heads, or exchange keys and values in a ring",
        )
    own = queries // num_ranks
    # With more ranks than KV heads, each head goes to several ranks.
    there = own * heads.query_bytes + max(1, kv_heads // num_ranks) * heads.kv_bytes
    back = [count * own * heads.output_bytes for count in new]
    return [
        CpRound(_all_pairs([[count * there] * num_ranks for count in new]), False),
        CpRound(_all_pairs([back] * num_ranks), False),
    ]


# ---- one step ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CpTraffic:
    """All that one step exchanges, between GPUs of the fabric; one flow per pair of GPUs.

    Pairs in the same server are named too: whether they cross the fabric is the network's business.
    """

    overlapped: tuple[RankTransfer, ...]
    exposed: tuple[RankTransfer, ...]


def step_traffic(
    exchange: CpExchange,
    geometry: KVGeometry,
    cp_gpus: Sequence[Sequence[int]],
    chunks: Iterable[tuple[int, int]],
    *,
    dtype_bytes: int | None = None,
    kv_dtype_bytes: int | None = None,
) -> CpTraffic:
    """Return the flows of one prefill step, summed over its layers and rounds.

    Layers with a window pass on no more history than the window. Recurrent layers are left out:
    their state is small against keys and values.

    Args:
        exchange: how.
        geometry: the model.
        cp_gpus: fabric GPU indices of each context-parallel rank, in tensor-parallel order; GPU i
            of a rank exchanges with GPU i of the others.
        chunks: ``(tokens, tokens before them)`` of each prompt in the step.
        dtype_bytes: bytes per element of queries and outputs; the model's own by default.
        kv_dtype_bytes: the same of keys and values.
    """
    tp = len(cp_gpus[0])
    size = geometry.dtype_bytes if dtype_bytes is None else dtype_bytes
    sums: dict[bool, dict[tuple[int, int], int]] = {True: {}, False: {}}
    chunks = list(chunks)
    for group in geometry.groups:
        layout = group.layout
        if layout.kind not in TOKEN_KINDS:
            continue
        heads = attention_heads(layout, tp=tp, dtype_bytes=size, kv_dtype_bytes=kv_dtype_bytes)
        for num_new, history in chunks:
            seen = min(history, layout.window_tokens) if layout.window_tokens else history
            rounds = layer_rounds(
                exchange, heads, num_ranks=len(cp_gpus), num_new=num_new, num_cached=seen
            )
            _add(sums, rounds, len(group.layers))
    return CpTraffic(_between_gpus(sums[True], cp_gpus), _between_gpus(sums[False], cp_gpus))


def _add(
    sums: dict[bool, dict[tuple[int, int], int]], rounds: Iterable[CpRound], num_layers: int
) -> None:
    for one in rounds:
        total = sums[one.is_overlapped]
        for flow in one.flows:
            pair = flow.src_gpu, flow.dst_gpu
            total[pair] = total.get(pair, 0) + flow.num_bytes * num_layers


def _between_gpus(
    by_rank: dict[tuple[int, int], int], cp_gpus: Sequence[Sequence[int]]
) -> tuple[RankTransfer, ...]:
    return tuple(
        RankTransfer(src_gpu, dst_gpu, num_bytes)
        for (src, dst), num_bytes in by_rank.items()
        for src_gpu, dst_gpu in zip(cp_gpus[src], cp_gpus[dst], strict=True)
    )
