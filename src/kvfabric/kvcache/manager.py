"""Block tables of one worker's requests: admission, growth, hits and release."""

from collections.abc import Sequence
from itertools import takewhile
from typing import cast

from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.kvcache.block_pool import BlockPool
from kvfabric.units import ceil_div


class KVManager:
    """Gives requests their blocks and remembers full blocks by prefix.

    A block table lists the blocks of token positions ``[0, block_size)``, ``[block_size, 2 x
    block_size)``, ... in order; it only grows until it is released as a whole (INV-5).

    Invariants:
        I1. every block of a table is held; the references of a block are the tables it stands in.
    """

    __slots__ = ("block_size", "enable_prefix_caching", "pool", "tables")

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        """Make a manager over ``num_blocks`` blocks (null block included) of ``block_size``."""
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Return the free blocks."""
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold ``num_tokens`` tokens."""
        return ceil_div(num_tokens, self.block_size)

    def find_prefix(self, keys: BlockKeys, num_tokens: int) -> list[int]:
        """Return the cached blocks from token 0 on, leaving at least one token to compute."""
        blocks = self.pool.prefix_cache.block_by_key
        if not blocks or not self.enable_prefix_caching:
            return []
        end = (num_tokens - 1) // self.block_size
        if not end or keys.keys(0, 1)[0] not in blocks:
            return []
        found = takewhile(bool, map(blocks.get, keys.keys(0, end)))  # block 0 is in no table
        return cast("list[int]", list(found))

    def fits(self, num_tokens: int, hits: list[int]) -> bool:
        """Return whether the whole of a request fits now.

        Hit blocks that nobody holds lie in the free queue, so they count as needed.
        """
        needed = ceil_div(num_tokens, self.block_size) - len(hits)
        if hits:
            needed += self.pool.count_free(hits)
        return needed <= self.pool.num_free

    def admit(self, request_id: int, hits: list[int], num_tokens: int) -> bool:
        """Start a table with the hit blocks and enough new ones for ``num_tokens`` tokens.

        Returns False and changes nothing when the new blocks are not there.
        """
        assert request_id not in self.tables, f"request {request_id} has a table already"
        pool = self.pool
        count = ceil_div(num_tokens, self.block_size) - len(hits)
        if hits:
            if count + pool.count_free(hits) > pool.num_free:
                return False
            pool.share(hits)
        new = pool.allocate(count)
        if new is None:
            return False
        self.tables[request_id] = hits + new if hits else new
        return True

    def grow(self, request_id: int, num_tokens: int) -> bool:
        """Extend a table to hold ``num_tokens`` tokens, or return False and change nothing."""
        table = self.tables[request_id]
        count = self.blocks_for(num_tokens) - len(table)
        if count <= 0:
            return True
        new = self.pool.allocate(count)
        if new is None:
            return False
        table.extend(new)
        return True

    def append_blocks(self, request_ids: Sequence[int]) -> None:
        """Add one block to each table, in order; the caller has checked that they are free."""
        new = self.pool.allocate(len(request_ids))
        assert new is not None, "append_blocks without free blocks"
        tables = self.tables
        for request_id, block_id in zip(request_ids, new):  # noqa: B905 — compiled in this form only
            tables[request_id].append(block_id)

    def remember(self, request_id: int, keys: BlockKeys, first_block: int, num_tokens: int) -> None:
        """Make the full blocks of ``[first_block x block_size, num_tokens)`` findable."""
        end_block = num_tokens // self.block_size
        if end_block <= first_block or not self.enable_prefix_caching:
            return
        blocks = self.tables[request_id][first_block:end_block]
        self.pool.prefix_cache.put(keys.keys(first_block, first_block + len(blocks)), blocks)

    def release(self, request_id: int) -> int:
        """Give a whole table back, tail first, and return how many blocks became free."""
        return self.pool.release_table(self.tables.pop(request_id))

    def check_invariants(self) -> None:
        """Assert I1 and the pool's invariants."""
        self.pool.check_invariants()
        held: dict[int, int] = {}
        for table in self.tables.values():
            for block_id in table:
                held[block_id] = held.get(block_id, 0) + 1
        assert len(held) == self.pool.num_used, "I1"
        assert not any(self.pool.is_free(block_id) for block_id in held), "I1"
