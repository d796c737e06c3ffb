"""Reference counts and the LRU queue of free blocks, case by case."""

import pytest

from kvfabric.errors import CapacityError
from kvfabric.kvcache.block_pool import BlockPool


def take(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.allocate(count)
    assert blocks is not None
    return blocks


def test_pool_of_one_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="1 blocks"):
        BlockPool(1)


def test_block_zero_is_never_handed_out() -> None:
    assert 0 not in take(BlockPool(9), 8)


def test_fresh_pool_has_all_blocks_but_the_null_block_free() -> None:
    pool = BlockPool(9)
    assert (pool.num_usable, pool.num_free, pool.num_used) == (8, 8, 0)


def test_allocate_hands_out_every_block_once() -> None:
    pool = BlockPool(9)
    assert sorted(take(pool, 3) + take(pool, 5)) == list(range(1, 9))


def test_allocate_too_many_changes_nothing() -> None:
    pool = BlockPool(9)
    pool.release(take(pool, 4))
    assert pool.allocate(9) is None
    assert pool.num_free == 8
    pool.check_invariants()


def test_allocate_of_nothing_takes_nothing() -> None:
    pool = BlockPool(2)
    assert pool.allocate(0) == []
    assert pool.num_free == 1


def test_blocks_never_used_go_before_freed_ones() -> None:
    pool = BlockPool(5)
    pool.release(take(pool, 2))
    assert take(pool, 2) == [3, 4]


def test_blocks_freed_longest_ago_go_first() -> None:
    pool = BlockPool(5)
    blocks = take(pool, 4)
    pool.release(blocks[2:])
    pool.release(blocks[:2])
    assert take(pool, 4) == blocks[2:] + blocks[:2]


def test_blocks_of_one_release_go_in_its_order() -> None:
    pool = BlockPool(5)
    take(pool, 4)
    pool.release([3, 1, 4, 2])
    assert take(pool, 4) == [3, 1, 4, 2]


def test_release_returns_how_many_became_free() -> None:
    pool = BlockPool(5)
    blocks = take(pool, 3)
    pool.share(blocks[:1])
    assert pool.release(blocks) == 2
    assert pool.num_free == 3


def test_shared_block_is_freed_by_its_last_holder() -> None:
    pool = BlockPool(3)
    (block,) = take(pool, 1)
    pool.share([block])
    pool.release([block])
    assert not pool.is_free(block)
    pool.release([block])
    assert pool.is_free(block)


def test_hit_of_a_free_block_takes_it_out_of_the_queue() -> None:
    pool = BlockPool(5)
    blocks = take(pool, 4)
    pool.release(blocks)
    pool.share(blocks[:1])
    assert take(pool, 3) == blocks[1:]
    pool.check_invariants()


def test_block_in_use_is_never_evicted() -> None:
    # https://github.com/vllm-project/vllm/pull/29906: what a request holds stays its own
    pool = BlockPool(5)
    held = take(pool, 2)
    pool.release(take(pool, 2))
    assert set(take(pool, 2)).isdisjoint(held)
    assert pool.allocate(1) is None


def test_hit_freed_again_counts_as_freed_now() -> None:
    pool = BlockPool(5)
    blocks = take(pool, 4)
    pool.release(blocks)
    pool.share(blocks[:1])
    pool.release(blocks[:1])
    assert take(pool, 4) == blocks[1:] + blocks[:1]


def test_evicted_block_loses_its_prefix() -> None:
    # https://github.com/ovg-project/kvcached/issues/362
    pool = BlockPool(2)
    (block,) = take(pool, 1)
    pool.prefix_cache.put([11], [block])
    pool.release([block])
    assert take(pool, 1) == [block]
    assert pool.prefix_cache.get(11) is None
    pool.prefix_cache.put([22], [block])
    assert pool.prefix_cache.get(22) == block


def test_pool_full_of_cached_blocks_evicts_and_succeeds() -> None:
    # https://github.com/Avarok-Cybersecurity/atlas/pull/1114
    pool = BlockPool(5)
    blocks = take(pool, 4)
    pool.prefix_cache.put([1, 2, 3, 4], blocks)
    pool.release(blocks)
    assert take(pool, 4) == blocks


def test_block_released_twice_at_once_is_refused() -> None:
    # https://github.com/ai-dynamo/dynamo/pull/13398: free([b, b]) must not free two blocks
    pool = BlockPool(5)
    (block,) = take(pool, 1)
    pool.share([block])
    with pytest.raises(AssertionError):
        pool.release([block, block])
    assert pool.num_free == 3


def test_block_released_more_often_than_held_is_refused() -> None:
    pool = BlockPool(5)
    blocks = take(pool, 1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="more often than held"):
        pool.release(blocks)
    pool.check_invariants()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [([6, 6], "twice at once"), ([1, 6, 7, 4], "more often than held"), ([6, 0], "more often")],
)
def test_refused_release_changes_nothing(wrong: list[int], message: str) -> None:
    # check, then act: also with a queue that has entries of a block that was hit since
    pool = BlockPool(9)
    blocks = take(pool, 8)
    pool.release(blocks[:5])
    pool.share(blocks[:1])
    with pytest.raises(AssertionError, match=message):
        pool.release(wrong)
    pool.check_invariants()
    assert (pool.num_used, pool.release([1, 6, 7, 8])) == (4, 4)


def test_count_free_counts_blocks_nobody_holds() -> None:
    pool = BlockPool(6)
    blocks = take(pool, 3)
    pool.release(blocks[:1])
    assert pool.count_free([*blocks, 5]) == 2


def test_two_thousand_requests_leave_no_block_behind() -> None:
    # https://github.com/kekzl/imp/issues/1115: one block per request was lost
    pool = BlockPool(40)
    for request in range(2000):
        shared = take(pool, 1 + request % 7)
        pool.share(shared[:2])
        pool.release(reversed(shared))
        pool.release(shared[:2])
    assert (pool.num_used, pool.num_free) == (0, 39)
    pool.check_invariants()


def test_hits_and_releases_without_end_keep_the_queue_bounded_and_right() -> None:
    pool = BlockPool(9)
    blocks = take(pool, 8)
    pool.release(blocks)
    for _ in range(500):  # every hit leaves an outdated entry in the queue
        pool.share(blocks[:4])
        pool.release(blocks[:4])
        pool.check_invariants()
    assert take(pool, 8) == blocks[4:] + blocks[:4]
