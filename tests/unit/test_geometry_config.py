"""What is read from a config, and what is refused."""

from collections.abc import Mapping

import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import KVGeometry, LayerKind, LayerLayout, kv_bytes_per_token
from kvfabric.kvcache.geometry_config import geometry_from_config

PLAIN: dict[str, object] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}


def read(config: Mapping[str, object]) -> KVGeometry:
    return geometry_from_config(config, where="config.json")


def with_keys(**changes: object) -> dict[str, object]:
    return PLAIN | changes


def layouts(found: KVGeometry) -> list[LayerLayout]:
    by_layer = {layer: group.layout for group in found.groups for layer in group.layers}
    return [by_layer[layer] for layer in range(found.num_layers)]


def kinds(found: KVGeometry) -> list[str]:
    return [layout.kind.value for layout in layouts(found)]


def test_head_size_is_derived_when_not_given() -> None:
    assert layouts(read(PLAIN))[0].key_dim == 64


def test_null_head_size_is_derived() -> None:
    assert layouts(read(with_keys(head_dim=None)))[0].key_dim == 64


def test_given_head_size_wins() -> None:
    # gemma-7b: 3072 / 16 is 192, the heads have 256 (vLLM pull request 2622).
    found = read(
        with_keys(model_type="gemma", hidden_size=3072, head_dim=256, num_key_value_heads=16)
    )
    assert layouts(found)[0].key_dim == 256


@pytest.mark.parametrize("config", [with_keys(num_key_value_heads=None), dict(PLAIN)])
def test_missing_or_null_kv_heads_mean_one_per_query_head(config: dict[str, object]) -> None:
    config.pop("num_key_value_heads")
    assert layouts(read(config))[0].num_kv_heads == 16


def test_nested_language_part_is_read() -> None:
    # Mistral-Small-3.1: 5,120 / 32 is 160, the nested head size is 128.
    nested = {
        "model_type": "mistral",
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": None,
    }
    found = read({"model_type": "mistral3", "text_config": nested, "vision_config": {"a": 1}})
    assert kv_bytes_per_token(found) == 2 * 40 * 8 * 128 * 2


def test_latent_rank_in_the_nested_part_is_found() -> None:
    # Kimi-VL-A3B: the wrapper's name says nothing about latent attention.
    nested = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    found = read({"model_type": "kimi_vl", "text_config": nested})
    assert kv_bytes_per_token(found) == 27 * 576 * 2


def test_null_window_means_full_attention() -> None:
    assert set(kinds(read(with_keys(model_type="mistral", sliding_window=None)))) == {"full"}


def test_switched_off_window_means_full_attention() -> None:
    config = with_keys(model_type="qwen2", sliding_window=4096, use_sliding_window=False)
    assert set(kinds(read(config))) == {"full"}


def test_switched_on_window_starts_at_its_layer() -> None:
    config = with_keys(
        model_type="qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=3
    )
    assert kinds(read(config)) == ["full", "full", "full", "sliding"]


def test_list_of_windows_repeats_over_the_layers() -> None:
    # vLLM pull request 33521: [4096, null] inside the nested part.
    found = read({"text_config": with_keys(sliding_window=[4096, None])})
    assert kinds(found) == ["sliding", "full"] * 2
    assert layouts(found)[0].window_tokens == 4096


def test_window_pattern_counts_the_full_layer() -> None:
    config = with_keys(model_type="gemma3_text", sliding_window=8, sliding_window_pattern=3)
    assert kinds(read(config)) == ["sliding", "sliding", "full", "sliding"]


def test_rope_free_layers_are_full() -> None:
    config = with_keys(
        model_type="llama4_text", attention_chunk_size=64, no_rope_layers=[1, 0, 1, 0]
    )
    assert kinds(read(config)) == ["chunked", "full"] * 2


def test_named_layers_are_read() -> None:
    config = with_keys(
        sliding_window=8,
        attention_chunk_size=64,
        layer_types=[
            "full_attention",
            "sliding_attention",
            "chunked_attention",
            "full_attention",
        ],
    )
    assert kinds(read(config)) == ["full", "sliding", "chunked", "full"]


def test_state_letters_are_read() -> None:
    config = with_keys(
        model_type="nemotron_h",
        hybrid_override_pattern="M*-E",
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=1,
        ssm_state_size=32,
        conv_kernel=4,
    )
    assert kinds(read(config)) == ["state", "full", "none", "none"]


def test_blocks_without_attention_keep_nothing() -> None:
    attention = {"no_op": False, "n_heads_in_group": 8}
    blocks = [{"attention": attention, "ffn": {}}, {"attention": {"no_op": True}, "ffn": {}}] * 2
    found = read(with_keys(model_type="nemotron-nas", block_configs=blocks, vocab_size=None))
    assert kinds(found) == ["full", "none"] * 2
    assert layouts(found)[0].num_kv_heads == 2


def test_absent_description_of_four_byte_elements_doubles_the_cache() -> None:
    assert kv_bytes_per_token(read(with_keys(torch_dtype="float32"))) == 2 * kv_bytes_per_token(
        read(PLAIN)
    )


def test_plain_config_of_unknown_type_is_read() -> None:
    assert kv_bytes_per_token(read(with_keys(model_type="new_but_plain"))) == 4 * 2 * 4 * 64 * 2


def test_families_without_counts_have_none() -> None:
    assert read(with_keys(model_type="new_but_plain")).parameters is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        # DeepSeek-V4 keeps compressed tokens: the plain formula is 5.4 times too large.
        ({"model_type": "deepseek_v4", "compress_ratios": [0, 4]}, "compress_ratios"),
        ({"compress_ratios": [0, 4]}, "compress_ratios"),
        ({"model_type": "new", "rwkv_states": 3}, "rwkv_states"),
        ({"model_type": "new", "something_else": 3}, "something_else"),
        ({"cross_attention_layers": [1, 2]}, "cross_attention_layers"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "odd", "odd", "odd"]}, "odd"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*-?"}, "hybrid_override"),
        ({"layer_types": ["linear_attention"] * 4}, "linear layers"),
        ({"torch_dtype": "float4"}, "float4"),
        (
            {"block_configs": [{"attention": {"n_heads_in_group": 8, "window_length": 9}}] * 4},
            "window_length",
        ),
    ],
)
def test_unknown_attention_is_refused_by_key(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        read(with_keys(**changes))


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_missing_key_is_named(key: str) -> None:
    config = dict(PLAIN)
    del config[key]
    with pytest.raises(ConfigError, match=f"config.json: key '{key}' is missing"):
        read(config)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_hidden_layers": "4"}, "'num_hidden_layers' is '4'"),
        ({"num_key_value_heads": True}, "'num_key_value_heads' is True"),
        ({"num_key_value_heads": 5}, "cannot share 5 KV heads"),
        ({"hidden_size": 1000}, "no multiple of 16 heads"),
        ({"layer_types": ["full_attention"]}, "1 entries for 4 layers"),
        ({"layer_types": "full_attention"}, "'layer_types' is 'full_attention'"),
        ({"block_configs": [3, 3, 3, 3]}, "a block is 3"),
        ({"kv_lora_rank": 512}, "'qk_rope_head_dim' is missing"),
        ({"torch_dtype": 16}, "'torch_dtype' is 16"),
        ({"linear_attn_config": [1]}, "'linear_attn_config' is"),
    ],
)
def test_wrong_value_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read(with_keys(**changes))


def test_layer_kinds_are_complete() -> None:
    assert {kind.value for kind in LayerKind} == {"full", "sliding", "chunked", "state", "none"}
