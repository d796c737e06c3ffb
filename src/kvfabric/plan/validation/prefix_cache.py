"""Hits of an LRU prefix cache: closed forms of small traces, and the Mooncake conversation trace.

Only prefixes hit, and the blocks of a request are touched from last to first. Source of the trace's
rates: an independent count over it (Mooncake FAST'25 release, 12,031 requests, 288,500 block
references of 512 tokens).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvfabric.kvcache.block_pool import BlockPool
from kvfabric.plan.validation.comparison import (
    Comparison,
    Errors,
    Figure,
    Limit,
    Record,
    Role,
    Unit,
)
from kvfabric.plan.validation.reference import ReferenceData

UNBOUNDED: Final = 200_000
"""More than the 182,790 distinct blocks of the trace."""

CONVERSATION: Final = {
    1_000: 4.45,
    10_000: 21.16,
    30_000: 32.57,
    50_000: 35.46,
    100_000: 36.37,
    UNBOUNDED: 36.64,
}
"""Percent of block references that hit, by blocks of the cache."""

# 100 prompts of one block of their own, round and round, 10 times: all hit from the second round
# on if the cache holds them all, none if it lacks a single one.
_ROUNDS: Final = tuple((key,) for _ in range(10) for key in range(100))
# 100 one-block prompts forth and back, 10 times: of every sweep after the first those hit that the
# cache kept from the end of the last, as many as it holds.
_SWEEPS: Final = tuple(
    (key,) for turn in range(10) for key in (range(100) if turn % 2 == 0 else range(99, -1, -1))
)
# 50 prompts: 20 shared blocks, then 5 of their own. A cache of 45 blocks keeps the shared ones.
_SHARED: Final = tuple(
    (*range(20), *range(1_000 + 5 * prompt, 1_005 + 5 * prompt)) for prompt in range(50)
)
# One conversation of 40 turns that grows by 2 blocks a turn: each hits all before it.
_TURNS: Final = tuple(tuple(range(2 * turn)) for turn in range(1, 41))

CLOSED_FORMS: Final[tuple[tuple[str, Sequence[tuple[int, ...]], int, int], ...]] = (
    ("100 prompts in turn, 100 blocks", _ROUNDS, 100, 9 * 100),
    ("100 prompts in turn, 99 blocks", _ROUNDS, 99, 0),
    ("100 prompts forth and back, 1 block", _SWEEPS, 1, 9 * 1),
    ("100 prompts forth and back, 40 blocks", _SWEEPS, 40, 9 * 40),
    ("100 prompts forth and back, 100 blocks", _SWEEPS, 100, 9 * 100),
    ("20 shared blocks, 45 blocks", _SHARED, 45, 49 * 20),
    ("one conversation, 80 blocks", _TURNS, 80, sum(2 * turn for turn in range(1, 40))),
)
"""(trace, blocks of each request, blocks of the cache, hits)."""


def lru_hits(num_blocks: int, requests: Iterable[Sequence[int]]) -> list[int]:
    """Return the blocks that hit in each request, one after the other on a pool of this size."""
    pool = BlockPool(num_blocks + 1)
    cache = pool.prefix_cache
    hits_by_request = []
    for keys in requests:
        hits: list[int] = []
        for key in keys:
            block = cache.get(key)
            if block is None:
                break
            hits.append(block)
        pool.share(hits)
        new = pool.allocate(len(keys) - len(hits))
        assert new is not None, "the pool holds every single request"
        cache.put(keys[len(hits) :], new)
        pool.release(reversed(hits + new))
        hits_by_request.append(len(hits))
    pool.check_invariants()
    return hits_by_request


def _closed_figures() -> list[Figure]:
    return [
        Figure(f"{name}, hits", hits, sum(lru_hits(num_blocks, trace)))
        for name, trace, num_blocks, hits in CLOSED_FORMS
    ]


def _conversation_figures(reference: ReferenceData) -> list[Figure]:
    requests = reference.conversation_blocks()
    references = sum(map(len, requests))
    return [
        Figure(
            f"{num_blocks:,} blocks, %",
            percent,
            round(100 * sum(lru_hits(num_blocks, requests)) / references, 2),
        )
        for num_blocks, percent in CONVERSATION.items()
    ]


COMPARISONS: Final = (
    Comparison(
        part="prefix-cache",
        what="LRU hits: rounds, sweeps, shared prefix, conversation",
        source="closed forms",
        role=Role.LAW,
        limit=Limit(0, 0),
        recompute=_closed_figures,
    ),
    Comparison(
        part="prefix-cache",
        what="LRU hit rate, 6 cache sizes, to 0.01 points",
        source="Mooncake conversation trace, counted apart",
        role=Role.HELD_OUT,
        unit=Unit.POINTS,
        limit=Limit(0, 0),
        recompute_from=_conversation_figures,
        needs=("traces/mooncake/conversation_trace.jsonl.xz",),
        record=Record(
            "2026-11-30",
            Errors(6, 0.0, 0.0, 0.0),
            tuple(
                Figure(f"{num_blocks:,} blocks, %", percent, percent)
                for num_blocks, percent in CONVERSATION.items()
            ),
        ),
    ),
)
