"""What the directory of KV blocks says, and when."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tiers import STORAGE, TierChange
from kvfabric.serving.kv_directory import KvDirectory, PrefixSources


def test_empty_directory_knows_nothing() -> None:
    assert KvDirectory([0, 1], 2).best_sources([1, 2], 0) == [PrefixSources(0b11)]
    assert KvDirectory([0, 1], 2).best_sources([], 0) == [PrefixSources(0b11)]


def test_change_is_seen_after_the_lag_and_in_order() -> None:
    directory = KvDirectory([0], 1, lag_ns=100)
    directory.on_hbm_change(0, [1, 2], [], 5)
    directory.on_hbm_change(0, [], [2], 50)
    assert directory.best_sources([1, 2], 104)[0].num_hbm == 0
    assert directory.best_sources([1, 2], 105)[0].num_hbm == 2
    assert directory.best_sources([1, 2], 150)[0].num_hbm == 1


def test_run_goes_on_from_hbm_into_host_memory_and_another_server() -> None:
    directory = KvDirectory([0, 1], 2)
    directory.on_hbm_change(0, [1], [], 0)
    directory.on_tier_change(TierChange(0, [2], []), 0)
    directory.on_tier_change(TierChange(1, [3], []), 0)
    directory.on_tier_change(TierChange(STORAGE, [3, 4], []), 0)
    worker_0 = next(g for g in directory.best_sources([1, 2, 3, 4], 0) if g.workers & 1)
    assert worker_0 == PrefixSources(0b01, 1, 2, 3, 4, 0b10)


def test_workers_of_one_server_share_its_host_memory() -> None:
    directory = KvDirectory([0, 0, 1], 2)
    directory.on_tier_change(TierChange(0, [7, 8], []), 0)
    first, second = directory.best_sources([7, 8], 0)
    assert (first.workers, first.num_local, first.remote_servers) == (0b100, 0, 0b01)
    assert (second.workers, second.num_local, second.remote_servers) == (0b011, 2, 0)


def test_holder_forgotten_by_one_stays_with_the_other() -> None:
    directory = KvDirectory([0, 1], 2)
    directory.on_hbm_change(0, [7], [], 0)
    directory.on_hbm_change(1, [7], [], 0)
    directory.on_hbm_change(0, [], [7], 0)
    groups = directory.best_sources([7], 0)
    assert [(group.workers, group.num_hbm) for group in groups] == [(0b01, 0), (0b10, 1)]
    directory.on_hbm_change(1, [], [7], 0)
    assert directory.num_keys == 0


def test_server_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="servers from 0 to 1"):
        KvDirectory([0, 2], 2)
