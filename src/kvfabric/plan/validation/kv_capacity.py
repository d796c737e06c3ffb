"""Block pools and KV memory against what vLLM 0.19.0 logged at 40 start-ups on H100 80GB.

The logs give KV memory to 0.01 GiB, so results agree to that. Source: ``start_ups``.
"""

from typing import Final

from kvfabric.catalog.gpus import gpu
from kvfabric.kvcache.capacity import KVCapacity, default_reserves, kv_capacity, kv_memory
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.kvcache.parameters import rank_weight_bytes, weight_format
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role, Unit
from kvfabric.plan.validation.kv_bytes import geometry_of, parameters_of
from kvfabric.plan.validation.start_ups import START_UPS, Shape, StartUp
from kvfabric.units import GIB

MEMORY: Final = (
    ("llama-3.1-8b", 1, 58.11),
    ("llama-3.1-8b", 4, 67.44),
    ("qwen3-8b", 1, 57.50),
    ("qwen3-30b-a3b", 1, 15.41),
    ("mixtral-8x7b", 2, 28.44),
    ("gemma-2-9b", 1, 54.12),
)
"""(model, TP, logged GiB for KV) of those start-ups whose model the catalog has, language alone."""

MEMORY_WITH_VISION: Final = (("llama-4-scout", 4, 16.75),)
"""The same; its vision part, 2.9 GiB per GPU, is not counted."""

SMALLER_GPU_GIB: Final = 5.05
"""LLMServingSim, vLLM 0.19.0 on an RTX 4090: Llama-3.1-8B, 256 requests, utilization 0.9."""


def config_of(shape: Shape) -> dict[str, object]:
    """Return a config with the attention of a run; everything else does not matter here."""
    config: dict[str, object] = {
        "model_type": "llama",
        "num_hidden_layers": shape["layers"],
        "hidden_size": 1024,
        "num_attention_heads": shape.get("kv_heads", 16),
        "torch_dtype": "bfloat16",
    }
    if "latent" in shape:
        rotary = 64
        compressed = int(shape["latent"]) - rotary
        config |= {"kv_lora_rank": compressed, "qk_rope_head_dim": rotary, "qk_nope_head_dim": 128}
        return config | {"v_head_dim": 128}
    config |= {"num_key_value_heads": shape["kv_heads"], "head_dim": shape["head_dim"]}
    pattern, window = shape.get("pattern"), shape.get("window")
    by_pattern: dict[object, dict[str, object]] = {
        "1:1": {"model_type": "gemma2", "sliding_window": window},
        "5:1": {"model_type": "gemma3_text", "sliding_window": window},
        "3:1": {"model_type": "llama4_text", "attention_chunk_size": window},
    }
    return config | by_pattern.get(pattern, {})


def capacity_of(run: StartUp) -> KVCapacity:
    """Return the pool that the logged KV memory makes."""
    return kv_capacity(
        geometry_from_config(config_of(run.shape), where=run.name),
        round(run.kv_gib * GIB),
        tp=run.tp,
        pp=run.pp,
        dtype_bytes=run.kv_element_bytes,
        max_model_len=run.max_model_len,
    )


def unequal_heads_capacity() -> KVCapacity:
    """Return the pool of gemma-4-26b-a4b as one edge machine of 128 GB logged it (2026-04).

    An fp8 cache of 51.62 GiB and steps of 2,048 tokens: see ``UNEQUAL_HEADS``.
    """
    return kv_capacity(
        geometry_of("gemma-4-26b-a4b"),
        round(51.62 * GIB),
        dtype_bytes=1,
        max_model_len=131_072,
        max_num_batched_tokens=2_048,
    )


UNEQUAL_HEADS: Final = (169_140, 451_040, 33.42)
"""Logged blocks, tokens, and requests of 131,072 tokens."""


