"""Tiers of the prefix pool: sizes, times, policies and what may be put there."""

import pytest

from kvfabric.errors import CapacityError, ConfigError
from kvfabric.kvcache.tier_lru import LruKeys
from kvfabric.kvcache.tiers import (
    STORAGE,
    PrefixPool,
    TierChange,
    TierSpec,
    WritePolicy,
)

ONE = TierSpec(capacity_blocks=2, read_bps=8)


def test_tier_of_bytes_holds_whole_blocks() -> None:
    # 1 TB of host memory, Llama-3-70B: 327,680 bytes per token, 512 tokens per block.
    tier = TierSpec.of_bytes(10**12, 512 * 327_680, read_bps=8)
    assert tier.capacity_blocks == 5_960


def test_lone_read_takes_bytes_over_rate() -> None:
    assert ONE.read_ns(3) == 3 * 10**9


@pytest.mark.parametrize(("blocks", "rate"), [(0, 1), (1, 0)])
def test_tier_without_room_or_rate_is_refused(blocks: int, rate: int) -> None:
    with pytest.raises(ConfigError, match="memory tier"):
        TierSpec(capacity_blocks=blocks, read_bps=rate)


def test_tier_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory tier of 0 blocks"):
        TierSpec.of_bytes(10, 11, read_bps=1)
    with pytest.raises(ConfigError, match="KV block of 0 bytes"):
        TierSpec.of_bytes(10, 0, read_bps=1)
    with pytest.raises(CapacityError, match="holds no prefix"):
        LruKeys(0)


def test_write_through_reaches_every_tier_at_once() -> None:
    pool = PrefixPool(2, ONE, ONE)
    assert pool.computed(1, [5, 6]) == [
        TierChange(1, [5, 6], []),
        TierChange(STORAGE, [5, 6], []),
    ]
    assert pool.computed(1, [5, 6]) == []  # nothing is written twice
    assert pool.evicted(1, [6, 5]) == []
    assert [pool.match(place, [5, 6, 7]) for place in (0, 1, STORAGE)] == [0, 2, 2]


def test_eviction_cascades_from_hbm_to_host_to_storage() -> None:
    pool = PrefixPool(1, ONE, ONE, policy=WritePolicy.ON_EVICTION)
    assert pool.computed(0, [5, 6]) == []
    assert pool.evicted(0, [6, 5]) == [TierChange(0, [5, 6], [])]
    assert pool.evicted(0, [7]) == [TierChange(0, [7], [6]), TierChange(STORAGE, [6], [])]
    assert pool.read(0, STORAGE, [6]) == []
    assert pool.num_held(STORAGE) == 1


def test_moving_block_leaves_its_tier_for_its_own_server_only() -> None:
    pool = PrefixPool(2, ONE, policy=WritePolicy.MOVE)
    pool.evicted(0, [6, 5])
    assert pool.read(1, 0, [5]) == []
    assert pool.read(0, 0, [5]) == [TierChange(0, (), [5])]
    assert pool.computed(0, [5, 6]) == [TierChange(0, (), [6])]
    assert pool.num_held(0) == 0


def test_pool_without_storage_has_nothing_there() -> None:
    pool = PrefixPool(1, ONE)
    pool.computed(0, [1])
    assert pool.match(STORAGE, [1]) == pool.num_held(STORAGE) == 0
    assert pool.read(0, STORAGE, [1]) == []


def test_lost_server_forgets_all() -> None:
    pool = PrefixPool(1, ONE)
    pool.computed(0, [1, 2])
    assert pool.lose_server(0) == [TierChange(0, (), [2, 1])]
    assert pool.lose_server(0) == []
    assert pool.match(0, [1]) == 0
