"""Flows of a context-parallel prefill against the closed forms, exactly.

Source of the closed forms, per layer and GPU with N ranks and S tokens of b bytes per element:
ring or all-gather of KV (N-1)/N S 2 Hkv dh b; ring of Q (N-1)/N S Hq dh b, then the partial outputs
of the same size; Ulysses (N-1)/N (S/N) (2 Hq + 2 Hkv) dh b (arXiv 2411.01783, arXiv 2309.14509).
"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.catalog.models import model_config
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.kvcache.geometry import LayerKind, LayerLayout
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.perf.context_parallel import (
    AttentionHeads,
    CpExchange,
    CpRound,
    attention_heads,
    layer_rounds,
    split_tokens,
    step_traffic,
)

LLAMA_70B = geometry_from_config(model_config("llama-3.1-70b"), where="test")
LAYER = LLAMA_70B.groups[0].layout
HEADS = replace(attention_heads(LAYER), lse_bytes=0)
HQ, HKV, DH, B = 64, 8, 128, 2


def _sent(rounds: tuple[CpRound, ...]) -> Counter[int]:
    sent: Counter[int] = Counter()
    for one in rounds:
        for flow in one.flows:
            sent[flow.src_gpu] += flow.num_bytes
    return sent


def _received(rounds: tuple[CpRound, ...]) -> Counter[int]:
    received: Counter[int] = Counter()
    for one in rounds:
        for flow in one.flows:
            received[flow.dst_gpu] += flow.num_bytes
    return received


def _closed_form(exchange: CpExchange, n: int, new: int, cached: int) -> int:
    """Return bytes per GPU; S and P are multiples of N."""
    match exchange:
        case CpExchange.ALL_GATHER_KV | CpExchange.RING_KV:
            return (n - 1) * (new + cached) * 2 * HKV * DH * B // n
        case CpExchange.RING_Q:
            return 2 * ((n - 1) * new * HQ * DH * B // n)
        case CpExchange.ULYSSES:
            return (n - 1) * new * (2 * HQ + 2 * HKV) * DH * B // n // n


@pytest.mark.parametrize("cached", [0, 65_536])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("exchange", list(CpExchange))
def test_every_rank_sends_and_receives_the_closed_form(
    exchange: CpExchange, num_ranks: int, cached: int
) -> None:
    rounds = layer_rounds(exchange, HEADS, num_ranks=num_ranks, num_new=8_192, num_cached=cached)
    expected = _closed_form(exchange, num_ranks, 8_192, cached)
    ranks = range(num_ranks)
    assert [_sent(rounds)[rank] for rank in ranks] == [expected] * num_ranks
    assert [_received(rounds)[rank] for rank in ranks] == [expected] * num_ranks


def test_ring_of_70b_over_four_ranks_in_figures() -> None:
    # 3/4 x 32,768 tokens x 4,096 bytes per token and layer; 80 layers: 8.05 GB per rank.
    rounds = layer_rounds(CpExchange.RING_KV, HEADS, num_ranks=4, num_new=32_768)
    assert [len(one.flows) for one in rounds] == [4, 4, 4]
    assert _sent(rounds)[0] * 80 == 8_053_063_680


@given(
    exchange=st.sampled_from(list(CpExchange)),
    num_ranks=st.sampled_from([1, 2, 4, 8, 16]),
    num_new=st.integers(0, 200),
    num_cached=st.integers(0, 200),
)
def test_flows_carry_every_shard_once_to_every_other_rank(
    exchange: CpExchange, num_ranks: int, num_new: int, num_cached: int
) -> None:
    rounds = layer_rounds(
        exchange, HEADS, num_ranks=num_ranks, num_new=num_new, num_cached=num_cached
    )
    flows = [flow for one in rounds for flow in one.flows]
    assert all(flow.src_gpu != flow.dst_gpu and flow.num_bytes > 0 for flow in flows)
    others = num_ranks - 1
    per_token = {
        CpExchange.RING_Q: HEADS.token_query_bytes + HEADS.token_partial_bytes,
        CpExchange.ULYSSES: (HQ // num_ranks) * 2 * DH * B + max(1, HKV // num_ranks) * 2 * DH * B,
    }
    whole = (num_new + num_cached) * HEADS.token_kv_bytes
    if exchange in per_token:
        whole = num_new * per_token[exchange]
    assert sum(flow.num_bytes for flow in flows) == others * whole


def test_uneven_shards_keep_their_size_round_the_ring() -> None:
    one_byte = AttentionHeads(
        num_query_heads=1, num_kv_heads=1, query_bytes=1, kv_bytes=1, output_bytes=1, lse_bytes=0
    )
    assert split_tokens(7, 3) == [3, 2, 2]
    first, second = layer_rounds(CpExchange.RING_KV, one_byte, num_ranks=3, num_new=7)
    assert [(f.src_gpu, f.dst_gpu, f.num_bytes) for f in first.flows] == [
        (0, 1, 3),
        (1, 2, 2),
        (2, 0, 2),
    ]
    assert [f.num_bytes for f in second.flows] == [2, 3, 2]  # rank 1 now passes on shard 0


def test_only_rings_overlap_with_attention() -> None:
    overlapped = {
        exchange: [
            one.is_overlapped for one in layer_rounds(exchange, HEADS, num_ranks=4, num_new=64)
        ]
        for exchange in CpExchange
    }
    assert overlapped == {
        CpExchange.ALL_GATHER_KV: [False],
        CpExchange.RING_KV: [True, True, True],
        CpExchange.RING_Q: [True, True, True, False],
        CpExchange.ULYSSES: [False, False],
    }


def test_partial_outputs_carry_their_log_sum_exp() -> None:
    heads = attention_heads(LAYER)
    assert heads.token_partial_bytes == 64 * (128 * 2 + 4)


def test_latent_passes_as_one_head() -> None:
    geometry = geometry_from_config(model_config("deepseek-v3"), where="test")
    heads = attention_heads(geometry.groups[0].layout, tp=8)
    assert heads.token_kv_bytes == 576 * 2
    # 16 of 128 heads query the latent of 576 elements each: KV is far smaller.
    assert heads.token_query_bytes == 16 * 576 * 2


def test_tensor_parallel_gpus_share_the_heads() -> None:
    heads = attention_heads(LAYER, tp=8)
    assert (heads.num_query_heads, heads.token_kv_bytes) == (8, 2 * 128 * 2)
    assert attention_heads(LAYER, tp=16).token_kv_bytes == 2 * 128 * 2  # one whole head


def test_all_to_all_repeats_kv_heads_on_more_ranks_than_heads() -> None:
    rounds = layer_rounds(CpExchange.ULYSSES, HEADS, num_ranks=16, num_new=1_600)
    # 100 tokens to each of 15: 4 query heads and one KV head, then 4 output heads back.
    assert _sent(rounds)[0] == 15 * 100 * (4 * 256 + 2 * 256 + 4 * 256)


@pytest.mark.parametrize("num_ranks", [3, 24, 128])
def test_all_to_all_over_ranks_that_do_not_divide_heads_is_refused(num_ranks: int) -> None:
    with pytest.raises(ConfigError, match=f"all-to-all over {num_ranks} ranks"):
        layer_rounds(CpExchange.ULYSSES, HEADS, num_ranks=num_ranks, num_new=1_000)


def test_impossible_counts_and_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 context-parallel ranks"):
        layer_rounds(CpExchange.RING_KV, HEADS, num_ranks=0, num_new=1)
    with pytest.raises(UnsupportedError, match="state layer"):
        attention_heads(LayerLayout(kind=LayerKind.STATE, state_bytes=8))


# ---- steps -------------------------------------------------------------------------------------

TWO_SERVERS = (tuple(range(8)), tuple(range(8, 16)))


def test_step_exchanges_between_equal_ranks_of_both_servers() -> None:
    traffic = step_traffic(CpExchange.RING_KV, LLAMA_70B, TWO_SERVERS, [(8_192, 0)])
    assert traffic.exposed == ()
    pairs = {(flow.src_gpu, flow.dst_gpu) for flow in traffic.overlapped}
    assert pairs == {(i, i + 8) for i in range(8)} | {(i + 8, i) for i in range(8)}
    # Half of 8,192 tokens x 512 bytes of one head x 80 layers from every GPU.
    assert {flow.num_bytes for flow in traffic.overlapped} == {4_096 * 512 * 80}


def test_step_sums_chunks_layers_and_rounds() -> None:
    four = tuple((gpu,) for gpu in range(4))
    chunks = [(1_000, 0), (64, 5_000)]
    traffic = step_traffic(CpExchange.RING_Q, LLAMA_70B, four, chunks)
    heads = attention_heads(LAYER)
    assert len(traffic.overlapped) == 4
    assert len(traffic.exposed) == 12
    assert sum(flow.num_bytes for flow in traffic.overlapped) == (
        3 * 1_064 * heads.token_query_bytes * 80
    )
    assert sum(flow.num_bytes for flow in traffic.exposed) == (
        3 * 1_064 * heads.token_partial_bytes * 80
    )


def test_sliding_layers_pass_on_no_more_history_than_their_window() -> None:
    geometry = geometry_from_config(model_config("gemma-3-12b"), where="test")
    pair = ((0,), (1,))
    short, long = (
        sum(
            flow.num_bytes
            for flow in step_traffic(
                CpExchange.ALL_GATHER_KV, geometry, pair, [(1_024, history)]
            ).exposed
        )
        for history in (10_000, 20_000)
    )
    # 65,536 bytes per token in the full layers; the sliding ones keep 1,024 tokens either way.
    assert long - short == 10_000 * 65_536


def test_lone_rank_exchanges_nothing() -> None:
    traffic = step_traffic(CpExchange.ULYSSES, LLAMA_70B, TWO_SERVERS[:1], [(8_192, 0)])
    assert traffic.overlapped == traffic.exposed == ()
