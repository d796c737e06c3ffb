"""Who sends which bytes to whom when prefill and decode workers differ in tensor parallel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.app.models import load_geometry
from kvfabric.errors import ConfigError
from kvfabric.kvcache.geometry import (
    KVGeometry,
    LayerGroup,
    LayerKind,
    LayerLayout,
    request_bytes,
    wire_bytes_by_rank,
)
from kvfabric.kvcache.resharding import KvResharding, piece_bytes, share_before, share_of

ALL = 1 << 16
SIZES = (1, 2, 4, 8, 16)
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b")


def resharding(name: str, tp_src: int, tp_dst: int) -> KvResharding:
    return KvResharding(load_geometry(name), tp_src=tp_src, tp_dst=tp_dst)


def received(plan: KvResharding, num_tokens: int, tp_dst: int) -> list[int]:
    total = [0] * tp_dst
    for (_, dst), size in zip(plan.pairs, plan.pair_bytes(num_tokens), strict=True):
        total[dst] += size
    return total


def sent(plan: KvResharding, num_tokens: int, tp_src: int) -> list[int]:
    total = [0] * tp_src
    for (src, _), size in zip(plan.pairs, plan.pair_bytes(num_tokens), strict=True):
        total[src] += size
    return total


def test_copies_of_heads_double_the_bytes_on_the_wire() -> None:
    # Mooncake's SGLang benchmark, v1 (2026-07-15): Qwen3-235B-A22B BF16, 4 KV heads, TP8, a prompt
    # of 32,768 tokens: "transferring 12.62 GB of KV data", twice the 6.31 GB of one copy
    plan = resharding("qwen3-235b-a22b", 8, 8)
    total = sum(plan.pair_bytes(32_768))
    assert total == 32_768 * 94 * 8 * 2 * 128 * 2
    assert round(total / 1e9, 2) == 12.62
    assert sum(resharding("qwen3-235b-a22b", 8, 4).pair_bytes(32_768)) * 2 == total
    assert sum(resharding("qwen3-235b-a22b", 4, 8).pair_bytes(32_768)) == total


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("num_tokens", [0, 1, 127, 1001, 32_768])
def test_equal_sizes_send_rank_to_rank(name: str, tp: int, num_tokens: int) -> None:
    plan = resharding(name, tp, tp)
    assert plan.pairs == tuple((rank, rank) for rank in range(tp))
    assert plan.pair_bytes(num_tokens) == wire_bytes_by_rank(
        load_geometry(name), num_tokens, tp=tp, num_latent_senders=ALL
    )


def test_heads_are_divided_or_gathered() -> None:
    # 8 KV heads: each of 2 source ranks has 4, each of 4 destination ranks takes 2 of them
    assert resharding("llama-3.1-70b", 2, 4).pairs == ((0, 0), (0, 1), (1, 2), (1, 3))
    assert resharding("llama-3.1-70b", 4, 2).pairs == ((0, 0), (1, 0), (2, 1), (3, 1))
    head = 1000 * 80 * 2 * 128 * 2
    assert resharding("llama-3.1-70b", 2, 4).pair_bytes(1000) == (2 * head,) * 4
    assert resharding("llama-3.1-70b", 4, 2).pair_bytes(1000) == (2 * head,) * 4


def test_source_ranks_that_keep_one_head_share_its_sending() -> None:
    # 4 KV heads on 8 source ranks, two copies of each; 4 destination ranks need one head each
    plan = resharding("qwen3-235b-a22b", 8, 4)
    assert plan.pairs == tuple((rank, rank // 2) for rank in range(8))
    assert set(plan.pair_bytes(1000)) == {1000 * 94 * 2 * 128 * 2 // 2}


def test_latent_crosses_the_fabric_once_and_all_source_ranks_send_alike() -> None:
    # DeepSeek-V3: 61 x 576 x 2 = 70,272 bytes per token, whatever the number of copies
    for tp_src, tp_dst in ((8, 8), (4, 8), (8, 4), (16, 8)):
        plan = resharding("deepseek-v3", tp_src, tp_dst)
        each = sent(plan, 1001, tp_src)
        assert sum(each) == 1001 * 70_272
        assert max(each) - min(each) <= max(tp_dst // tp_src, 1)


def test_latent_can_be_sent_to_every_destination_rank() -> None:
    plan = KvResharding(load_geometry("deepseek-v3"), tp_src=4, tp_dst=8, copies_latent=True)
    assert received(plan, 1000, 8) == [1000 * 70_272] * 8
    assert sent(plan, 1000, 4) == [2 * 1000 * 70_272] * 4


@pytest.mark.parametrize(("tp_src", "tp_dst", "side"), [(3, 8, "source"), (8, 3, "destination")])
def test_size_that_does_not_divide_the_model_is_refused(
    tp_src: int, tp_dst: int, side: str
) -> None:
    with pytest.raises(ConfigError, match=f"size 3 of the {side} does not divide"):
        resharding("llama-3.1-70b", tp_src, tp_dst)


@st.composite
def geometries(draw: st.DrawFn) -> KVGeometry:
    """Draw models with full, windowed, latent and state layers; up to 16 ranks divide them."""
    layouts = [
        LayerLayout(
            kind=draw(st.sampled_from([LayerKind.FULL, LayerKind.SLIDING])),
            num_query_heads=16,
            num_kv_heads=draw(st.sampled_from(SIZES)),
            key_dim=draw(st.integers(1, 5)),
            value_dim=draw(st.integers(0, 5)),
            window_tokens=draw(st.sampled_from([0, 3, 50])),
            index_bytes=draw(st.integers(0, 3)),
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    if draw(st.booleans()):
        layouts.append(
            LayerLayout(
                kind=LayerKind.FULL,
                num_query_heads=16,
                num_kv_heads=1,
                key_dim=draw(st.integers(1, 9)),
                is_latent=True,
            )
        )
    if draw(st.booleans()):
        state_bytes = draw(st.integers(1, 40))
        layouts.append(
            LayerLayout(kind=LayerKind.STATE, num_query_heads=16, state_bytes=state_bytes)
        )
    groups = tuple(LayerGroup(layout, (2 * i, 2 * i + 1)) for i, layout in enumerate(layouts))
    return KVGeometry(
        model_type="drawn",
        num_layers=2 * len(groups),
        hidden_size=16,
        num_attention_heads=16,
        vocab_size=None,
        max_context_tokens=None,
        groups=groups,
        dtype_bytes=draw(st.sampled_from([1, 2])),
    )


sizes = st.sampled_from(SIZES)
tokens = st.integers(0, 200)


@given(geometries(), sizes, sizes, tokens)
def test_every_destination_rank_receives_exactly_its_shard(
    geometry: KVGeometry, tp_src: int, tp_dst: int, num_tokens: int
) -> None:
    """With copies each rank gets what it keeps; without, the latent arrives once in all."""
    shard = request_bytes(geometry, num_tokens, tp=tp_dst)
    copied = KvResharding(geometry, tp_src=tp_src, tp_dst=tp_dst, copies_latent=True)
    assert received(copied, num_tokens, tp_dst) == [shard] * tp_dst
    once = KvResharding(geometry, tp_src=tp_src, tp_dst=tp_dst)
    assert tuple(received(once, num_tokens, tp_dst)) == wire_bytes_by_rank(
        geometry, num_tokens, tp=tp_dst, num_latent_senders=ALL
    )


@given(sizes, sizes, sizes, tokens)
def test_source_rank_sends_only_heads_it_keeps(
    num_heads: int, tp_src: int, tp_dst: int, num_tokens: int
) -> None:
    """Rank r keeps heads [r x H / tp, (r + 1) x H / tp), or head r x H // tp if those are fewer."""
    layout = LayerLayout(
        kind=LayerKind.FULL, num_query_heads=16, num_kv_heads=num_heads, key_dim=1, value_dim=1
    )
    geometry = KVGeometry(
        model_type="drawn",
        num_layers=1,
        hidden_size=16,
        num_attention_heads=16,
        vocab_size=None,
        max_context_tokens=None,
        groups=(LayerGroup(layout, (0,)),),
    )

    def kept(rank: int, tp: int) -> set[int]:
        first = rank * num_heads // tp
        return set(range(first, first + max(num_heads // tp, 1)))

    plan = KvResharding(geometry, tp_src=tp_src, tp_dst=tp_dst)
    head_bytes = num_tokens * 2 * geometry.dtype_bytes
    for (src, dst), size in zip(plan.pairs, plan.pair_bytes(num_tokens), strict=True):
        shared = kept(src, tp_src) & kept(dst, tp_dst)
        assert shared
        assert size <= len(shared) * head_bytes
    loads = sent(plan, num_tokens, tp_src)
    assert max(loads) - min(loads) <= max(tp_dst // tp_src, 1)


@given(geometries(), sizes, sizes, st.lists(tokens, min_size=1, max_size=6), st.integers(1, 7))
def test_pieces_sum_to_the_whole_prompt_pair_by_pair(
    geometry: KVGeometry, tp_src: int, tp_dst: int, chunks: list[int], num_groups: int
) -> None:
    plan = KvResharding(geometry, tp_src=tp_src, tp_dst=tp_dst)
    whole = plan.pair_bytes(sum(chunks))
    total = [0] * len(whole)
    before, end = (0,) * len(whole), 0
    for chunk in chunks:
        end += chunk
        after = plan.pair_bytes(end)
        for group in range(num_groups):
            piece = piece_bytes(before, after, group, num_groups)
            assert min(piece) >= 0
            total = [a + b for a, b in zip(total, piece, strict=True)]
        before = after
    assert tuple(total) == whole


@given(st.integers(0, 1000), st.integers(1, 9))
def test_shares_are_even_and_sum_to_the_whole(num_bytes: int, num_shares: int) -> None:
    shares = [share_of(num_bytes, i, num_shares) for i in range(num_shares)]
    assert sum(shares) == num_bytes
    assert max(shares) - min(shares) <= 1
    assert [share_before(num_bytes, i, num_shares) for i in range(num_shares + 1)] == [
        sum(shares[:i]) for i in range(num_shares + 1)
    ]
