"""Memory tiers and the directory against naive models: capacity, LRU order, exact sources."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.kvcache.tier_lru import LruKeys
from kvfabric.kvcache.tiers import STORAGE, PrefixPool, TierChange, TierSpec, WritePolicy
from kvfabric.serving.kv_directory import KvDirectory, set_bits

NUM_OPERATIONS = 4_000


class NaiveLru:
    """The rules of a tier, one key at a time: a list of keys, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[int] = []

    def put(self, keys: list[int]) -> None:
        for key in reversed(keys[: self.capacity]):
            self.keys = [k for k in self.keys if k != key] + [key]
        self.keys = self.keys[-self.capacity :]


def _prompt(rng: random.Random) -> list[int]:
    """Return keys whose prefixes repeat: a path in a tree of three children per node."""
    node, keys = 0, []
    for _ in range(rng.randint(1, 12)):
        node = 3 * node + rng.randint(1, 3)
        keys.append(node)
    return keys


@pytest.mark.parametrize("seed", range(3))
def test_lru_keys_equal_naive_list(seed: int) -> None:
    rng = random.Random(seed)
    tier, naive = LruKeys(rng.randint(1, 40)), NaiveLru(0)
    naive.capacity = tier.capacity
    order: list[int] = []
    for _ in range(NUM_OPERATIONS):
        keys, held = _prompt(rng), set(naive.keys)
        match rng.randrange(4):
            case 0 | 1:
                added, dropped = tier.put(keys)
                naive.put(keys)
                assert set(added) == set(naive.keys) - held
                assert set(dropped) == held - set(naive.keys)
                assert dropped == sorted(dropped, key=order.index)
            case 2:
                tier.touch(keys)
                naive.put([key for key in keys if key in held])
            case 3:
                assert tier.remove(keys[:2]) == [key for key in keys[:2] if key in held]
                naive.keys = [key for key in naive.keys if key not in keys[:2]]
        tier.check_invariants()
        order = tier.oldest_first()
        assert order == naive.keys
        assert len(tier) <= tier.capacity


def test_run_longer_than_tier_keeps_its_front() -> None:
    tier = LruKeys(3)
    assert tier.put([1, 2, 3, 4, 5]) == ([1, 2, 3], [])
    assert tier.match([1, 2, 3, 4, 5]) == 3
    assert tier.put([6, 7]) == ([6, 7], [3, 2])  # tails go first


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 5))
def test_repeated_keys_are_held_once(keys: list[int], capacity: int) -> None:
    tier = LruKeys(capacity)
    added, dropped = tier.put(keys)
    assert len(tier) == len(added) == min(capacity, len(set(keys)))
    assert not dropped


class Cluster:
    """Random life of a pool with HBM as a third tier; mirrors every change it is told of."""

    def __init__(self, seed: int, policy: WritePolicy, *, with_storage: bool) -> None:
        self.rng = random.Random(seed)
        self.policy = policy
        self.num_servers = 3
        sizes = [self.rng.randint(2, 30) for _ in range(3)]
        host, storage = (TierSpec(capacity_blocks=size, read_bps=1) for size in sizes[1:])
        self.capacity = {STORAGE: sizes[2], **dict.fromkeys(range(3), sizes[1])}
        self.pool = PrefixPool(3, host, storage if with_storage else None, policy=policy)
        self.hbm = [LruKeys(sizes[0]) for _ in range(3)]
        self.held: dict[int, set[int]] = {place: set() for place in (STORAGE, 0, 1, 2)}
        self.directory = KvDirectory([0, 1, 2], 3)

    def step(self) -> None:
        server, keys = self.rng.randrange(3), _prompt(self.rng)
        if self.rng.random() < 0.01:
            return self.take(self.pool.lose_server(server))
        end = self.hbm[server].match(keys)
        source = self.rng.choice([STORAGE, 0, 1, 2])
        run_end = self.pool.match(source, keys, end)
        self.take(self.pool.read(server, source, keys[end:run_end]))
        added, dropped = self.hbm[server].put(keys)
        self.directory.on_hbm_change(server, added, dropped, 0)
        self.take(self.pool.computed(server, keys))
        self.take(self.pool.evicted(server, dropped))
        return None

    def take(self, changes: list[TierChange]) -> None:
        for change in changes:
            self.directory.on_tier_change(change, 0)
            held = self.held[change.server]
            assert held.isdisjoint(change.added)
            held.update(change.added)
            assert held.issuperset(change.removed)
            held.difference_update(change.removed)

    def check(self) -> None:
        self.pool.check_invariants()
        for place, held in self.held.items():
            assert len(held) == self.pool.num_held(place) <= self.capacity[place]
            assert all(self.pool.match(place, [key]) for key in held)


@pytest.mark.parametrize("with_storage", [True, False])
@pytest.mark.parametrize("policy", list(WritePolicy))
def test_changes_tell_exactly_what_tiers_hold(policy: WritePolicy, *, with_storage: bool) -> None:
    cluster = Cluster(1, policy, with_storage=with_storage)
    for _ in range(NUM_OPERATIONS // 2):
        cluster.step()
        cluster.check()
        if policy is WritePolicy.MOVE:  # a block is in HBM or in host memory, never in both
            for server in range(3):
                in_hbm = set(cluster.hbm[server].oldest_first())
                assert in_hbm.isdisjoint(cluster.held[server])


def _run(keys: Sequence[int], start: int, held: set[int]) -> int:
    end = start
    while end < len(keys) and keys[end] in held:
        end += 1
    return end


@pytest.mark.parametrize("policy", list(WritePolicy))
def test_directory_names_the_sources_that_a_search_finds(policy: WritePolicy) -> None:
    cluster = Cluster(2, policy, with_storage=True)
    for _ in range(NUM_OPERATIONS // 4):
        cluster.step()
        keys = _prompt(cluster.rng)
        groups = cluster.directory.best_sources(keys, 0)
        assert sorted(w for g in groups for w in set_bits(g.workers)) == [0, 1, 2]
        for group in groups:
            for worker in set_bits(group.workers):
                in_hbm = set(cluster.hbm[worker].oldest_first())
                local = _run(keys, 0, in_hbm | cluster.held[worker])
                ends = {s: _run(keys, local, cluster.held[s]) for s in range(3)}
                best = max(ends.values())
                assert group.num_hbm == _run(keys, 0, in_hbm)
                assert group.num_local == local
                assert group.num_remote == best
                assert group.num_storage == _run(keys, local, cluster.held[STORAGE])
                servers = [s for s, end in ends.items() if end == best > local]
                assert list(set_bits(group.remote_servers)) == servers
    held = set().union(*cluster.held.values(), *(tier.oldest_first() for tier in cluster.hbm))
    assert cluster.directory.num_keys == len(held)
