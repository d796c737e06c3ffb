"""Hit rates of one LRU prefix cache on the Mooncake conversation trace.

Every hash id is one block of 512 tokens, only prefixes hit, and the blocks of a request are touched
from last to first. Source of the rates: an independent count over the same trace (Mooncake FAST'25
release, conversation trace, 12,031 requests, 288,500 block references).
"""

import json
import lzma

import pytest
from reference import reference_path

from kvfabric.kvcache.block_pool import BlockPool

UNBOUNDED = 200_000  # more than the 182,790 distinct blocks


def _rows() -> list[tuple[int, list[int]]]:
    path = reference_path("traces/mooncake/conversation_trace.jsonl.xz")
    with lzma.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["input_length"], row["hash_ids"]) for row in rows]


def _replay(num_blocks: int) -> tuple[int, int, int, int]:
    """Return hit blocks, all blocks, hit tokens, all tokens."""
    pool = BlockPool(num_blocks + 1)
    cache = pool.prefix_cache
    hit_blocks = all_blocks = hit_tokens = all_tokens = 0
    for num_tokens, keys in _rows():
        hits: list[int] = []
        for key in keys:
            block = cache.get(key)
            if block is None:
                break
            hits.append(block)
        pool.share(hits)
        new = pool.allocate(len(keys) - len(hits))
        assert new is not None
        cache.put(keys[len(hits) :], new)
        pool.release(reversed(hits + new))
        hit_blocks += len(hits)
        all_blocks += len(keys)
        hit_tokens += min(512 * len(hits), num_tokens)
        all_tokens += num_tokens
    pool.check_invariants()
    return hit_blocks, all_blocks, hit_tokens, all_tokens


@pytest.mark.parametrize(
    ("num_blocks", "hit_percent"),
    [(1_000, 4.45), (10_000, 21.16), (30_000, 32.57), (50_000, 35.46), (100_000, 36.37)],
)
def test_bounded_cache_hits_as_published(num_blocks: int, hit_percent: float) -> None:
    hits, total, _, _ = _replay(num_blocks)
    assert total == 288_500
    assert round(100 * hits / total, 2) == hit_percent


def test_unbounded_cache_hits_as_published() -> None:
    hits, total, hit_tokens, tokens = _replay(UNBOUNDED)
    assert round(100 * hits / total, 2) == 36.64
    assert round(100 * hit_tokens / tokens, 2) == 37.36
