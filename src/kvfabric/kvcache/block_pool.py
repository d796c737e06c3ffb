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

    Sets name what is held, because a whole table enters or leaves a set in one call.

    Attributes:
        num_free: blocks that can be handed out now, cached or not; for reading only.

    Invariants:
        I1. ``num_free + num_used == num_usable``.
        I2. only a block that is held has references beyond its first.
        I3. of a block that was used before, the queue holds as many entries as are outdated, and
            one more if it is free.
    """

    __slots__ = (
        "_extra_refs",
        "_held",
        "_next_fresh",
        "_num_blocks",
        "_num_outdated",
        "_outdated",
        "_queue",
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
        self._held: set[int] = set()
        self._extra_refs: Counter[int] = Counter()  # beyond the first, of blocks that are shared
        self._queue: deque[list[int]] = deque()
        self._outdated: Counter[int] = (
            Counter()
        )  # entries of a block in the queue that do not count
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
        return block_id > 0 and block_id not in self._held

    def count_free(self, block_ids: Sequence[int]) -> int:
        """Return how many of these blocks, all different, nobody holds."""
        return len(block_ids) - len(self._held.intersection(block_ids))

    def allocate(self, count: int) -> list[int] | None:
        """Take ``count`` free blocks, or return None and change nothing."""
        if count > self.num_free:
            return None
        self.num_free -= count
        first = self._next_fresh
        if first == self._num_blocks:
            taken = self._take_freed(count)
        else:
            end = self._next_fresh = min(first + count, self._num_blocks)
            taken = list(range(first, end))
            if len(taken) < count:
                taken += self._take_freed(count - len(taken))
        self._held.update(taken)
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
        self.prefix_cache.forget(taken)
        return taken

    def _valid_of(self, blocks: list[int]) -> list[int]:
        """Return which entries count, in the order they are taken; the others are used up."""
        outdated = self._outdated
        if outdated.keys().isdisjoint(blocks):
            return blocks
        valid: list[int] = []
        for block_id in blocks:
            if block_id in outdated:
                _count_down(outdated, block_id)
            else:
                valid.append(block_id)
        self._num_outdated -= len(blocks) - len(valid)
        return valid

    def share(self, block_ids: Sequence[int]) -> None:
        """Add a reference to each block, all different; free ones leave the queue as they are."""
        held = self._held.intersection(block_ids)
        if held:
            self._extra_refs.update(held)
        if len(held) == len(block_ids):
            return
        free = set(block_ids) - held
        self.num_free -= len(free)
        self._held |= free
        self._outdated.update(free)  # their entries stay queued
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
        freed = table
        shared: list[int] = []
        extra = self._extra_refs
        if extra and not extra.keys().isdisjoint(freed):
            shared = [block_id for block_id in freed if block_id in extra]
            freed = [block_id for block_id in freed if block_id not in extra]
            assert len(set(shared)) == len(shared), _TWICE
        held = self._held
        num_left = len(held) - len(freed)
        held.difference_update(freed)
        if len(held) != num_left:
            self._held = self._find_held()
            raise AssertionError(_TWICE if len(set(freed)) < len(freed) else _UNHELD)
        for block_id in shared:
            _count_down(extra, block_id)
        if freed:
            self.num_free += len(freed)
            self._queue.append(freed)
        return len(freed)

    def _drop_outdated(self) -> None:
        kept = [self._valid_of(blocks[::-1])[::-1] for blocks in self._queue]
        self._queue = deque(blocks for blocks in kept if blocks)

    def _find_held(self) -> set[int]:
        """Return the blocks that were used and are not in the queue: held, if I3 is true."""
        queued = Counter(block_id for blocks in self._queue for block_id in blocks)
        queued.subtract(self._outdated)
        assert set(queued.values()) <= {0, 1}, "I3"
        return {block_id for block_id in range(1, self._next_fresh) if not queued[block_id]}

    def check_invariants(self) -> None:
        """Assert I1 to I3 and those of the prefix cache."""
        assert self.num_used == len(self._held), "I1"
        assert self._extra_refs.keys() <= self._held, "I2"
        assert self._find_held() == self._held, "I3"
        assert self._outdated.total() == self._num_outdated, "I3"
        counts = [*self._extra_refs.values(), *self._outdated.values()]
        assert min(counts, default=1) > 0, "I2, I3"
        self.prefix_cache.check_invariants()


def _count_down(counts: Counter[int], key: int) -> None:
    """Take one off a count; a count of zero is no entry."""
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1