def memory_gib(name: str, *, tp: int, utilization: float = 0.95) -> float:
    """Return the GiB for KV blocks on one H100 from the config alone, with default reserves."""
    geometry, found = geometry_of(name), parameters_of(name)
    form = weight_format(geometry.weight_format)
    available = kv_memory(
        visible_bytes=gpu("h100-sxm-80gb").visible_bytes,
        gpu_memory_utilization=utilization,
        weight_bytes=rank_weight_bytes(found, form, tp=tp, layers=range(geometry.num_layers)),
        reserves=default_reserves(geometry, tp=tp),
    )
    return available / GIB


def smaller_gpu_gib() -> float:
    """Return the GiB for KV blocks of Llama-3.1-8B on an RTX 4090; see ``SMALLER_GPU_GIB``."""
    name = "llama-3.1-8b"
    available = kv_memory(
        visible_bytes=gpu("rtx-4090").visible_bytes,
        gpu_memory_utilization=0.9,
        weight_bytes=2 * parameters_of(name).total,
        reserves=default_reserves(geometry_of(name), max_num_seqs=256),
    )
    return available / GIB


def _pool_figures() -> list[Figure]:
    figures = []
    for run in START_UPS:
        found = capacity_of(run)
        figures += [
            Figure(f"{run.name}, blocks", run.blocks, found.num_blocks),
            Figure(f"{run.name}, tokens", run.tokens, found.num_tokens),
        ]
    return figures


def _concurrency_figures() -> list[Figure]:
    return [
        Figure(run.name, run.concurrency, capacity_of(run).max_concurrency) for run in START_UPS
    ]


def _unequal_figures() -> list[Figure]:
    found = unequal_heads_capacity()
    ours = (found.num_blocks, found.num_tokens, found.max_concurrency)
    names = ("blocks", "tokens", "requests")
    return [Figure(*parts) for parts in zip(names, UNEQUAL_HEADS, ours, strict=True)]


def _memory_figures() -> list[Figure]:
    return [Figure(f"{name} tp{tp}, GiB", gib, memory_gib(name, tp=tp)) for name, tp, gib in MEMORY]


def _vision_figures() -> list[Figure]:
    return [
        Figure(f"{name} tp{tp}, GiB", gib, memory_gib(name, tp=tp))
        for name, tp, gib in MEMORY_WITH_VISION
    ]


def _smaller_gpu_figures() -> list[Figure]:
    return [Figure("llama-3.1-8b, GiB", SMALLER_GPU_GIB, smaller_gpu_gib())]


_LOGS: Final = "vLLM 0.19.0 logs on H100, llm-d-planner PR 205"

COMPARISONS: Final = (
    Comparison(
        part="kv-cache",
        what="blocks and tokens from logged memory, 40 start-ups",
        source=_LOGS,
        role=Role.HELD_OUT,
        limit=Limit(0.0001, 0.0002),
        recompute=_pool_figures,
    ),
    Comparison(
        part="kv-cache",
        what="maximum concurrency from logged memory, 40 start-ups",
        source=_LOGS,
        role=Role.HELD_OUT,
        limit=Limit(0.0002, 0.001),
        recompute=_concurrency_figures,
    ),
    Comparison(
        part="kv-cache",
        what="pool with unequal head sizes (Gemma 4)",
        source="vLLM log of one machine, 2026-04",
        role=Role.HELD_OUT,
        limit=Limit(0.0002, 0.0002),
        recompute=_unequal_figures,
    ),
    Comparison(
        part="kv-cache",
        what="KV memory from the config alone, H100",
        source=_LOGS,
        role=Role.CALIBRATED,
        unit=Unit.GIB,
        limit=Limit(0.22, 0.5),
        recompute=_memory_figures,
    ),
    Comparison(
        part="kv-cache",
        what="KV memory of Llama 4: its vision part is not counted",
        source=_LOGS,
        role=Role.CALIBRATED,
        unit=Unit.GIB,
        limit=Limit(3.3, 3.3),
        recompute=_vision_figures,
    ),
    Comparison(
        part="kv-cache",
        what="KV memory from the config alone, RTX 4090",
        source="vLLM 0.19.0 log, LLMServingSim",
        role=Role.HELD_OUT,
        unit=Unit.GIB,
        limit=Limit(0.22, 0.22),
        recompute=_smaller_gpu_figures,
    ),
)
