"""When a reused prefix is worth its bytes, and what reuse asks of the network."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import NS_PER_S, ceil_div

MOONCAKE_SOURCE: Final = Source(
    SourceKind.PUBLISHED,
    "Mooncake (FAST'25), section 3, equations 1 and 2; a = 4 and b = 22 of its table 1 were not"
    " re-read: with a = 4, only b = 21 or 22 gives both of its figures, 6 and 19 GB/s",
    "2026-11-30",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeModel:
    """A model as Mooncake's equation 1 counts it: ``layers x (a n^2 d + b n d^2)`` operations.

    The number of layers cancels out of the bandwidth. The defaults are LLaMA3-70B.

    Attributes:
        model_dim: d, elements of the residual stream.
        attention_flops: a, operations per pair of tokens and element.
        linear_flops: b, operations per token and element squared.
        query_heads_per_kv_head: ``gqa``.
        element_bytes: s, bytes per cached element.
    """

    model_dim: int = 8192
    attention_flops: int = 4
    linear_flops: int = 22
    query_heads_per_kv_head: int = 8
    element_bytes: int = 2


def mooncake_min_bytes_per_s(model: MooncakeModel, num_prefix_tokens: int, flops: int) -> float:
    """Return the bytes/s above which loading a prefix is quicker than computing it.

    ``B / G > 2 d s / (gqa (a p d + b d^2))`` for ``p`` prefix tokens and ``G`` operations per
    second. Source: ``MOONCAKE_SOURCE``.

    Args:
        model: the model.
        num_prefix_tokens: p.
        flops: G, of all GPUs of the worker.
    """
    if num_prefix_tokens < 1 or flops < 1:
        raise ConfigError(
            f"a prefix of {num_prefix_tokens} tokens at {flops} operations per second",
            hint="Write both above 0",
        )
    d = model.model_dim
    moved = 2 * d * model.element_bytes
    saved = model.attention_flops * num_prefix_tokens * d + model.linear_flops * d * d
    return flops * moved / (model.query_heads_per_kv_head * saved)


def min_fetch_rate_bps(num_bytes: int, saved_prefill_ns: int) -> int:
    """Return the bit/s at which a fetch takes as long as computing what it brings, rounded up.

    Mooncake's equation 2 for any step-time model: ``saved_prefill_ns`` is the prefill without the
    prefix less the prefill behind it.
    """
    if saved_prefill_ns < 1:
        raise ConfigError(
            f"a prefix that saves {saved_prefill_ns} ns", hint="Only a saving can be weighed"
        )
    return ceil_div(num_bytes * 8 * NS_PER_S, saved_prefill_ns)


def prefill_kv_rate_bps(num_bytes: int, prefill_ns: int, hit_rate: Fraction) -> int:
    """Return the bit/s of KV traffic per prefill worker that is always busy, rounded up.

    With a share ``hit_rate`` of every prompt reused, a prefill takes ``1 - hit_rate`` of its time
    and still the KV cache of the whole prompt moves: the rate grows as ``1 / (1 - hit_rate)``. An
    upper bound, since new tokens also attend to the reused ones; ``prefill_kv_rate_exact_bps``
    counts that.

    Args:
        num_bytes: KV cache of the prompt.
        prefill_ns: time to compute the prompt without reuse.
        hit_rate: share of the prompt's tokens that are reused, in [0, 1).
    """
    if not 0 <= hit_rate < 1:
        raise ConfigError(f"hit rate {hit_rate}", hint="Write a share in [0, 1)")
    left = 1 - Fraction(hit_rate)
    return ceil_div(num_bytes * 8 * NS_PER_S * left.denominator, prefill_ns * left.numerator)


def prefill_kv_rate_exact_bps(
    num_bytes: int, num_tokens: int, num_hit_tokens: int, prefill_ns: Callable[[int, int], int]
) -> int:
    """Return the same from a step-time model, rounded up.

    Args:
        num_bytes: KV cache of the prompt.
        num_tokens: tokens of the prompt.
        num_hit_tokens: tokens reused; fewer than all.
        prefill_ns: time to compute so many tokens behind so many cached ones.
    """
    if not 0 <= num_hit_tokens < num_tokens:
        raise ConfigError(
            f"{num_hit_tokens} of {num_tokens} tokens reused",
            hint="At least one token of a prompt is computed",
        )
    busy_ns = prefill_ns(num_tokens - num_hit_tokens, num_hit_tokens)
    return ceil_div(num_bytes * 8 * NS_PER_S, busy_ns)
