"""Every KV block of one worker: reference counts and the LRU queue of free blocks."""

from collections import deque
from collections.abc import Iterable, Sequence

from kvfabric.errors import CapacityError
from kvfabric.kvcache.prefix_cache import PrefixCache


class BlockPool:
    """Owns the blocks 1 .. num_blocks - 1; block 0 is the null block and is never handed out.

    A free block keeps its cached prefix until it is handed out again; the one freed longest ago
    goes first. The queue of free blocks holds ``(stamp, blocks)`` per release, next block last; a
    block in it counts only if it is still free and was not freed again since. So a hit takes a
    block out of the queue by leaving it there outdated: every operation costs O(blocks it names),
    amortised.

    Attributes:
        num_free: blocks that can be handed out now, cached or not; for reading only.

    Invariants:
        I1. ``num_free + num_used == num_usable``.
        I2. a block is free exactly when its reference count is zero.
        I3. a free block that was used before has exactly one valid entry in the queue.
    """

    __slots__ = (
        "_clock",
        "_next_fresh",
        "_num_blocks",
        "_num_outdated",
        "_num_queued",
        "_queue",
        "_refs",
        "_stamps",
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
        self._next_fresh = 1  # blocks [next_fresh, num_blocks) were never used
        self._refs = [1]  # by block id, for blocks below next_fresh
        self._stamps = [0]  # when a block was last freed
        self._clock = 0
        self._queue: deque[tuple[int, list[int]]] = deque()
        self._num_queued = 0  # blocks in the queue, outdated ones included
        self._num_outdated = 0

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
        return block_id >= self._next_fresh or self._refs[block_id] == 0

    def count_free(self, block_ids: Iterable[int]) -> int:
        """Return how many of these blocks nobody holds."""
        refs, fresh = self._refs, self._next_fresh
        return sum(1 for b in block_ids if b >= fresh or refs[b] == 0)

    def allocate(self, count: int) -> list[int] | None:
        """Take ``count`` free blocks, or return None and change nothing."""
        if count > self.num_free:
            return None
        self.num_free -= count
        first = self._next_fresh
        num_fresh = min(count, self._num_blocks - first)
        if not num_fresh:
            return self._take_freed(count)
        self._next_fresh += num_fresh
        self._refs.extend([1] * num_fresh)
        self._stamps.extend([0] * num_fresh)
        return [*range(first, first + num_fresh), *self._take_freed(count - num_fresh)]

    def _take_freed(self, count: int) -> list[int]:
        """Take blocks from the queue, those freed longest ago first."""
        refs, queue = self._refs, self._queue
        taken: list[int] = []
        while len(taken) < count:
            stamp, blocks = queue[0]
            missing = count - len(taken)
            part = blocks[-missing:]
            del blocks[-missing:]
            part.reverse()
            self._num_queued -= len(part)
            if not blocks:
                queue.popleft()
            taken += part if self._num_outdated == 0 else self._valid_of(stamp, part)
        for block_id in taken:
            refs[block_id] = 1
        self.prefix_cache.forget(taken)
        return taken

    def _valid_of(self, stamp: int, blocks: list[int]) -> list[int]:
        refs, stamps = self._refs, self._stamps
        valid = [b for b in blocks if refs[b] == 0 and stamps[b] == stamp]
        self._num_outdated -= len(blocks) - len(valid)
        return valid

    def share(self, block_ids: Sequence[int]) -> None:
        """Add a reference to each block; free ones leave the queue with their content."""
        refs = self._refs
        num_revived = sum(1 for block_id in block_ids if refs[block_id] == 0)
        for block_id in block_ids:
            refs[block_id] += 1
        self.num_free -= num_revived
        self._num_outdated += num_revived  # their entries stay in the queue

    def release(self, block_ids: Iterable[int]) -> int:
        """Drop one reference to each block, in order, and return how many became free.

        Those released first are handed out again first: release the tail of a request before its
        head, so that a prefix outlives what follows it.
        """
        refs, stamps = self._refs, self._stamps
        blocks = list(block_ids)
        assert len(set(blocks)) == len(blocks), "a block released twice at once"
        freed = [block_id for block_id in blocks if refs[block_id] == 1]
        if len(freed) < len(blocks):
            self._unshare([block_id for block_id in blocks if refs[block_id] != 1])
        self._clock = clock = self._clock + 1
        for block_id in freed:
            refs[block_id] = 0
            stamps[block_id] = clock
        freed.reverse()
        self._enqueue(clock, freed)
        return len(freed)

    def _unshare(self, block_ids: list[int]) -> None:
        refs = self._refs
        assert all(refs[block_id] > 1 for block_id in block_ids), "released more often than held"
        for block_id in block_ids:
            refs[block_id] -= 1

    def _enqueue(self, clock: int, freed: list[int]) -> None:
        if not freed:
            return
        self.num_free += len(freed)
        self._num_queued += len(freed)
        self._queue.append((clock, freed))
        if self._num_queued > 2 * self._num_blocks + 64:
            self._drop_outdated()

    def _drop_outdated(self) -> None:
        kept = [(stamp, self._valid_of(stamp, blocks)) for stamp, blocks in self._queue]
        self._queue = deque((stamp, blocks) for stamp, blocks in kept if blocks)
        self._num_queued = sum(len(blocks) for _, blocks in self._queue)

    def check_invariants(self) -> None:
        """Assert I1 to I3 and those of the prefix cache."""
        fresh = self._num_blocks - self._next_fresh
        zero = {b for b in range(1, self._next_fresh) if self._refs[b] == 0}
        assert all(count >= 0 for count in self._refs), "I2"
        assert self.num_free == fresh + len(zero), "I1"
        refs, stamps = self._refs, self._stamps
        queued = [(s, b) for s, blocks in self._queue for b in blocks]
        valid = [b for s, b in queued if refs[b] == 0 and stamps[b] == s]
        assert len(queued) == self._num_queued == len(valid) + self._num_outdated, "I3"
        assert len(valid) == len(set(valid)), "I3"
        assert set(valid) == zero, "I3"
        self.prefix_cache.check_invariants()
