"""KV bytes per token, parameters and weights of the catalog's models against published figures."""

from functools import cache
from typing import Final

from kvfabric.catalog.models import model_config
from kvfabric.kvcache.geometry import (
    GROWING_KINDS,
    WINDOWED_KINDS,
    KVGeometry,
    kv_bytes_per_token,
    wire_bytes_by_rank,
)
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.kvcache.parameters import ParameterCount, rank_weight_bytes, weight_format
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role
from kvfabric.units import GIB

BYTES_PER_TOKEN: Final[dict[str, tuple[int, int]]] = {
    # vLLM 0.19 logs (llm-d-planner pull request 205), Mooncake P-D tables, Hugging Face Llama 3.1
    # blog (0.125 and 0.313 GB per 1,024 tokens).
    "llama-3.1-8b": (131_072, 0),
    "llama-3.1-70b": (327_680, 0),
    # 504 KiB with the 8 KV heads of the released config; the blog's table used 16.
    "llama-3.1-405b": (516_096, 0),
    "qwen3-8b": (147_456, 0),
    "qwen3-32b": (262_144, 0),
    # Dataset card 2026_prefixcache: 1,024 blocks of 16 tokens are 1.5 GiB.
    "qwen3-30b-a3b": (98_304, 0),
    "qwen3-235b-a22b": (192_512, 0),
    "mixtral-8x7b": (131_072, 0),
    "gpt2": (36_864, 0),
    # LMCache pull request 694; 61 layers x (512 + 64) x 2 bytes.
    "deepseek-v3": (70_272, 0),
    "deepseek-v3.2": (70_272, 0),
    "kimi-k2": (70_272, 0),
    # 73,728 in all layers of gpt-oss-120b (hf-mem issue 60), half of it in a window of 128.
    "gpt-oss-20b": (24_576, 24_576),
    "gpt-oss-120b": (36_864, 36_864),
    "gemma-2-9b": (172_032, 172_032),
    "gemma-3-12b": (65_536, 327_680),
    # 25 layers of 8 x 256 and 5 of 2 x 512 (vLLM tpu-inference pull request 3220: unequal shapes).
    "gemma-4-26b-a4b": (20_480, 204_800),
    "mimo-v2-flash": (23_040, 199_680),
    # 196,608 as listed elsewhere, without its chunking: 3 of 4 layers attend in chunks.
    "llama-4-scout": (49_152, 147_456),
    "mistral-7b": (0, 131_072),
    # A head size of 128 where hidden size over heads gives 42.
    "glm-4.5-air": (188_416, 0),
    # 49 of 80 layers keep attention, 8 KV heads each.
    "nemotron-super-49b": (200_704, 0),
    # openanolis kvcache-calculator: 16 of 64 layers, 4 heads of 256.
    "qwen3.5-27b": (65_536, 0),
    "qwen3-next-80b-a3b": (24_576, 0),
    "kimi-k3": (27_648, 0),
    # 7 latent layers in the published config; the config class's defaults have 6.
    "kimi-linear-48b-a3b": (8_064, 0),
    "jamba-v0.1": (16_384, 0),
    "nemotron-h-56b": (40_960, 0),
    "nemotron-3-nano-30b-a3b": (6_144, 0),
    "step-3.7-flash": (49_152, 135_168),
    # Layers x 2 x KV heads x head size x 2 bytes, counted from the published configs apart from
    # this code: 62 x 8 x 128, 60 x 4 x 128, 26 x 4 x 256 (half in a window), 32 x 32 x 96,
    # 28 x 8 x 128, 15 x 2 x 256; 78 latent layers of 576.
    "minimax-m2.5": (253_952, 0),
    "minimax-m3": (122_880, 0),
    "gemma-2-2b": (53_248, 53_248),
    "phi-3-mini": (393_216, 0),
    "qwen3-0.6b": (114_688, 0),
    "qwen3.5-397b-a17b": (30_720, 0),
    "glm-5": (89_856, 0),
}
"""(growing, windowed) bytes per token in two-byte elements, whole model."""

PARAMETERS: Final = (
    # Model cards and Hugging Face parameter counts; the last figure says how exact they are.
    ("llama-3.1-8b", 8.03e9, 0.001),
    ("llama-3.1-70b", 70.55e9, 0.001),
    ("llama-3.1-405b", 405.85e9, 0.001),
    ("qwen3-0.6b", 0.596e9, 0.001),
    ("qwen3-8b", 8.19e9, 0.001),
    ("qwen3-32b", 32.76e9, 0.001),
    ("qwen3-30b-a3b", 30.53e9, 0.001),
    ("qwen3-235b-a22b", 235.09e9, 0.001),
    ("mixtral-8x7b", 46.70e9, 0.001),
    ("mistral-7b", 7.24e9, 0.001),
    ("phi-3-mini", 3.82e9, 0.001),
    ("gpt2", 124.44e6, 0.001),
    ("gemma-2-9b", 9.24e9, 0.001),
    ("gpt-oss-20b", 20.91e9, 0.001),
    ("gpt-oss-120b", 116.83e9, 0.001),
    ("deepseek-v3", 671.03e9, 0.001),
    ("kimi-k2", 1.03e12, 0.01),
    ("glm-4.5-air", 106.9e9, 0.01),
    ("glm-5", 744e9, 0.01),
    ("minimax-m2.5", 229e9, 0.01),
    ("mimo-v2-flash", 309e9, 0.01),
    ("nemotron-super-49b", 49.87e9, 0.001),
    ("nemotron-h-56b", 56.3e9, 0.01),
    ("nemotron-3-nano-30b-a3b", 31.6e9, 0.01),
    ("jamba-v0.1", 51.57e9, 0.001),
    ("qwen3-next-80b-a3b", 80e9, 0.01),
    ("qwen3.5-27b", 27e9, 0.01),
)
"""(model, total parameters, tolerance)."""

