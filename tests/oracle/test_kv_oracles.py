"""KV bytes per token and parameter counts against published figures."""

import json
from typing import Any

import pytest
from reference import reference_path

from kvfabric.catalog.models import model_config
from kvfabric.errors import UnsupportedError
from kvfabric.kvcache.geometry import (
    GROWING_KINDS,
    WINDOWED_KINDS,
    KVGeometry,
    LayerKind,
    index_bytes_per_token,
    kv_bytes_per_token,
    request_bytes,
    wire_bytes_by_rank,
)
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.kvcache.parameters import ParameterCount, rank_weight_bytes, weight_format
from kvfabric.units import GIB


def geometry(name: str) -> KVGeometry:
    return geometry_from_config(model_config(name), where=name)


# (growing, windowed) bytes per token in two-byte elements, whole model.
BYTES_PER_TOKEN = {
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
    "kimi-linear-48b-a3b": (8_064, 0),
    "jamba-v0.1": (16_384, 0),
    "nemotron-h-56b": (40_960, 0),
    "nemotron-3-nano-30b-a3b": (6_144, 0),
    "step-3.7-flash": (49_152, 135_168),
}


@pytest.mark.parametrize(("name", "expected"), BYTES_PER_TOKEN.items())
def test_bytes_per_token_match_published_figures(name: str, expected: tuple[int, int]) -> None:
    found = geometry(name)
    growing = kv_bytes_per_token(found, dtype_bytes=2, kinds=GROWING_KINDS)
    windowed = kv_bytes_per_token(found, dtype_bytes=2, kinds=WINDOWED_KINDS)
    assert (growing, windowed) == expected


def oracle_entries() -> list[dict[str, Any]]:
    path = reference_path("models/kv_oracles.json")
    entries: list[dict[str, Any]] = json.loads(path.read_text())["models"]
    return entries


def config_of(entry: dict[str, Any]) -> dict[str, object]:
    text = reference_path(f"models/{entry['file']}").read_text()
    config: dict[str, object] = json.loads(text)
    return config


def check_entry(entry: dict[str, Any], found: KVGeometry) -> None:
    """Compare bytes and layer counts; Llama 4 is listed as if no layer were chunked."""
    growing = kv_bytes_per_token(found, dtype_bytes=2, kinds=GROWING_KINDS)
    windowed = kv_bytes_per_token(found, dtype_bytes=2, kinds=WINDOWED_KINDS)
    if "chunked" in entry["kind"]:
        assert growing + windowed == entry["bytes_per_token_bf16_full"]
        return
    assert growing == entry["bytes_per_token_bf16_full"], entry["model"]
    assert windowed == entry.get("bytes_per_token_bf16_sliding", 0), entry["model"]
    for key, kind in (
        ("full_layers", LayerKind.FULL),
        ("sliding_layers", LayerKind.SLIDING),
        ("linear_layers", LayerKind.STATE),
    ):
        if key in entry:
            assert found.num_layers_of({kind}) == entry[key], (entry["model"], key)


def test_every_published_config_gives_its_bytes_per_token() -> None:
    entries = [entry for entry in oracle_entries() if "bytes_per_token_bf16_full" in entry]
    assert len(entries) == 37
    for entry in entries:
        check_entry(entry, geometry_from_config(config_of(entry), where=entry["file"]))


def test_published_configs_without_a_known_cache_are_refused() -> None:
    entries = [entry for entry in oracle_entries() if "bytes_per_token_bf16_full" not in entry]
    assert len(entries) == 2
    for entry in entries:
        with pytest.raises(UnsupportedError, match="compress_ratios"):
            geometry_from_config(config_of(entry), where=entry["file"])


def test_index_of_sparse_attention_is_told_apart() -> None:
    # vLLM, DeepSeek-V3.2-Exp: 48,068 bytes per token with the index and 40,016 without.
    assert index_bytes_per_token(geometry("deepseek-v3.2")) == 48_068 - 40_016


def test_llama_70b_needs_a_terabyte_for_a_hundred_long_contexts() -> None:
    # Mooncake README: 40 GB are 128k tokens of LLaMA3-70B (40 GiB, 131,072 tokens).
    assert request_bytes(geometry("llama-3.1-70b"), 131_072) == 40 * GIB
    assert 100 * request_bytes(geometry("llama-3.1-70b"), 32_000) == 1_048_576_000_000


def test_latent_hand_off_sends_one_copy() -> None:
    # aiconfigurator issue 1380: Kimi-K2.5 with an fp8 cache moves 286 MB for 8,150 tokens.
    sent = wire_bytes_by_rank(geometry("kimi-k2"), 8_150, tp=8, dtype_bytes=1)
    assert sum(sent) == 35_136 * 8_150 == 286_358_400


def test_repeated_heads_double_the_hand_off() -> None:
    # Mooncake P-D tables: Qwen3-235B on 8 ranks sends 12.62 GB for 32,768 tokens, not 6.31.
    sent = wire_bytes_by_rank(geometry("qwen3-235b-a22b"), 32_768, tp=8)
    assert sum(sent) == 2 * 192_512 * 32_768
    assert sum(sent) / 1e9 == pytest.approx(12.62, abs=0.005)


def parameters(name: str) -> ParameterCount:
    found = geometry(name).parameters
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "total", "tolerance"),
    # Model cards and Hugging Face parameter counts.
    [
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
    ],
)
def test_total_parameters_match_published_counts(name: str, total: float, tolerance: float) -> None:
    assert parameters(name).total == pytest.approx(total, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "active"),
    # Counted without the embedding's look-up: the gpt-oss model card (5.13 and 3.61 billion), the
    # Nemotron 3 Nano card (3.2) and the Mixtral announcement (12.9); DeepSeek-V3 rounds to 37.
    [
        ("gpt-oss-120b", 5.13e9),
        ("gpt-oss-20b", 3.61e9),
        ("nemotron-3-nano-30b-a3b", 3.2e9),
        ("mixtral-8x7b", 12.9e9),
        ("deepseek-v3", 37e9),
    ],
)
def test_active_parameters_match_published_counts(name: str, active: float) -> None:
    assert parameters(name).active == pytest.approx(active, rel=0.012)


@pytest.mark.parametrize(
    ("name", "active"),
    # Counted with the embedding: the Qwen3 and Llama 4 cards.
    [("qwen3-30b-a3b", 3.3e9), ("qwen3-235b-a22b", 22e9), ("llama-4-scout", 17e9)],
)
def test_active_parameters_with_embedding_match_published_counts(name: str, active: float) -> None:
    assert parameters(name).active_with_embedding == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "stored", "tp", "gib"),
    # Weights as loaded by vLLM 0.19.0 (llm-d-planner pull request 205).
    [
        ("llama-3.1-8b", "bf16", 1, 14.99),
        ("llama-3.1-8b", "bf16", 4, 3.77),
        ("llama-3.1-8b", "fp8", 1, 8.49),
        ("llama-3.1-8b", "int4", 1, 5.38),
        ("llama-3.1-70b", "fp8", 4, 16.96),
        ("qwen3-8b", "bf16", 1, 15.27),
        ("qwen3-30b-a3b", "bf16", 1, 56.88),
        ("gemma-2-9b", "bf16", 1, 17.22),
        ("mixtral-8x7b", "bf16", 2, 43.51),
    ],
)
def test_weights_match_loaded_models(name: str, stored: str, tp: int, gib: float) -> None:
    found = parameters(name)
    loaded = rank_weight_bytes(found, weight_format(stored), tp=tp, layers=range(len(found.layers)))
    assert loaded / GIB == pytest.approx(gib, rel=0.02)
