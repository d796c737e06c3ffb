"""KV bytes per token and parameter counts against published figures."""

import json
from typing import Any

import pytest
from reference import reference_path

from kvfabric.catalog.models import model_names
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
from kvfabric.plan.validation.kv_bytes import (
    BYTES_PER_TOKEN,
    LOADED_WEIGHTS,
    PARAMETERS,
    bytes_per_token,
    geometry_of,
    loaded_gib,
    parameters_of,
)
from kvfabric.units import GIB


@pytest.mark.parametrize(("name", "expected"), BYTES_PER_TOKEN.items())
def test_bytes_per_token_match_published_figures(name: str, expected: tuple[int, int]) -> None:
    assert bytes_per_token(name) == expected


def test_every_model_of_the_catalog_has_a_published_figure() -> None:
    assert BYTES_PER_TOKEN.keys() == set(model_names())
    assert len(BYTES_PER_TOKEN) == 37


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
    assert index_bytes_per_token(geometry_of("deepseek-v3.2")) == 48_068 - 40_016


def test_llama_70b_needs_a_terabyte_for_a_hundred_long_contexts() -> None:
    # Mooncake README: 40 GB are 128k tokens of LLaMA3-70B (40 GiB, 131,072 tokens).
    assert request_bytes(geometry_of("llama-3.1-70b"), 131_072) == 40 * GIB
    assert 100 * request_bytes(geometry_of("llama-3.1-70b"), 32_000) == 1_048_576_000_000


def test_latent_hand_off_sends_one_copy() -> None:
    # aiconfigurator issue 1380: Kimi-K2.5 with an fp8 cache moves 286 MB for 8,150 tokens.
    sent = wire_bytes_by_rank(geometry_of("kimi-k2"), 8_150, tp=8, dtype_bytes=1)
    assert sum(sent) == 35_136 * 8_150 == 286_358_400


def test_repeated_heads_double_the_hand_off() -> None:
    # Mooncake P-D tables: Qwen3-235B on 8 ranks sends 12.62 GB for 32,768 tokens, not 6.31.
    sent = wire_bytes_by_rank(geometry_of("qwen3-235b-a22b"), 32_768, tp=8)
    assert sum(sent) == 2 * 192_512 * 32_768
    assert sum(sent) / 1e9 == pytest.approx(12.62, abs=0.005)


@pytest.mark.parametrize(("name", "total", "tolerance"), PARAMETERS)
def test_total_parameters_match_published_counts(name: str, total: float, tolerance: float) -> None:
    assert parameters_of(name).total == pytest.approx(total, rel=tolerance)


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
    assert parameters_of(name).active == pytest.approx(active, rel=0.012)


@pytest.mark.parametrize(
    ("name", "active"),
    # Counted with the embedding: the Qwen3 and Llama 4 cards.
    [("qwen3-30b-a3b", 3.3e9), ("qwen3-235b-a22b", 22e9), ("llama-4-scout", 17e9)],
)
def test_active_parameters_with_embedding_match_published_counts(name: str, active: float) -> None:
    assert parameters_of(name).active_with_embedding == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(("name", "stored", "tp", "gib"), LOADED_WEIGHTS)
def test_weights_match_loaded_models(name: str, stored: str, tp: int, gib: float) -> None:
    assert loaded_gib(name, stored, tp) == pytest.approx(gib, rel=0.02)
