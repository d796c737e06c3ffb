"""Hand-offs of an idle network against Mooncake's prefill-decode tables.

Source: Mooncake docs at 3b5a594, one request at a time.
"""

from typing import Final

from kvfabric.kvcache.geometry import wire_bytes_by_rank
from kvfabric.perf.handoff import HANDOFF_SETUP_NS, estimate_handoff_ns, payload_rate_bps
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role
from kvfabric.plan.validation.kv_bytes import geometry_of

FITTED_RATE_BPS: Final = 8 * 146_100_000_000
"""Fitted to ``QWEN3_8B`` together with ``HANDOFF_SETUP_NS``."""

QWEN3_8B: Final = (
    (128, 0.54),
    (512, 0.92),
    (1_024, 1.50),
    (2_048, 2.51),
    (4_096, 4.75),
    (8_192, 8.84),
    (16_384, 16.43),
    (32_768, 31.65),
)
"""(prompt tokens, transfer ms): vLLM, 2 nodes of 8 H800, 8 CX-7 RoCE, about 200 GB/s together."""

QWEN3_235B: Final = (
    (1_024, 3.96),
    (4_096, 10.95),
    (8_192, 20.31),
    (32_768, 76.78),
)
"""(prompt tokens, transfer ms): SGLang, bf16, nodes of 8 H20 with 4 x 400 Gbit/s Ethernet."""

QWEN3_235B_SETUP_NS: Final = 1_840_000
QWEN3_235B_RATE_BPS: Final = 8 * 171_100_000_000
"""Fitted to ``QWEN3_235B``; no constant of the model, but the same law."""

NODE_RATE_BPS: Final = 4 * 400 * 10**9
"""Line rate of the second table's nodes, and about that of the first's."""


def _bytes_of(name: str, num_tokens: int) -> int:
    return sum(wire_bytes_by_rank(geometry_of(name), num_tokens, tp=8))


def _fitted_figures() -> list[Figure]:
    return [
        Figure(
            f"qwen3-8b, {num_tokens:,} tokens, ms",
            published_ms,
            estimate_handoff_ns(_bytes_of("qwen3-8b", num_tokens), FITTED_RATE_BPS) / 1e6,
        )
        for num_tokens, published_ms in QWEN3_8B
    ]


def _second_fit_figures() -> list[Figure]:
    name, other_ns = "qwen3-235b-a22b", QWEN3_235B_SETUP_NS - HANDOFF_SETUP_NS
    figures = []
    for num_tokens, published_ms in QWEN3_235B:
        ours_ns = other_ns + estimate_handoff_ns(_bytes_of(name, num_tokens), QWEN3_235B_RATE_BPS)
        figures.append(Figure(f"{name}, {num_tokens:,} tokens, ms", published_ms, ours_ns / 1e6))
    return figures


def _planned_figures() -> list[Figure]:
    rate_bps = payload_rate_bps(NODE_RATE_BPS)
    return [
        Figure(
            f"{name}, {num_tokens:,} tokens, ms",
            published_ms,
            estimate_handoff_ns(_bytes_of(name, num_tokens), rate_bps) / 1e6,
        )
        for name, table in (("qwen3-8b", QWEN3_8B), ("qwen3-235b-a22b", QWEN3_235B))
        for num_tokens, published_ms in table
    ]


COMPARISONS: Final = (
    Comparison(
        part="hand-off",
        what="0.38 ms + bytes / 146.1 GB/s, Qwen3-8B, 8 lengths",
        source="Mooncake P-D table, vLLM, 8 H800",
        role=Role.CALIBRATED,
        limit=Limit(0.042, 0.06),
        recompute=_fitted_figures,
    ),
    Comparison(
        part="hand-off",
        what="1.84 ms + bytes / 171.1 GB/s, Qwen3-235B, 4 lengths",
        source="Mooncake P-D table, SGLang, 8 H20",
        role=Role.CALIBRATED,
        limit=Limit(0.02, 0.05),
        recompute=_second_fit_figures,
    ),
    Comparison(
        part="hand-off",
        what="as a plan has it, at the NICs' payload rate, 2 models",
        source="Mooncake P-D tables, vLLM and SGLang",
        role=Role.HELD_OUT,
        limit=Limit(0.23, 0.41),
        recompute=_planned_figures,
    ),
)
