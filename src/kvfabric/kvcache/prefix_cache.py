"""Which block holds which prefix: the map from chained block hashes to block ids."""

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import eq


class PrefixCache:
    """Finds full blocks again by the key of everything up to and including them.

    A key is an int that stands for the tokens of a block and of all blocks before it, so a run of
    keys can only match from the front. Which blocks are free or in use is the pool's business; a
    block stays findable after its last reference was dropped, until the pool hands it out anew.

    Invariants:
        I1. ``block_of[key] == block`` exactly when ``key_of[block] == key``.
    """

    __slots__ = ("block_by_key", "key_by_block")

    def __init__(self) -> None:
        """Start with nothing cached."""
        self.block_by_key: dict[int, int] = {}
        self.key_by_block: dict[int, int] = {}

    def put(self, keys: Sequence[int], block_ids: Sequence[int]) -> None:
        """Make full blocks findable; the first block under a key stays the one that is found."""
        block_by_key, key_by_block = self.block_by_key, self.key_by_block
        if len(keys) == len(block_ids) and key_by_block.keys().isdisjoint(block_ids):
            found = list(map(block_by_key.setdefault, keys, block_ids))
            put: Iterable[tuple[int, int]] = zip(block_ids, keys, strict=True)
            if found != block_ids:  # no key led to these blocks before: a block found is put now
                put = compress(put, map(eq, found, block_ids))
            key_by_block.update(put)
            return
        for key, block_id in zip(keys, block_ids, strict=True):
            if key not in block_by_key and block_id not in key_by_block:
                block_by_key[key] = block_id
                key_by_block[block_id] = key

    def get(self, key: int) -> int | None:
        """Return the block that holds a key."""
        return self.block_by_key.get(key)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Drop what is known of blocks whose content is about to change."""
        if not self.key_by_block:
            return
        pop, block_by_key = self.key_by_block.pop, self.block_by_key
        for block_id in block_ids:
            key = pop(block_id, None)
            if key is not None:
                del block_by_key[key]

    def check_invariants(self) -> None:
        """Assert I1."""
        assert len(self.block_by_key) == len(self.key_by_block), "I1"
        for key, block_id in self.block_by_key.items():
            assert self.key_by_block[block_id] == key, "I1"
