"""Which block holds which prefix: the map from chained block hashes to block ids."""

from collections.abc import Iterable, Sequence


class PrefixCache:
    """Finds full blocks again by the key of everything up to and including them.

    A key is an int that stands for the tokens of a block and of all blocks before it, so a run of
    keys can only match from the front. Which blocks are free or in use is the pool's business; a
    block stays findable after its last reference was dropped, until the pool hands it out anew.

    Invariants:
        I1. ``block_of[key] == block`` exactly when ``key_of[block] == key``.
    """

    __slots__ = ("_key_of", "block_by_key")

    def __init__(self) -> None:
        """Start with nothing cached."""
        self.block_by_key: dict[int, int] = {}
        self._key_of: list[int | None] = []  # by block; those beyond its end have none

    def key_of(self, block_id: int) -> int | None:
        """Return the key that a block is found by, or None."""
        return self._key_of[block_id] if block_id < len(self._key_of) else None

    def put(self, keys: Sequence[int], block_ids: Sequence[int]) -> None:
        """Make full blocks findable; the first block under a key stays the one that is found."""
        if len(keys) != len(block_ids):
            raise ValueError(f"{len(keys)} keys for {len(block_ids)} blocks")
        key_of, block_by_key = self._key_of, self.block_by_key
        missing = max(block_ids, default=0) + 1 - len(key_of)
        if missing > 0:
            key_of += [None] * missing
        for key, block_id in zip(keys, block_ids):  # noqa: B905 — compiled in this form only
            if key_of[block_id] is None and block_by_key.setdefault(key, block_id) == block_id:
                key_of[block_id] = key

    def get(self, key: int) -> int | None:
        """Return the block that holds a key."""
        return self.block_by_key.get(key)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Drop what is known of blocks whose content is about to change."""
        key_of, block_by_key = self._key_of, self.block_by_key
        num_known = len(key_of)
        for block_id in block_ids:
            if block_id < num_known:
                key = key_of[block_id]
                if key is not None:
                    del block_by_key[key]
                    key_of[block_id] = None

    def check_invariants(self) -> None:
        """Assert I1."""
        keyed = {key: block for block, key in enumerate(self._key_of) if key is not None}
        assert keyed == self.block_by_key, "I1"
        assert len(keyed) == len(self._key_of) - self._key_of.count(None), "I1"
