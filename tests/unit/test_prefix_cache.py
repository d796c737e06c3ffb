"""The map from prefixes to blocks, and what counts as a hit."""

import pytest

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.kvcache.manager import KVManager
from kvfabric.kvcache.prefix_cache import PrefixCache


def keys_of(*hashes: int, request_id: int = 1) -> BlockKeys:
    return BlockKeys(request_id, hashes, 1, len(hashes))


def caching(num_blocks: int, block_size: int, keys: BlockKeys, num_tokens: int) -> KVManager:
    """Return a manager that has computed and given back one request."""
    manager = KVManager(num_blocks, block_size)
    manager.admit(0, [], num_tokens)
    manager.remember(0, keys, 0, num_tokens)
    manager.release(0)
    return manager


def test_unknown_key_is_not_found() -> None:
    assert PrefixCache().get(1) is None


def test_key_finds_the_block_it_was_put_with() -> None:
    cache = PrefixCache()
    cache.put([7, 8], [1, 2])
    assert (cache.get(7), cache.get(8)) == (1, 2)


def test_first_block_under_a_key_stays() -> None:
    cache = PrefixCache()
    cache.put([7], [1])
    cache.put([7], [2])
    assert cache.get(7) == 1
    cache.check_invariants()


def test_block_keeps_its_first_key() -> None:
    cache = PrefixCache()
    cache.put([7], [1])
    cache.put([8], [1])
    assert cache.get(8) is None
    cache.check_invariants()


def test_forgotten_block_is_not_found() -> None:
    cache = PrefixCache()
    cache.put([7, 8], [1, 2])
    cache.forget([1])
    assert (cache.get(7), cache.get(8)) == (None, 2)
    cache.check_invariants()


def test_forgetting_a_block_without_key_is_harmless() -> None:
    cache = PrefixCache()
    cache.put([7], [1])
    cache.forget([2])
    assert cache.get(7) == 1


def test_different_numbers_of_keys_and_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="2 keys for 1 blocks"):
        PrefixCache().put([7, 8], [1])


def test_prefix_shorter_than_a_block_cannot_hit() -> None:
    # https://github.com/vllm-project/vllm/issues/54607: 240 shared tokens, blocks of 784
    manager = caching(4, 784, keys_of(5), 240)
    assert manager.find_prefix(keys_of(5), 2000) == []


@pytest.mark.parametrize(("block_size", "hit_tokens"), [(544, 3264), (576, 2880)])
def test_hit_is_the_whole_blocks_of_the_shared_prefix(block_size: int, hit_tokens: int) -> None:
    # https://github.com/vllm-project/vllm/pull/57467: a prefix of 3,274 tokens
    num_shared = 3274 // block_size
    shared = tuple(range(num_shared))
    manager = caching(20, block_size, keys_of(*shared), 3274)
    other = keys_of(*shared, 99, request_id=2)
    assert len(manager.find_prefix(other, 5000)) * block_size == hit_tokens


def test_fully_cached_prompt_leaves_its_last_block_to_compute() -> None:
    # https://github.com/vllm-project/vllm/pull/11186: k full blocks, all cached
    manager = caching(10, 16, keys_of(1, 2, 3), 48)
    assert len(manager.find_prefix(keys_of(1, 2, 3, request_id=2), 48)) == 2
    assert len(manager.find_prefix(keys_of(1, 2, 3, request_id=2), 49)) == 3


@pytest.mark.parametrize(("evicted", "num_hits"), [(1, 0), (2, 1), (3, 2)])
def test_hit_stops_at_the_first_hole(evicted: int, num_hits: int) -> None:
    # https://github.com/llm-d/llm-d-inference-sim/pull/701: 1, 2, 3 cached, then 1 evicted
    manager = caching(10, 16, keys_of(1, 2, 3), 48)
    block = manager.pool.prefix_cache.get(evicted)
    assert block is not None
    manager.pool.prefix_cache.forget([block])
    assert len(manager.find_prefix(keys_of(1, 2, 3, request_id=2), 64)) == num_hits


def test_same_block_after_another_prefix_is_no_hit() -> None:
    # https://github.com/vllm-project/aibrix/issues/2329: keys are chained, so h1 h9 != h2 h9;
    # trace ids stand for a block and everything before it, so the second id differs too
    manager = caching(10, 16, keys_of(1, 19), 32)
    assert manager.find_prefix(keys_of(2, 29, request_id=2), 64) == []


def test_request_without_hashes_reuses_nothing_of_others() -> None:
    manager = caching(10, 16, BlockKeys(1, (), 1, 0), 48)
    assert manager.find_prefix(BlockKeys(2, (), 1, 0), 48) == []


def test_disabled_cache_neither_remembers_nor_finds() -> None:
    manager = KVManager(10, 16, enable_prefix_caching=False)
    manager.admit(0, [], 48)
    manager.remember(0, keys_of(1, 2, 3), 0, 48)
    assert manager.pool.prefix_cache.get(1) is None
    assert manager.find_prefix(keys_of(1, 2, 3), 48) == []
