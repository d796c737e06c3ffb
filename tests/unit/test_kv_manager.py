"""Block tables: admission, growth, hits, release."""

import pytest

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.kvcache.manager import KVManager

SIZE = 4


def manager_of(num_usable: int) -> KVManager:
    return KVManager(num_usable + 1, SIZE)


def keys_of(request_id: int, *hashes: int) -> BlockKeys:
    return BlockKeys(request_id, hashes, 1, len(hashes))


def caching(num_usable: int, *hashes: int) -> KVManager:
    """Return a manager whose free blocks hold one prompt of whole blocks."""
    manager = manager_of(num_usable)
    manager.admit(0, [], len(hashes) * SIZE)
    manager.remember(0, keys_of(0, *hashes), 0, len(hashes) * SIZE)
    manager.release(0)
    return manager


def test_blocks_for_rounds_up() -> None:
    manager = manager_of(8)
    assert [manager.blocks_for(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_admit_gives_a_table_of_whole_blocks() -> None:
    manager = manager_of(8)
    assert manager.admit(1, [], 9)
    assert len(manager.tables[1]) == 3
    assert manager.num_free == 5


def test_admit_without_room_changes_nothing() -> None:
    manager = caching(4, 11, 12)
    hits = manager.find_prefix(keys_of(1, 11, 12), 40)
    assert not manager.admit(1, hits, 40)
    assert manager.num_free == 4
    assert manager.tables == {}
    manager.check_invariants()


def test_second_table_of_a_request_is_refused() -> None:
    manager = manager_of(8)
    manager.admit(1, [], 4)
    with pytest.raises(AssertionError, match="has a table already"):
        manager.admit(1, [], 4)


def test_hits_are_shared_between_tables() -> None:
    manager = manager_of(8)
    manager.admit(1, [], 12)
    manager.remember(1, keys_of(1, 11, 12, 13), 0, 12)
    hits = manager.find_prefix(keys_of(2, 11, 12, 13), 13)
    assert manager.admit(2, hits, 13)
    assert manager.tables[2][:3] == manager.tables[1]
    assert manager.num_free == 4
    manager.check_invariants()


def test_shared_block_stays_held_until_both_tables_are_gone() -> None:
    manager = manager_of(8)
    manager.admit(1, [], 8)
    manager.remember(1, keys_of(1, 11, 12), 0, 8)
    manager.admit(2, manager.find_prefix(keys_of(2, 11, 12), 9), 9)
    assert manager.release(1) == 0
    assert manager.release(2) == 3


def test_hit_of_free_blocks_counts_them_as_needed() -> None:
    # two cached free blocks and nothing else: three blocks of tokens do not fit into two
    manager = caching(2, 11, 12)
    hits = manager.find_prefix(keys_of(1, 11, 12), 9)
    assert len(hits) == 2
    assert not manager.fits(9, hits)
    assert not manager.admit(1, hits, 9)


def test_hit_blocks_are_not_evicted_by_the_admission_that_hits_them() -> None:
    manager = caching(3, 11, 12)
    hits = manager.find_prefix(keys_of(1, 11, 12), 12)
    assert manager.admit(1, hits, 12)
    assert manager.tables[1][:2] == hits
    assert len(set(manager.tables[1])) == 3
    assert manager.pool.prefix_cache.get(11) == hits[0]


def test_grow_appends_to_the_table() -> None:
    manager = manager_of(8)
    manager.admit(1, [], 5)
    before = list(manager.tables[1])
    assert manager.grow(1, 13)
    assert manager.tables[1][:2] == before
    assert len(manager.tables[1]) == 4


def test_grow_within_the_last_block_takes_nothing() -> None:
    manager = manager_of(8)
    manager.admit(1, [], 5)
    assert manager.grow(1, 8)
    assert manager.num_free == 6


def test_grow_without_room_changes_nothing() -> None:
    manager = manager_of(3)
    manager.admit(1, [], 8)
    before = list(manager.tables[1])
    assert not manager.grow(1, 20)
    assert manager.tables[1] == before
    assert manager.num_free == 1


def test_only_full_blocks_are_remembered() -> None:
    manager = manager_of(8)
    manager.admit(1, [], 7)
    manager.remember(1, keys_of(1, 11, 12), 0, 7)
    assert len(manager.find_prefix(keys_of(2, 11, 12), 9)) == 1


def test_tail_of_a_released_request_is_evicted_before_its_head() -> None:
    manager = caching(4, 11, 12, 13, 14)
    manager.admit(1, [], 2 * SIZE)  # takes the two blocks freed first
    assert len(manager.find_prefix(keys_of(2, 11, 12, 13, 14), 17)) == 2
