"""Hit rates of memory tiers on the Mooncake traces.

Every hash id is one block of 512 tokens, only prefixes hit, and the blocks of a request are touched
from last to first. Source of the rates: an independent count over the same traces (Mooncake FAST'25
release; conversation: 12,031 requests, 288,500 block references; synthetic: 3,993 and 121,877).

Two laws extend the one-tier rates to several tiers (Mattson et al. 1970, LRU as a stack): tiers
that each see every touch hit together what the largest hits alone, and tiers between which blocks
move hit together what one tier of their summed capacity hits.
"""

import json
import lzma
from functools import cache

import pytest
from reference import reference_path

from kvfabric.kvcache.tier_lru import LruKeys
from kvfabric.kvcache.tiers import STORAGE, PrefixPool, TierSpec, WritePolicy
from kvfabric.plan.validation.prefix_cache import CONVERSATION

SYNTHETIC = {1_000: 8.41, 10_000: 42.39, 30_000: 62.42, 50_000: 63.96, 100_000: 63.96}


@cache
def _prompts(trace: str) -> list[list[int]]:
    path = reference_path(f"traces/mooncake/{trace}_trace.jsonl.xz")
    with lzma.open(path, "rt") as lines:
        return [json.loads(line)["hash_ids"] for line in lines]


def _tier(num_blocks: int) -> TierSpec:
    return TierSpec(capacity_blocks=num_blocks, read_bps=1)


def _percent(hits: int, prompts: list[list[int]]) -> float:
    return round(100 * hits / sum(map(len, prompts)), 2)


@pytest.mark.parametrize(
    ("trace", "num_blocks", "hit_percent"),
    [("conversation", size, rate) for size, rate in CONVERSATION.items()]
    + [("synthetic", size, rate) for size, rate in SYNTHETIC.items()],
)
def test_one_tier_hits_as_counted(trace: str, num_blocks: int, hit_percent: float) -> None:
    tier, hits = LruKeys(num_blocks), 0
    for keys in _prompts(trace):
        hits += tier.match(keys)
        tier.put(keys)
    tier.check_invariants()
    assert _percent(hits, _prompts(trace)) == hit_percent


def _replay(
    hbm_blocks: int, host: TierSpec, storage: TierSpec | None, policy: WritePolicy
) -> tuple[float, int]:
    """Return the hit rate of one server's tiers in percent, and the blocks held in the end."""
    prompts = _prompts("conversation")
    pool, hbm, hits = PrefixPool(1, host, storage, policy=policy), LruKeys(hbm_blocks), 0
    for keys in prompts:
        end = hbm.match(keys)
        while True:  # a run may go from tier to tier and back
            in_host = pool.match(0, keys, end)
            pool.read(0, 0, keys[end:in_host])
            in_storage = pool.match(STORAGE, keys, in_host)
            pool.read(0, STORAGE, keys[in_host:in_storage])
            in_hbm = hbm.match(keys, in_storage)
            if in_hbm == end:
                break
            end = in_hbm
        hits += end
        _, dropped = hbm.put(keys)
        pool.computed(0, keys)
        pool.evicted(0, dropped)
    pool.check_invariants()
    return _percent(hits, prompts), len(hbm) + pool.num_held(0) + pool.num_held(STORAGE)


@pytest.mark.parametrize("hbm_blocks", [300, 1_000])
def test_tiers_written_through_hit_what_the_largest_hits(hbm_blocks: int) -> None:
    percent, _ = _replay(hbm_blocks, _tier(10_000), None, WritePolicy.THROUGH)
    assert percent == CONVERSATION[10_000]
    percent, _ = _replay(hbm_blocks, _tier(10_000), _tier(50_000), WritePolicy.THROUGH)
    assert percent == CONVERSATION[50_000]


def test_tiers_between_which_blocks_move_hit_what_their_sum_hits() -> None:
    percent, held = _replay(1_000, _tier(9_000), None, WritePolicy.MOVE)
    assert (percent, held) == (CONVERSATION[10_000], 10_000)
    percent, held = _replay(10_000, _tier(20_000), _tier(20_000), WritePolicy.MOVE)
    assert (percent, held) == (CONVERSATION[50_000], 50_000)


def test_copies_that_stay_below_cost_capacity() -> None:
    percent, _ = _replay(5_000, _tier(25_000), None, WritePolicy.ON_EVICTION)
    assert CONVERSATION[10_000] < percent < CONVERSATION[30_000]
