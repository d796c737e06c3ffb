"""Weights on the ranks of a worker, and counts of the rarer layer mixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.catalog.models import model_config, model_names
from kvfabric.errors import UnsupportedError
from kvfabric.kvcache.geometry import layers_on_pp_rank
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.kvcache.parameters import (
    WEIGHT_FORMATS,
    ParameterCount,
    WeightFormat,
    rank_weight_bytes,
    replicated_bytes,
    weight_bytes,
    weight_format,
)
from kvfabric.units import GIB


def counted(name: str, **changes: object) -> ParameterCount:
    config = dict(model_config(name)) | changes
    found = geometry_from_config(config, where=name).parameters
    assert found is not None
    return found


BF16 = weight_format("bf16")
COUNTED = [
    name
    for name in model_names()
    if geometry_from_config(model_config(name), where=name).parameters is not None
]


@pytest.mark.parametrize(("pp", "gib"), [(2, 7.51), (4, 4.26)])
def test_heaviest_pipeline_rank_matches_a_loaded_model(pp: int, gib: float) -> None:
    # Llama-3.1-8B, first rank, vLLM 0.19.0 (llm-d-planner pull request 205).
    first = layers_on_pp_rank(32, pp=pp, pp_rank=0)
    loaded = rank_weight_bytes(counted("llama-3.1-8b"), BF16, tp=1, layers=first)
    assert loaded / GIB == pytest.approx(gib, rel=0.01)


def test_last_rank_needs_a_copy_of_a_tied_embedding() -> None:
    found = counted("qwen3-0.6b")
    first, last = (
        rank_weight_bytes(found, BF16, tp=1, layers=layers) for layers in (range(14), range(14, 28))
    )
    assert first + last == weight_bytes(found, BF16) + 2 * found.embedding


def test_untied_ranks_together_hold_all_weights_once() -> None:
    found = counted("llama-3.1-8b")
    ranks = [
        rank_weight_bytes(found, BF16, tp=1, layers=layers) for layers in (range(16), range(16, 32))
    ]
    assert sum(ranks) == weight_bytes(found, BF16) == 2 * found.total


@given(
    st.sampled_from([counted(name) for name in COUNTED]),
    st.sampled_from(list(WEIGHT_FORMATS.values())),
    st.sampled_from([1, 2, 4, 8]),
)
def test_ranks_hold_all_weights_once_and_what_heads_share_each(
    found: ParameterCount, form: WeightFormat, tp: int
) -> None:
    layers = range(len(found.layers))
    rank = rank_weight_bytes(found, form, tp=tp, layers=layers)
    copies = (tp - 1) * replicated_bytes(found, form, layers=layers)
    assert 0 <= rank * tp - copies - weight_bytes(found, form) < tp


def test_ranks_hold_the_down_projections_of_latent_attention_whole() -> None:
    # DeepSeek-V3 has kv_a 7,168 x 576, q_a 7,168 x 1,536 and their norms: `ReplicatedLinear` in
    # vLLM; each in 8 bits, 61 layers.
    found, fp8 = counted("deepseek-v3"), weight_format("fp8")
    shared = 61 * (7_168 * (512 + 64 + 1_536) + 512 + 1_536)
    assert replicated_bytes(found, fp8, layers=range(61)) == shared
    assert counted("llama-3.1-8b").layers[0].replicated == 0


def test_ranks_hold_the_index_of_sparse_attention_whole() -> None:
    # DeepSeek-V3.2 adds 64 heads of 128 from the query's 1,536, one key of 128 with a norm, and 64
    # weights.
    plain, sparse = counted("deepseek-v3").layers[0], counted("deepseek-v3.2").layers[0]
    index = 1_536 * 64 * 128 + 7_168 * (128 + 64) + 2 * 128
    assert sparse.replicated - plain.replicated == sparse.latent - plain.latent == index


def test_four_bit_experts_leave_the_rest_in_two_bytes() -> None:
    # The gpt-oss-120b model card: a checkpoint of 60.8 GiB.
    found = counted("gpt-oss-120b")
    assert weight_bytes(found, weight_format("mxfp4")) / GIB == pytest.approx(60.8, rel=0.01)


def test_four_byte_weights_are_twice_two_byte_weights() -> None:
    found = counted("gpt2")
    assert weight_bytes(found, weight_format("fp32")) == 2 * weight_bytes(found, BF16)


def test_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="unknown weight format 'q5_k'"):
        weight_format("q5_k")


def test_layers_named_dense_have_no_experts() -> None:
    found = counted("qwen3-30b-a3b", mlp_only_layers=[0, 5])
    assert [index for index, layer in enumerate(found.layers) if not layer.experts] == [0, 5]


def test_blocks_without_feed_forward_have_none() -> None:
    blocks = [{"attention": {"no_op": True}, "ffn": {"ffn_mult": None, "no_op": True}}] * 80
    found = counted("nemotron-super-49b", block_configs=blocks)
    assert {layer.dense for layer in found.layers} == {2 * 8192}


def test_latent_queries_without_a_rank_are_projected_at_once() -> None:
    # As in DeepSeek-V2-Lite: one projection of the hidden state in place of two through a rank.
    plain = counted("deepseek-v3", q_lora_rank=None).layers[0].dense
    ranked = counted("deepseek-v3").layers[0].dense
    heads_width = 128 * (128 + 64)
    assert plain - ranked == 7168 * heads_width - 1536 * (7168 + heads_width + 1)


def test_active_counts_a_tied_embedding_as_the_head() -> None:
    found = counted("qwen3-0.6b")
    assert found.active == found.active_with_embedding == found.total


def test_active_leaves_out_an_untied_embedding() -> None:
    found = counted("llama-3.1-8b")
    assert found.total - found.active == found.embedding
