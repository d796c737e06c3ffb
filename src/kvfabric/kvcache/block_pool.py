"""Every KV block of one worker: reference counts and the LRU queue of free blocks."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from kvfabric.errors import CapacityError
from kvfabric.kvcache.prefix_cache import PrefixCache

_TWICE = "a block released twice at once"
_UNHELD = "released more often than held"


class BlockPool:
    """Owns the blocks 1 .. num_blocks - 1; block 0 is the null block and is never handed out.

    A free block keeps its cached prefix until it is handed out again; the one freed longest ago
    goes first. The queue of free blocks holds the blocks of each release, next block last. A hit
    takes a block out of the queue by leaving it there outdated: as many of a block's entries as are
    outdated are skipped, the oldest first. So every operation costs O(blocks it names), amortised.

    Attributes:
        num_free: blocks that can be handed out now, cached or not; for reading only.

    Invariants:
        I1. ``num_free + num_used == num_usable``; a block without references is free.
        I2. of a block that was used before, the queue holds as many entries as are outdated, and
            one more if it is free.
    """

    __slots__ = (
        "_num_blocks",
        "_num_outdated",
        "_outdated",
        "_queue",
        "_refs",
        "num_free",
        "prefix_cache",
    )

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache | None = None) -> None:
        """Make a pool of ``num_blocks`` blocks, the null block included."""
        if num_blocks < 2:
            raise CapacityError(f"a KV pool of {num_blocks} blocks holds no token")
        self.prefix_cache = PrefixCache() if prefix_cache is None else prefix_cache
        self._num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._refs = [0]  # by block; those at its end and beyond were never used
        self._queue: deque[list[int]] = deque()
        self._outdated = [0]  # by block as well: its entries in the queue that do not count
        self._num_outdated = 0  # their sum

    @property
    def num_usable(self) -> int:
        """Return the blocks that can hold tokens."""
        return self._num_blocks - 1

    @property
    def num_used(self) -> int:
        """Return the blocks with at least one reference."""
        return self._num_blocks - 1 - self.num_free

    def is_free(self, block_id: int) -> bool:
        """Return whether nobody holds a block."""
        return block_id > 0 and (block_id >= len(self._refs) or not self._refs[block_id])

    def count_free(self, block_ids: Sequence[int]) -> int:
        """Return how many of these blocks, all different, nobody holds."""
        return sum([self.is_free(block_id) for block_id in block_ids])

    def allocate(self, count: int) -> list[int] | None:
        """Take ``count`` free blocks, or return None and change nothing."""
        if count > self.num_free:
            return None
        self.num_free -= count
        refs = self._refs
        first = len(refs)
        if first == self._num_blocks:
            return self._take_freed(count)
        end = min(first + count, self._num_blocks)
        refs += [1] * (end - first)
        self._outdated += [0] * (end - first)
        taken = list(range(first, end))
        if len(taken) < count:
            taken += self._take_freed(count - len(taken))
        return taken

    def _take_freed(self, count: int) -> list[int]:
        """Take blocks from the queue, those freed longest ago first."""
        queue, missing = self._queue, count
        taken: list[int] = []
        while missing:
            part = queue[0]
            if missing < len(part):
                blocks, part = part, part[-missing:]
                del blocks[-missing:]
            else:
                queue.popleft()
            part.reverse()
            if self._num_outdated:
                part = self._valid_of(part)
            taken = taken + part if taken else part
            missing = count - len(taken)
        refs = self._refs
        for block_id in taken:
            refs[block_id] = 1
        self.prefix_cache.forget(taken)
        return taken

    def _valid_of(self, blocks: list[int]) -> list[int]:
        """Return which entries count, in the order they are taken; the others are used up."""
        outdated = self._outdated
        valid: list[int] = []
        for block_id in blocks:
            if outdated[block_id]:
                outdated[block_id] -= 1
            else:
                valid.append(block_id)
        self._num_outdated -= len(blocks) - len(valid)
        return valid

    def share(self, block_ids: Sequence[int]) -> None:
        """Add a reference to each block, all different; free ones leave the queue as they are."""
        refs = self._refs
        free = [block_id for block_id in block_ids if not refs[block_id]]
        for block_id in block_ids:
            refs[block_id] += 1
        if not free:
            return
        self.num_free -= len(free)
        outdated = self._outdated
        for block_id in free:
            outdated[block_id] += 1  # their entries stay queued
        self._num_outdated += len(free)
        if self._num_outdated > self._num_blocks + 64:
            self._drop_outdated()

    def release(self, block_ids: Iterable[int]) -> int:
        """Drop one reference to each block, in order, and return how many became free.

        Those released first are handed out again first: release the tail of a request before its
        head, so that a prefix outlives what follows it.
        """
        table = list(block_ids)
        table.reverse()
        return self.release_table(table)

    def release_table(self, table: list[int]) -> int:
        """Drop one reference to each block, the last first, and return how many became free.

        The list is the pool's from then on: as it stands it becomes a part of the queue.
        """
        refs = self._refs
        has_shared = False
        for block_id in table:
            left = refs[block_id] - 1
            refs[block_id] = left
            if left:
                has_shared = True
        if has_shared:
            table = self._freed_of(table)
        if table:
            self.num_free += len(table)
            self._queue.append(table)
        return len(table)

    def _freed_of(self, released: list[int]) -> list[int]:
        """Return which released blocks nobody holds any more, or take all back and raise."""
        refs = self._refs
        is_unheld = any(refs[block_id] < 0 for block_id in released)
        is_twice = len(set(released)) < len(released)
        if is_unheld or is_twice:
            for block_id in released:
                refs[block_id] += 1
            raise AssertionError(_TWICE if is_twice else _UNHELD)
        return [block_id for block_id in released if not refs[block_id]]

    def _drop_outdated(self) -> None:
        kept = [self._valid_of(blocks[::-1])[::-1] for blocks in self._queue]
        self._queue = deque(blocks for blocks in kept if blocks)

    def _find_free(self) -> set[int]:
        """Return the blocks that were used and are in the queue: free, if I2 is true."""
        queued = Counter(block_id for blocks in self._queue for block_id in blocks)
        counts = {block_id: queued[block_id] - self._outdated[block_id] for block_id in queued}
        assert set(counts.values()) <= {0, 1}, "I2"
        return {block_id for block_id, count in counts.items() if count}

    def check_invariants(self) -> None:
        """Assert I1, I2 and those of the prefix cache."""
        free = {block_id for block_id, count in enumerate(self._refs) if not count} - {0}
        assert min(self._refs) == self._refs[0] == 0, "I1"
        assert self.num_free == self._num_blocks - len(self._refs) + len(free), "I1"
        assert self._find_free() == free, "I2"
        assert len(self._outdated) == len(self._refs), "I2"
        assert sum(self._outdated) == self._num_outdated, "I2"
        assert min(self._outdated) == 0, "I2"
        self.prefix_cache.check_invariants()
