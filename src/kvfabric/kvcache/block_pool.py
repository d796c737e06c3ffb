"""Every KV block of one worker: reference counts and the LRU queue of free blocks."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from kvfabric.errors import CapacityError
from kvfabric.kvcache.prefix_cache import PrefixCache


class BlockPool:
    """Owns the blocks 1 .. num_blocks - 1; block 0 is the null block and is never handed out.

    A free block keeps its cached prefix until it is handed out again; the one freed longest ago
    goes first. The queue of free blocks holds the blocks of each release, next block last. A hit
    takes a block out of the queue by leaving it there outdated: as many of a block's entries as are
    outdated are skipped, the oldest first. So every operation costs O(blocks it names), amortised.

    Attributes:
        num_free: blocks that can be handed out now, cached or not; for reading only.

    Invariants:
        I1. ``num_free + num_used == num_usable``.
        I2. a block is free exactly when its reference count is zero.
        I3. of a block that was used before, the queue holds as many entries as are outdated, and
            one more if it is free.
    """

    __slots__ = (
        "_next_fresh",
        "_num_blocks",
        "_num_queued",
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
        self._next_fresh = 1  # blocks [next_fresh, num_blocks) were never used
        self._refs = [1]  # by block id, for blocks below next_fresh
        self._queue: deque[list[int]] = deque()
        self._num_queued = 0  # blocks in the queue, outdated ones included
        self._outdated: dict[int, int] = {}  # entries of a block in the queue that do not count

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

    def count_free(self, block_ids: Sequence[int]) -> int:
        """Return how many of these blocks nobody holds."""
        fresh = self._next_fresh
        used = block_ids
        if max(block_ids, default=0) >= fresh:
            used = [block_id for block_id in block_ids if block_id < fresh]
        num_held = len(used) - list(map(self._refs.__getitem__, used)).count(0)
        return len(block_ids) - num_held

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
        return [*range(first, first + num_fresh), *self._take_freed(count - num_fresh)]

    def _take_freed(self, count: int) -> list[int]:
        """Take blocks from the queue, those freed longest ago first."""
        refs, queue = self._refs, self._queue
        taken: list[int] = []
        while len(taken) < count:
            blocks = queue[0]
            missing = count - len(taken)
            part = blocks[-missing:]
            del blocks[-missing:]
            part.reverse()
            self._num_queued -= len(part)
            if not blocks:
                queue.popleft()
            taken += self._valid_of(part) if self._outdated else part
        for block_id in taken:
            refs[block_id] = 1
        self.prefix_cache.forget(taken)
        return taken

    def _valid_of(self, blocks: list[int]) -> list[int]:
        """Return which entries count, in the order they are taken; the others are used up."""
        outdated = self._outdated
        valid: list[int] = []
        for block_id in blocks:
            count = outdated.get(block_id)
            if count is None:
                valid.append(block_id)
            elif count == 1:
                del outdated[block_id]
            else:
                outdated[block_id] = count - 1
        return valid

    def share(self, block_ids: Sequence[int]) -> None:
        """Add a reference to each block; free ones leave the queue with their content."""
        refs, outdated = self._refs, self._outdated
        if 0 in map(refs.__getitem__, block_ids):
            for block_id in block_ids:
                if refs[block_id] == 0:
                    self.num_free -= 1
                    outdated[block_id] = outdated.get(block_id, 0) + 1  # its entry stays queued
        for block_id in block_ids:
            refs[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> int:
        """Drop one reference to each block, in order, and return how many became free.

        Those released first are handed out again first: release the tail of a request before its
        head, so that a prefix outlives what follows it.
        """
        refs = self._refs
        blocks = list(block_ids)
        assert len(set(blocks)) == len(blocks), "a block released twice at once"
        freed = blocks
        if list(map(refs.__getitem__, blocks)).count(1) < len(blocks):
            freed = [block_id for block_id in blocks if refs[block_id] == 1]
            self._unshare([block_id for block_id in blocks if refs[block_id] != 1])
        for block_id in freed:
            refs[block_id] = 0
        freed.reverse()
        self._enqueue(freed)
        return len(freed)

    def _unshare(self, block_ids: list[int]) -> None:
        refs = self._refs
        assert all(refs[block_id] > 1 for block_id in block_ids), "released more often than held"
        for block_id in block_ids:
            refs[block_id] -= 1

    def _enqueue(self, freed: list[int]) -> None:
        if not freed:
            return
        self.num_free += len(freed)
        self._num_queued += len(freed)
        self._queue.append(freed)
        if self._num_queued > 2 * self._num_blocks + 64:
            self._drop_outdated()

    def _drop_outdated(self) -> None:
        kept = [self._valid_of(blocks[::-1])[::-1] for blocks in self._queue]
        self._queue = deque(blocks for blocks in kept if blocks)
        self._num_queued = sum(len(blocks) for blocks in self._queue)

    def check_invariants(self) -> None:
        """Assert I1 to I3 and those of the prefix cache."""
        fresh = self._num_blocks - self._next_fresh
        zero = {b for b in range(1, self._next_fresh) if self._refs[b] == 0}
        assert all(count >= 0 for count in self._refs), "I2"
        assert self.num_free == fresh + len(zero), "I1"
        queued = Counter(b for blocks in self._queue for b in blocks)
        assert queued.total() == self._num_queued, "I3"
        assert queued == Counter(zero) + Counter(self._outdated), "I3"
        assert all(count > 0 for count in self._outdated.values()), "I3"
        self.prefix_cache.check_invariants()
