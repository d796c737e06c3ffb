"""Work of a step before hardware: pairs, experts, and what a geometry asks of one rank."""

import pytest

from kvfabric.catalog.models import model_config
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.perf.work import (
    AttentionWork,
    ExpertWork,
    ModelWork,
    causal_pairs,
    expert_bytes_by_tokens,
    expert_shares,
    tokens_attended,
    work_from_geometry,
)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 8, 100])
@pytest.mark.parametrize(("num_tokens", "num_history"), [(0, 4), (1, 0), (1, 7), (6, 0), (6, 4)])
def test_causal_pairs_equals_count_per_query(
    num_tokens: int, num_history: int, window: int | None
) -> None:
    most = 1_000 if window is None else window
    queries = range(num_history, num_history + num_tokens)
    assert causal_pairs(num_tokens, num_history, window) == sum(min(p + 1, most) for p in queries)


def test_tokens_attended_is_whole_context_without_window() -> None:
    assert tokens_attended(6, 10, None) == 16


def test_tokens_attended_is_window_before_first_query() -> None:
    # Queries 10..15 with a window of 4 see tokens 7..15.
    assert tokens_attended(6, 10, 4) == 9


def test_expert_share_of_one_token_is_active_share() -> None:
    assert expert_shares(128, 8)[1] == (1 << 64) * 8 // 128


def test_expert_share_of_two_tokens_counts_overlap_once() -> None:
    # 1 - (1 - 1/4)^2 = 7/16.
    assert expert_shares(4, 1)[2] == (1 << 64) * 7 // 16


def test_expert_share_ends_at_all_experts() -> None:
    assert expert_shares(384, 8)[-1] == 1 << 64


def experts_of(*, num_experts: int, num_active: int, weight_bytes: int) -> ExpertWork:
    return ExpertWork(
        num_experts=num_experts,
        num_active=num_active,
        num_layers=1,
        weight_bytes=weight_bytes,
        matmul_flops_per_token=0,
        row_bytes_per_token=0,
    )


def test_expert_bytes_of_no_tokens_are_zero() -> None:
    experts = experts_of(num_experts=8, num_active=2, weight_bytes=1_000)
    assert expert_bytes_by_tokens(experts)[0] == 0


def test_expert_bytes_are_all_when_all_are_active() -> None:
    experts = experts_of(num_experts=8, num_active=8, weight_bytes=1_000)
    assert expert_bytes_by_tokens(experts)[1] == 1_000


@pytest.mark.parametrize("num_active", [0, 9])
def test_expert_shares_refuse_impossible_routing(num_active: int) -> None:
    with pytest.raises(ConfigError, match=f"{num_active} active of 8 experts"):
        expert_shares(8, num_active)


def small_work(*, tp: int = 1, window: int | None = None) -> ModelWork:
    return ModelWork(
        tp=tp,
        pp=1,
        num_layers=2,
        matmul_flops_per_token=100,
        head_flops_per_request=10,
        dense_weight_bytes=1_000,
        experts=None,
        attention=(
            AttentionWork(
                prefill_flops_per_pair=4,
                decode_flops_per_pair=4,
                kv_bytes_per_token=8,
                window=window,
            ),
        ),
        state_bytes_per_request=0,
        activation_bytes_per_token=0,
        all_reduce_bytes_per_token=0,
        num_all_reduces=0,
        is_fp8_matmul=False,
    )


def test_work_refuses_zero_ranks() -> None:
    with pytest.raises(ConfigError, match="tp 0"):
        small_work(tp=0)


def test_work_refuses_empty_window() -> None:
    with pytest.raises(ConfigError, match="window"):
        small_work(window=0)


def work_of(
    model: str, *, tp: int = 1, weights: str | None = None, kv_dtype_bytes: int | None = None
) -> ModelWork:
    geometry = geometry_from_config(model_config(model), where=model)
    return work_from_geometry(geometry, tp=tp, weights=weights, kv_dtype_bytes=kv_dtype_bytes)


# Llama-3.1-70B: 80 layers of 855,638,016 weights in products and 2 x 8,192 in norms, a head of
# 128,256 x 8,192 and a norm before it (config.json of the model).
LLAMA_70B_WEIGHTS = 80 * (855_638_016 + 2 * 8_192)
LLAMA_70B_HEAD = 128_256 * 8_192


