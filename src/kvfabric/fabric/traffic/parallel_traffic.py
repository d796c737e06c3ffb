"""What context and expert parallelism send per layer, as flows.

Sources: ring attention with KV or Q passed on: Liu et al., arXiv 2310.01889, and Yang et al.,
"Context Parallelism for Scalable Million-Token Inference", arXiv 2411.01783, section 3; all-to-all
over heads: DeepSpeed-Ulysses, arXiv 2309.14509; dispatch and combine: DeepSeek-V3, arXiv
2412.19437, section 3.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.fabric.traffic.collectives import (
    Flows,
    all_to_all,
    one_after_the_other,
    ring_all_gather,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """The tensors of one layer's attention over a prompt split among ranks.

    Attributes:
        num_tokens: of the prompt, over all ranks.
        num_query_heads: query heads.
        num_kv_heads: heads of K, and as many of V.
        head_dim: values per head.
        bytes_per_value: of Q, K, V and the output alike.
    """

    num_tokens: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    bytes_per_value: int = 2

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        for name in ("num_tokens", "num_query_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1 or self.bytes_per_value < 1:
                raise ConfigError(f"attention layer of {self}", hint="Write sizes of 1 or more")

    def head_bytes(self, num_heads: int) -> int:
        """Return the bytes of one token in so many heads."""
        return num_heads * self.head_dim * self.bytes_per_value


def pass_kv(ranks: Sequence[int], layer: AttentionLayer) -> Flows:
    """Return the flows of ring attention that passes K and V on.

    Per rank ``(N - 1) / N * S * 2 * Hkv * dh * b`` bytes where N divides the tokens.
    """
    token_bytes = layer.head_bytes(2 * layer.num_kv_heads)
    return ring_all_gather(ranks, [n * token_bytes for n in _tokens(ranks, layer)])


def pass_query(ranks: Sequence[int], layer: AttentionLayer) -> Flows:
    """Return the flows of ring attention that passes Q on and sends partial outputs home.

    Per rank ``(N - 1) / N * S * Hq * dh * b`` for Q, and as much again for the outputs, without
    their softmax statistics (one value per head).
    """
    size, rest = divmod(layer.num_tokens, len(ranks))
    if rest:
        raise _not_divisible("tokens", layer.num_tokens, ranks)
    shard = size * layer.head_bytes(layer.num_query_heads)
    return one_after_the_other(
        ring_all_gather(ranks, [shard] * len(ranks)), all_to_all(ranks, shard)
    )


def exchange_heads(ranks: Sequence[int], layer: AttentionLayer) -> Flows:
    """Return the four all-to-alls that trade tokens for heads and back: Q, K, V, output.

    Per rank ``(N - 1) / N * S / N * (2 Hq + 2 Hkv) * dh * b``. KV heads fewer than ranks are
    replicated until every rank has one.
    """
    size = len(ranks)
    kv_heads = max(layer.num_kv_heads, size)
    for what, number in (
        ("tokens", layer.num_tokens),
        ("query heads", layer.num_query_heads),
        ("KV heads", kv_heads),
    ):
        if number % size:
            raise _not_divisible(what, number, ranks)
    tokens = layer.num_tokens // size
    q_bytes, kv_bytes = (
        tokens * layer.head_bytes(heads // size) for heads in (layer.num_query_heads, kv_heads)
    )
    return one_after_the_other(
        *(all_to_all(ranks, num_bytes) for num_bytes in (q_bytes, kv_bytes, kv_bytes, q_bytes))
    )


def dispatch_and_combine(
    ranks: Sequence[int], *, pair_tokens: int, dispatch_bytes: int, combine_bytes: int
) -> Flows:
    """Return what the experts of one layer receive and send back, spread evenly over the ranks.

    Args:
        ranks: with experts each.
        pair_tokens: copies of tokens that one rank sends to the experts of another.
        dispatch_bytes: of one copy on its way there.
        combine_bytes: of one on its way back.
    """
    return one_after_the_other(
        all_to_all(ranks, pair_tokens * dispatch_bytes),
        all_to_all(ranks, pair_tokens * combine_bytes),
    )


def _tokens(ranks: Sequence[int], layer: AttentionLayer) -> list[int]:
    part, rest = divmod(layer.num_tokens, len(ranks))
    return [part + (place < rest) for place in range(len(ranks))]


def _not_divisible(what: str, number: int, ranks: Sequence[int]) -> ConfigError:
    return ConfigError(
        f"{number} {what} over {len(ranks)} ranks",
        hint=f"Write a multiple of {len(ranks)} {what}, or other ranks",
    )