LOADED_WEIGHTS: Final = (
    # Weights as loaded by vLLM 0.19.0 (llm-d-planner pull request 205).
    ("llama-3.1-8b", "bf16", 1, 14.99),
    ("llama-3.1-8b", "bf16", 4, 3.77),
    ("llama-3.1-8b", "fp8", 1, 8.49),
    ("llama-3.1-8b", "int4", 1, 5.38),
    ("llama-3.1-70b", "fp8", 4, 16.96),
    ("qwen3-8b", "bf16", 1, 15.27),
    ("qwen3-30b-a3b", "bf16", 1, 56.88),
    ("gemma-2-9b", "bf16", 1, 17.22),
    ("mixtral-8x7b", "bf16", 2, 43.51),
)
"""(model, stored as, TP, GiB of one rank)."""

HANDOFF_MB: Final = (
    # aiconfigurator issue 1380: Kimi-K2.5 with an fp8 cache moves 286 MB for 8,150 tokens.
    ("kimi-k2", 8_150, 8, 1, 286.0),
    # Mooncake P-D tables: Qwen3-235B on 8 ranks sends 12.62 GB for 32,768 tokens, not 6.31.
    ("qwen3-235b-a22b", 32_768, 8, 2, 12_620.0),
)
"""(model, tokens, TP, bytes per element, MB of all ranks together, rounded as published)."""


@cache
def geometry_of(name: str) -> KVGeometry:
    """Return the geometry of a model of the catalog."""
    return geometry_from_config(model_config(name), where=name)


def parameters_of(name: str) -> ParameterCount:
    """Return the parameter count of a model of the catalog."""
    found = geometry_of(name).parameters
    assert found is not None, "a config of the catalog gives its parameters"
    return found


def bytes_per_token(name: str) -> tuple[int, int]:
    """Return (growing, windowed) bytes per token in two-byte elements, whole model."""
    growing, windowed = (
        kv_bytes_per_token(geometry_of(name), dtype_bytes=2, kinds=kinds)
        for kinds in (GROWING_KINDS, WINDOWED_KINDS)
    )
    return growing, windowed


def loaded_gib(name: str, stored: str, tp: int) -> float:
    """Return the GiB of weights that one rank loads."""
    found = parameters_of(name)
    layers = range(len(found.layers))
    return rank_weight_bytes(found, weight_format(stored), tp=tp, layers=layers) / GIB


def _bytes_figures() -> list[Figure]:
    return [
        Figure(f"{name}, {kind}, bytes", published, ours)
        for name, rows in BYTES_PER_TOKEN.items()
        for kind, published, ours in zip(
            ("growing", "windowed"), rows, bytes_per_token(name), strict=True
        )
        if published or ours
    ]


def _parameter_figures() -> list[Figure]:
    return [
        Figure(f"{name}, billions", total / 1e9, parameters_of(name).total / 1e9)
        for name, total, _ in PARAMETERS
    ]


def _weight_figures() -> list[Figure]:
    return [
        Figure(f"{name} {stored} tp{tp}, GiB", gib, loaded_gib(name, stored, tp))
        for name, stored, tp, gib in LOADED_WEIGHTS
    ]


def _handoff_figures() -> list[Figure]:
    return [
        Figure(
            f"{name} tp{tp}, {tokens:,} tokens, MB",
            published,
            sum(wire_bytes_by_rank(geometry_of(name), tokens, tp=tp, dtype_bytes=size)) / 1e6,
        )
        for name, tokens, tp, size, published in HANDOFF_MB
    ]


COMPARISONS: Final = (
    Comparison(
        part="kv-cache",
        what=f"bytes per token, {len(BYTES_PER_TOKEN)} models",
        source="published config.json files, logs and cards",
        role=Role.HELD_OUT,
        limit=Limit(0, 0),
        recompute=_bytes_figures,
    ),
    Comparison(
        part="kv-cache",
        what="total parameters",
        source="model cards, some rounded to 1 %",
        role=Role.HELD_OUT,
        limit=Limit(0.001, 0.006),
        recompute=_parameter_figures,
    ),
    Comparison(
        part="kv-cache",
        what="weights as loaded, GiB per rank",
        source="vLLM 0.19.0 logs, llm-d-planner PR 205",
        role=Role.HELD_OUT,
        limit=Limit(0.005, 0.015),
        recompute=_weight_figures,
    ),
    Comparison(
        part="kv-cache",
        what="hand-off bytes: latent, repeated heads",
        source="aiconfigurator 1380, Mooncake P-D table",
        role=Role.HELD_OUT,
        limit=Limit(0.001, 0.0015),
        recompute=_handoff_figures,
    ),
)
