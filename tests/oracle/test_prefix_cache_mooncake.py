"""Hit rates of one LRU prefix cache on the Mooncake conversation trace.

Every hash id is one block of 512 tokens, only prefixes hit, and the blocks of a request are touched
from last to first. Source of the rates: an independent count over the same trace (Mooncake FAST'25
release, conversation trace, 12,031 requests, 288,500 block references).
"""

import json
import lzma

import pytest
from reference import reference_path

from kvfabric.plan.validation.prefix_cache import CONVERSATION, UNBOUNDED, lru_hits


def _rows() -> list[tuple[int, list[int]]]:
    path = reference_path("traces/mooncake/conversation_trace.jsonl.xz")
    with lzma.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["input_length"], row["hash_ids"]) for row in rows]


def _replay(num_blocks: int) -> tuple[int, int, int, int]:
    """Return hit blocks, all blocks, hit tokens, all tokens."""
    rows = _rows()
    hits = lru_hits(num_blocks, [keys for _, keys in rows])
    hit_tokens = [
        min(512 * hit, num_tokens) for hit, (num_tokens, _) in zip(hits, rows, strict=True)
    ]
    all_blocks = sum(len(keys) for _, keys in rows)
    return sum(hits), all_blocks, sum(hit_tokens), sum(num_tokens for num_tokens, _ in rows)


@pytest.mark.parametrize(("num_blocks", "hit_percent"), CONVERSATION.items())
def test_cache_hits_as_published(num_blocks: int, hit_percent: float) -> None:
    hits, total, _, _ = _replay(num_blocks)
    assert total == 288_500
    assert round(100 * hits / total, 2) == hit_percent


def test_tokens_of_an_unbounded_cache_hit_as_published() -> None:
    _, _, hit_tokens, tokens = _replay(UNBOUNDED)
    assert round(100 * hit_tokens / tokens, 2) == 37.36
