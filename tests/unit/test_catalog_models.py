"""Catalog models and GPUs: complete, sourced, and with helpful refusals."""

import json

import pytest
from reference import reference_path

from kvfabric.catalog.gpus import gpu, gpu_names
from kvfabric.catalog.models import model_config, model_names, model_source
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.protocol.provenance import SourceKind
from kvfabric.units import GIB

FILES = {
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
    "deepseek-v3.2": "deepseek-ai--DeepSeek-V3.2",
    "gemma-2-2b": "from_transformers_defaults/google--gemma-2-2b",
    "gemma-2-9b": "google--gemma-2-9b",
    "gemma-3-12b": "google--gemma-3-12b",
    "gemma-4-26b-a4b": "google--gemma-4-26B-A4B",
    "glm-4.5-air": "zai-org--GLM-4.5-Air",
    "glm-5": "zai-org--GLM-5",
    "gpt-oss-120b": "openai--gpt-oss-120b",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "gpt2": "from_transformers_defaults/openai-community--gpt2",
    "jamba-v0.1": "from_transformers_defaults/ai21labs--Jamba-v0.1",
    "kimi-k2": "moonshotai--Kimi-K2-Instruct",
    "kimi-k3": "moonshotai--Kimi-K3",
    "llama-3.1-405b": "meta-llama--Meta-Llama-3.1-405B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-4-scout": "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "mimo-v2-flash": "XiaomiMiMo--MiMo-V2-Flash",
    "minimax-m2.5": "MiniMaxAI--MiniMax-M2.5",
    "minimax-m3": "MiniMaxAI--MiniMax-M3",
    "mistral-7b": "from_transformers_defaults/mistralai--Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai--Mixtral-8x7B-v0.1",
    "nemotron-3-nano-30b-a3b": "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron-h-56b": "nvidia--Nemotron-H-56B-Base-8K",
    "nemotron-super-49b": "nvidia--Llama-3_3-Nemotron-Super-49B-v1",
    "phi-3-mini": "from_transformers_defaults/microsoft--Phi-3-mini-4k-instruct",
    "qwen3-0.6b": "Qwen--Qwen3-0.6B",
    "qwen3-235b-a22b": "Qwen--Qwen3-235B-A22B",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-8b": "Qwen--Qwen3-8B",
    "qwen3-next-80b-a3b": "from_transformers_defaults/Qwen--Qwen3-Next-80B-A3B-Instruct",
    "qwen3.5-27b": "Qwen--Qwen3.5-27B",
    "qwen3.5-397b-a17b": "Qwen--Qwen3.5-397B-A17B",
    "step-3.7-flash": "stepfun-ai--Step-3.7-Flash",
}


@pytest.mark.parametrize("name", model_names())
def test_every_model_has_a_geometry(name: str) -> None:
    found = geometry_from_config(model_config(name), where=name)
    assert found.num_layers > 0
    assert found.vocab_size is not None


@pytest.mark.parametrize("name", model_names())
def test_every_model_has_a_published_source(name: str) -> None:
    assert model_source(name).kind is SourceKind.PUBLISHED


@pytest.mark.parametrize("name", sorted(FILES))
def test_catalog_says_what_the_published_config_says(name: str) -> None:
    config = json.loads(reference_path(f"models/{FILES[name]}.json").read_text())
    known, published = (
        geometry_from_config(source, where=name) for source in (model_config(name), config)
    )
    assert known.groups == published.groups
    assert known.weight_format == published.weight_format
    if published.vocab_size is not None:
        assert known.parameters == published.parameters


def test_only_models_without_a_reference_config_go_unchecked() -> None:
    assert set(model_names()) - set(FILES) == {"kimi-linear-48b-a3b"}


def test_unknown_model_names_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean llama-3\.1-70b"):
        model_config("Llama-3-70B", where="size")


def test_unlike_anything_still_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"path of a config\.json"):
        model_config("zzz")


def test_configs_cannot_be_changed() -> None:
    config = model_config("gpt2")
    with pytest.raises(TypeError):
        config["n_layer"] = 3  # type: ignore[index]


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_shows_less_than_its_nameplate(name: str) -> None:
    found = gpu(name)
    assert 0.9 * found.memory_bytes < found.visible_bytes < found.memory_bytes
    assert found.bf16_flops > 10**13
    assert found.memory_bandwidth > 10**11
    assert found.source.text
    assert found.visible_source.text


def test_h100_shows_what_was_measured() -> None:
    found = gpu("h100-sxm-80gb")
    assert found.visible_bytes / GIB == pytest.approx(79.19)
    assert found.visible_source.kind is SourceKind.MEASURED


def test_unknown_gpu_names_the_closest() -> None:
    with pytest.raises(ConfigError, match="Did you mean h100-sxm-80gb"):
        gpu("h100")