def test_work_of_dense_model_counts_two_operations_per_weight() -> None:
    assert work_of("llama-3.1-70b").matmul_flops_per_token == 2 * LLAMA_70B_WEIGHTS


def test_work_is_shared_among_ranks() -> None:
    assert work_of("llama-3.1-70b", tp=8).matmul_flops_per_token == 2 * LLAMA_70B_WEIGHTS // 8


def test_head_is_counted_apart() -> None:
    assert work_of("llama-3.1-70b").head_flops_per_request == 2 * LLAMA_70B_HEAD


def test_step_reads_all_weights_but_the_embedding() -> None:
    weights = LLAMA_70B_WEIGHTS + LLAMA_70B_HEAD + 8_192
    assert work_of("llama-3.1-70b").dense_weight_bytes == 2 * weights


def test_tied_head_is_read() -> None:
    # Qwen3-0.6B: 596,049,920 weights with the embedding, which is the head too.
    assert work_of("qwen3-0.6b").dense_weight_bytes == 2 * 596_049_920


def test_8_bit_weights_halve_the_layers_and_not_the_head() -> None:
    work = work_of("llama-3.1-70b", weights="fp8")
    assert work.dense_weight_bytes == LLAMA_70B_WEIGHTS + 2 * (LLAMA_70B_HEAD + 8_192)
    assert work.is_fp8_matmul


def test_attention_counts_scores_and_values_of_all_heads() -> None:
    # 80 layers x 64 heads x 2 x (128 + 128); cache 80 x 8 heads x 2 x 128 x 2 bytes.
    (part,) = work_of("llama-3.1-70b").attention
    assert (part.prefill_flops_per_pair, part.kv_bytes_per_token) == (2_621_440, 327_680)


def test_8_bit_cache_halves_the_reads() -> None:
    (part,) = work_of("llama-3.1-70b", kv_dtype_bytes=1).attention
    assert part.kv_bytes_per_token == 163_840


def test_ranks_beyond_kv_heads_read_one_head_each() -> None:
    (part,) = work_of("llama-3.1-70b", tp=16).attention
    assert part.kv_bytes_per_token == 80 * 2 * 128 * 2


def test_all_reduces_are_two_per_layer() -> None:
    work = work_of("llama-3.1-70b", tp=8)
    assert (work.num_all_reduces, work.all_reduce_bytes_per_token) == (160, 16_384)


def test_one_rank_has_no_all_reduce() -> None:
    assert work_of("llama-3.1-70b").num_all_reduces == 0


def test_windowed_layers_are_kept_apart() -> None:
    # gemma-3-12b: 48 layers, every sixth full, window 1,024.
    windows = {part.window: part.kv_bytes_per_token for part in work_of("gemma-3-12b").attention}
    assert windows == {1_024: 40 * 8_192, None: 8 * 8_192}


def test_latent_is_read_whole_by_every_rank() -> None:
    # DeepSeek-V3: 61 layers x (512 + 64) x 2 bytes.
    (part,) = work_of("deepseek-v3", tp=8).attention
    assert part.kv_bytes_per_token == 70_272


def test_latent_decode_computes_on_the_latent() -> None:
    # 61 layers x 128 heads: prefill 2 x (192 + 128), decode 2 x 2 x 576.
    (part,) = work_of("deepseek-v3").attention
    assert part.prefill_flops_per_pair == 61 * 128 * 2 * (192 + 128)
    assert part.decode_flops_per_pair == 61 * 128 * 2 * 2 * 576


