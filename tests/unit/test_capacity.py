"""Block pools from memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.catalog.models import model_config, model_names
from kvfabric.errors import CapacityError, ConfigError, UnsupportedError
from kvfabric.kvcache.capacity import (
    KVCapacity,
    Reserves,
    default_reserves,
    kv_capacity,
    kv_memory,
)
from kvfabric.kvcache.geometry import KVGeometry, LayerGroup, LayerKind, LayerLayout
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import GIB


def geometry(name: str) -> KVGeometry:
    return geometry_from_config(model_config(name), where=name)


LLAMA = geometry("llama-3.1-8b")
LLAMA_BLOCK_BYTES = 131_072 * 16
names = st.sampled_from([geometry(name) for name in model_names()])


def llama_pool(kv_bytes: int, *, max_model_len: int = 8192) -> KVCapacity:
    return kv_capacity(LLAMA, kv_bytes, max_model_len=max_model_len)


def test_blocks_are_whole() -> None:
    assert llama_pool(10 * LLAMA_BLOCK_BYTES + LLAMA_BLOCK_BYTES - 1).num_blocks == 10


def test_null_block_is_not_for_requests() -> None:
    # A pool of 12,116 MiB of Qwen3-4B has 5,385 blocks and 5,384 that requests can have.
    assert llama_pool(10 * LLAMA_BLOCK_BYTES).num_usable_blocks == 9


def test_requests_round_up_to_blocks() -> None:
    pool = llama_pool(11 * LLAMA_BLOCK_BYTES)
    assert pool.blocks_of(17) == 2
    assert pool.requests_of(17) == 5


def test_memory_below_one_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="no room for a KV block"):
        llama_pool(LLAMA_BLOCK_BYTES - 1)


def test_negative_memory_is_refused() -> None:
    with pytest.raises(CapacityError, match="there are 0"):
        llama_pool(-5)


@pytest.mark.parametrize("name", ["block_size", "max_model_len", "max_num_batched_tokens"])
def test_sizes_below_one_are_refused(name: str) -> None:
    sizes = {"block_size": 16, "max_model_len": 1, "max_num_batched_tokens": 1} | {name: 0}
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        kv_capacity(LLAMA, GIB, **sizes)


def test_pipeline_rank_with_least_room_binds() -> None:
    roomy = kv_capacity(LLAMA, [GIB, GIB], pp=2, max_model_len=8192)
    tight = kv_capacity(LLAMA, [GIB, GIB // 2], pp=2, max_model_len=8192)
    assert roomy.num_blocks == 2 * tight.num_blocks == GIB // (LLAMA_BLOCK_BYTES // 2)


def test_nearly_equal_kinds_are_padded_to_the_larger() -> None:
    # 11 sliding and 10 full layers make two tables of 11, not 10 with one layer left over.
    full = LayerLayout(
        kind=LayerKind.FULL, num_query_heads=8, num_kv_heads=8, key_dim=64, value_dim=64
    )
    sliding = LayerLayout(
        kind=LayerKind.SLIDING,
        num_query_heads=8,
        num_kv_heads=8,
        key_dim=64,
        value_dim=64,
        window_tokens=128,
    )
    found = KVGeometry(
        model_type="mixed",
        num_layers=21,
        hidden_size=512,
        num_attention_heads=8,
        vocab_size=None,
        max_context_tokens=None,
        groups=(
            LayerGroup(full, tuple(range(1, 21, 2))),
            LayerGroup(sliding, tuple(range(0, 21, 2))),
        ),
    )
    pool = kv_capacity(found, GIB, max_model_len=1024)
    assert sorted(len(group.layers) for group in pool.groups) == [10, 11]


def test_scarcest_kind_sets_the_table_size() -> None:
    # gemma-3-27b: 10 full and 52 sliding layers are 1 + 6 tables (vLLM 0.19 log, 8 padded layers).
    config = dict(model_config("gemma-3-12b")) | {"num_hidden_layers": 62}
    found = geometry_from_config(config, where="gemma")
    pool = kv_capacity(found, GIB, max_model_len=1024)
    assert len(pool.groups) == 7
    assert max(len(group.layers) for group in pool.groups) <= 10


def test_layers_that_cannot_share_pages_are_refused() -> None:
    config = dict(model_config("mimo-v2-flash")) | {"swa_head_dim": 100}
    found = geometry_from_config(config, where="mimo")
    with pytest.raises(UnsupportedError, match="cannot share pages"):
        kv_capacity(found, GIB, max_model_len=1024)


def test_model_without_attention_is_refused() -> None:
    config = dict(model_config("nemotron-h-56b")) | {"hybrid_override_pattern": "M" * 118}
    with pytest.raises(UnsupportedError, match="no attention layers"):
        kv_capacity(geometry_from_config(config, where="m"), GIB, max_model_len=1024)


def test_state_takes_one_block_per_request_and_table() -> None:
    pool = kv_capacity(geometry("qwen3-next-80b-a3b"), 8 * GIB, max_model_len=8192)
    assert pool.blocks_of(544) == 1 + 3
    assert pool.blocks_of(5_440) == 10 + 3


def test_index_is_part_of_the_page() -> None:
    plain = kv_capacity(geometry("deepseek-v3"), 8 * GIB, max_model_len=8192)
    indexed = kv_capacity(geometry("deepseek-v3.2"), 8 * GIB, max_model_len=8192)
    assert indexed.page_bytes - plain.page_bytes == 16 * 132


@given(names, st.integers(1, 200), st.integers(1, 100_000), st.sampled_from([1, 2, 4, 8]))
def test_blocks_never_exceed_memory(found: KVGeometry, gib: int, length: int, tp: int) -> None:
    pool = kv_capacity(found, gib * GIB, tp=tp, max_model_len=length)
    assert pool.num_blocks * pool.block_bytes <= gib * GIB
    assert (pool.num_blocks + 1) * pool.block_bytes > gib * GIB


@given(names, st.integers(1, 100), st.integers(1, 50_000))
def test_more_memory_never_gives_fewer_blocks(found: KVGeometry, gib: int, length: int) -> None:
    less = kv_capacity(found, gib * GIB, max_model_len=length)
    more = kv_capacity(found, (gib + 1) * GIB, max_model_len=length)
    assert more.num_blocks >= less.num_blocks
    assert more.requests_of(length) >= less.requests_of(length)


@given(names, st.integers(1, 60_000), st.integers(0, 5_000))
def test_longer_requests_never_take_fewer_blocks(found: KVGeometry, length: int, more: int) -> None:
    pool = kv_capacity(found, 64 * GIB, max_model_len=length)
    assert pool.blocks_of(length + more) >= pool.blocks_of(length)


@given(names)
def test_every_caching_layer_is_in_one_table(found: KVGeometry) -> None:
    pool = kv_capacity(found, 64 * GIB, max_model_len=1024)
    layers = sorted(layer for group in pool.groups for layer in group.layers)
    kept = [g.layers for g in found.groups if g.layout.kind is not LayerKind.NONE]
    assert layers == sorted(layer for group in kept for layer in group)


RESERVES = Reserves(
    activation_bytes=10, non_torch_bytes=5, source=Source(SourceKind.ASSUMED, "test")
)


def test_memory_for_kv_is_what_is_left() -> None:
    left = kv_memory(
        visible_bytes=1000, gpu_memory_utilization=0.5, weight_bytes=400, reserves=RESERVES
    )
    assert left == 85


def test_memory_for_kv_says_by_how_much_it_fails() -> None:
    left = kv_memory(
        visible_bytes=1000, gpu_memory_utilization=0.5, weight_bytes=600, reserves=RESERVES
    )
    assert left == -115


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_share_of_memory_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="gpu_memory_utilization"):
        kv_memory(visible_bytes=1, gpu_memory_utilization=share, weight_bytes=0, reserves=RESERVES)


@pytest.mark.parametrize(
    ("vocab_size", "gib"),
    # Peak activations of vLLM 0.19.0 (llm-d-planner pull request 205): CodeLlama, granite,
    # Llama 3.1, Qwen3, gpt-oss, gemma 2 and gemma 3.
    [
        (32016, 0.77),
        (49155, 0.85),
        (128256, 1.89),
        (151936, 2.21),
        (201088, 2.87),
        (256000, 3.65),
        (262208, 3.99),
    ],
)
def test_activation_reserve_follows_the_vocabulary(vocab_size: int, gib: float) -> None:
    config = dict(model_config("llama-3.1-8b")) | {"vocab_size": vocab_size}
    reserves = default_reserves(geometry_from_config(config, where="llama"))
    assert reserves.activation_bytes / GIB == pytest.approx(gib, abs=0.5)


@pytest.mark.parametrize(
    ("tp", "pp", "gib"), [(1, 1, 0.25), (4, 1, 2.13), (1, 2, 0.07), (2, 2, 2.13)]
)
def test_other_reserve_follows_the_split(tp: int, pp: int, gib: float) -> None:
    reserves = default_reserves(LLAMA, tp=tp, pp=pp)
    assert reserves.non_torch_bytes / GIB == pytest.approx(gib, abs=0.001)


def test_unknown_vocabulary_gets_the_mean_reserve() -> None:
    config = dict(model_config("llama-3.1-8b")) | {"vocab_size": None}
    reserves = default_reserves(geometry_from_config(config, where="llama"))
    assert 1.5 < reserves.activation_bytes / GIB < 2.5
