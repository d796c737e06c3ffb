"""Bytes per token, per request and on the wire from a geometry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.catalog.models import model_config, model_names
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import (
    KVGeometry,
    LayerKind,
    check_parallel,
    kv_bytes_per_token,
    kv_dtype_bytes,
    layers_on_pp_rank,
    request_bytes,
    wire_bytes_by_rank,
)
from kvfabric.kvcache.geometry_config import geometry_from_config


def geometry(name: str) -> KVGeometry:
    return geometry_from_config(model_config(name), where=name)


LLAMA = geometry("llama-3.1-70b")
names = st.sampled_from([geometry(name) for name in model_names()])


def test_ranks_divide_the_heads() -> None:
    assert kv_bytes_per_token(LLAMA, tp=4) == 327_680 // 4


def test_more_ranks_than_heads_keep_one_head_each() -> None:
    assert kv_bytes_per_token(LLAMA, tp=16) == 327_680 // 8


def test_latent_is_whole_on_every_rank() -> None:
    assert kv_bytes_per_token(geometry("deepseek-v3"), tp=8) == 70_272


def test_fp8_cache_is_half_as_large() -> None:
    assert kv_bytes_per_token(LLAMA, dtype_bytes=1) == 163_840


def test_sliding_layers_stop_at_their_window() -> None:
    gemma = geometry("gemma-2-9b")
    at_window, beyond = request_bytes(gemma, 4096), request_bytes(gemma, 8192)
    assert at_window == 4096 * (172_032 + 172_032)
    assert beyond - at_window == 4096 * 172_032


def test_chunked_layers_stop_at_their_chunk() -> None:
    scout = geometry("llama-4-scout")
    assert request_bytes(scout, 20_000) == 20_000 * 49_152 + 8_192 * 147_456


def test_state_layers_cost_the_same_at_any_length() -> None:
    # Qwen3-Next: convolution of 8,192 channels x 3 and a state of 32 x 128 x 128, two bytes each,
    # in 36 layers.
    state = 36 * (8_192 * 3 * 2 + 32 * 128 * 128 * 2)
    found = geometry("qwen3-next-80b-a3b")
    assert request_bytes(found, 0) == state
    assert request_bytes(found, 1_000) == state + 1_000 * 24_576


@pytest.mark.parametrize(
    ("num_layers", "pp", "sizes"),
    # vLLM: 61 layers on 4 ranks are 15, 15, 16, 15; 7 on 3 are 2, 3, 2.
    [(61, 4, [15, 15, 16, 15]), (61, 2, [31, 30]), (7, 3, [2, 3, 2]), (32, 4, [8, 8, 8, 8])],
)
def test_layers_left_over_avoid_the_last_rank(num_layers: int, pp: int, sizes: list[int]) -> None:
    ranks = [layers_on_pp_rank(num_layers, pp=pp, pp_rank=rank) for rank in range(pp)]
    assert [len(rank) for rank in ranks] == sizes
    assert [layer for rank in ranks for layer in rank] == list(range(num_layers))


def test_pipeline_ranks_send_their_own_layers() -> None:
    sent = wire_bytes_by_rank(LLAMA, 1_000, tp=2, pp=2)
    assert sent == (81_920_000,) * 4


def test_one_rank_sends_the_latent() -> None:
    sent = wire_bytes_by_rank(geometry("deepseek-v3"), 1_000, tp=4)
    assert sent == (70_272_000, 0, 0, 0)


def test_latent_is_spread_over_as_many_senders_as_asked() -> None:
    sent = wire_bytes_by_rank(geometry("deepseek-v3"), 1_001, tp=8, num_latent_senders=3)
    assert sum(sent) == 1_001 * 70_272
    assert max(sent) - min(sent[:3]) <= 1
    assert sent[3:] == (0,) * 5


@given(names, st.integers(0, 300_000), st.sampled_from([1, 2, 4]))
def test_pipeline_ranks_together_hold_the_request(found: KVGeometry, tokens: int, pp: int) -> None:
    ranks = [layers_on_pp_rank(found.num_layers, pp=pp, pp_rank=rank) for rank in range(pp)]
    split = sum(request_bytes(found, tokens, layers=layers) for layers in ranks)
    assert split == request_bytes(found, tokens)


@given(names, st.integers(0, 300_000), st.sampled_from([1, 2, 4, 8]))
def test_wire_carries_at_least_the_request(found: KVGeometry, tokens: int, tp: int) -> None:
    sent = wire_bytes_by_rank(found, tokens, tp=tp)
    assert sum(sent) >= request_bytes(found, tokens)


@given(names, st.integers(0, 300_000))
def test_one_rank_sends_exactly_the_request(found: KVGeometry, tokens: int) -> None:
    assert wire_bytes_by_rank(found, tokens) == (request_bytes(found, tokens),)


@given(names, st.integers(0, 200_000), st.integers(0, 1_000))
def test_longer_requests_never_take_less(found: KVGeometry, tokens: int, more: int) -> None:
    assert request_bytes(found, tokens + more) >= request_bytes(found, tokens)


@given(names)
def test_every_layer_is_in_one_group(found: KVGeometry) -> None:
    layers = sorted(layer for group in found.groups for layer in group.layers)
    assert layers == list(range(found.num_layers))
    assert found.num_layers_of(set(LayerKind)) == found.num_layers


@pytest.mark.parametrize(
    ("name", "tp", "problem"),
    [
        ("llama-3.1-8b", 3, "32 attention heads"),
        ("llama-4-scout", 5, "neither divides 8 KV heads"),
        ("gpt2", 5, "12 attention heads"),
        ("llama-3.1-8b", 0, "less than 1"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(name: str, tp: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_parallel(geometry(name), tp=tp)


def test_vocabulary_that_does_not_divide_is_refused() -> None:
    # vLLM 0.19 refuses Qwen3-14B on 5 GPUs: 40 heads divide, a vocabulary of 151,936 does not.
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "head_dim": 128,
        "vocab_size": 151936,
    }
    with pytest.raises(ConfigError, match="vocabulary of 151936"):
        check_parallel(geometry_from_config(config, where="qwen3-14b"), tp=5)


def test_refusal_names_the_sizes_that_work() -> None:
    with pytest.raises(ConfigError, match="Sizes that work: 1, 2, 4, 8, 16, 32"):
        check_parallel(LLAMA, tp=3)


def test_more_pipeline_ranks_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="pipeline size 13 with 12 layers"):
        check_parallel(geometry("gpt2"), tp=1, pp=13)


def test_cache_type_auto_is_the_models_own() -> None:
    assert kv_dtype_bytes("auto", LLAMA) == 2


def test_unknown_cache_type_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="nvfp4"):
        kv_dtype_bytes("nvfp4", LLAMA)