def test_ranks_compute_the_down_projections_of_latent_attention_whole() -> None:
    # DeepSeek-V3: per layer q_a and kv_a (7,168 x 2,112 and two norms) on every rank; q_b 1,536 x
    # 128 x 192, kv_b 512 x 128 x 256 and o 128 x 128 x 7,168 cut in 8.
    shared = 7_168 * 2_112 + 2_048
    by_head = 128 * (1_536 * 192 + 512 * 256 + 128 * 7_168)
    work, whole = work_of("deepseek-v3", tp=8), work_of("deepseek-v3")
    assert work.num_latent_layers == 61
    assert work.latent_flops_per_token == 2 * 61 * (shared + by_head // 8)
    assert whole.latent_flops_per_token == 2 * 61 * (shared + by_head)
    others = whole.matmul_flops_per_token - whole.latent_flops_per_token
    assert work.matmul_flops_per_token - work.latent_flops_per_token == others // 8


def test_sparse_attention_picks_latents_for_padded_heads_and_reads_its_whole_index() -> None:
    # GLM-5: 78 layers; 8 of 64 heads per rank, computed as 64 on latents of 576; index of 32 heads
    # of 128, 132 bytes a token, of which 2,048 tokens are picked.
    picked, index = work_of("glm-5", tp=8).attention
    assert picked.window == 2_048
    assert picked.prefill_flops_per_pair == picked.decode_flops_per_pair
    assert picked.prefill_flops_per_pair == 78 * 2 * 64 * 2 * 576
    assert picked.kv_bytes_per_token == 78 * 576 * 2
    assert index.window is None
    assert index.prefill_flops_per_pair == index.decode_flops_per_pair == 78 * 2 * 32 * 128
    assert index.kv_bytes_per_token == 78 * 132
    assert work_of("glm-5", tp=8).num_index_layers == 78


@pytest.mark.parametrize(("tp", "num_heads"), [(1, 128), (2, 64), (8, 64)])
def test_sparse_attention_computes_64_heads_at_once(tp: int, num_heads: int) -> None:
    picked, _ = work_of("deepseek-v3.2", tp=tp).attention
    assert picked.decode_flops_per_pair == 61 * 2 * num_heads * 2 * 576


def test_experts_are_counted_apart_from_the_rest() -> None:
    # Mixtral-8x7B: 32 layers x 8 experts x 3 x 4,096 x 14,336 weights of 2 bytes, cut in 2. Each of
    # a token's 2 experts gathers a row of 4,096, writes one that is read again, and moves 6 x
    # 14,336 / 2 between its products; then their sum is written.
    assert work_of("mixtral-8x7b", tp=2).experts == ExpertWork(
        num_experts=8,
        num_active=2,
        num_layers=32,
        weight_bytes=32 * 8 * 3 * 4_096 * 14_336,
        matmul_flops_per_token=32 * 2 * 3 * 4_096 * 14_336,
        row_bytes_per_token=2 * 32 * (2 * (3 * 4_096 + 6 * 14_336 // 2) + 4_096),
    )


def test_experts_count_only_layers_that_have_them() -> None:
    # DeepSeek-V3: 61 layers, the first 3 dense; 8 of 256 experts of 3 x 7,168 x 2,048 in 8 bits.
    experts = work_of("deepseek-v3", tp=8).experts
    assert experts is not None
    assert experts.num_layers == 58
    assert experts.weight_bytes == 58 * 256 * 3 * 7_168 * 2_048 // 8
    assert experts.matmul_flops_per_token == 2 * 58 * 8 * 3 * 7_168 * 2_048 // 8


def test_activations_do_not_count_the_rows_of_experts() -> None:
    # Mixtral-8x7B: 8 rows of 4,096 per layer; between them queries, keys, values and output
    # (4,096 + 2 x 1,024 + 4,096), the router (8) and two norms (2).
    between = 4_096 + 2 * 1_024 + 4_096 + 8 + 2
    work = work_of("mixtral-8x7b")
    assert work.activation_bytes_per_token == 2 * 32 * (8 * 4_096 + between)


def test_expert_weights_beyond_the_active_take_no_operations() -> None:
    # 12.88e9 active parameters, less the embedding and the head of 32,000 x 4,096 each.
    work = work_of("mixtral-8x7b")
    assert work.experts is not None
    flops = work.matmul_flops_per_token + work.experts.matmul_flops_per_token
    assert flops / 2 == pytest.approx(12.88e9 - 2 * 32_000 * 4_096, rel=0.001)


def test_recurrent_state_is_read_and_written() -> None:
    # 36 linear layers: 32 heads of 128 x 128, and 3 inputs of a convolution over 8,192 channels.
    state_bytes = 36 * (32 * 128 * 128 + 3 * 8_192) * 2
    assert work_of("qwen3-next-80b-a3b").state_bytes_per_request == 2 * state_bytes


def test_work_refuses_ranks_that_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="tensor-parallel size 3"):
        work_of("llama-3.1-70b", tp=3)


def test_work_refuses_uncounted_families() -> None:
    with pytest.raises(UnsupportedError, match="gemma4_text"):
        work_of("gemma-4-26b-a4b")
