"""An LRU set of prefix keys: what one memory tier holds."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvfabric.errors import CapacityError


class LruKeys:
    """Holds the keys touched last, at most ``capacity`` of them.

    Keys come in runs, the keys of one prefix from its front. A run is touched from its last key to
    its first, so that a prefix outlives what follows it. Every operation costs O(keys it names).

    Invariants:
        I1. ``len(self) <= capacity`` after every operation.
    """

    __slots__ = ("_held", "capacity")

    def __init__(self, capacity: int) -> None:
        """Start empty.

        Raises:
            CapacityError: a capacity below one key.
        """
        if capacity < 1:
            raise CapacityError(f"a memory tier of {capacity} blocks holds no prefix")
        self.capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()  # touched longest ago first

    def __len__(self) -> int:
        """Return the keys held."""
        return len(self._held)

    def __contains__(self, key: int) -> bool:
        """Return whether a key is held."""
        return key in self._held

    def match(self, keys: Sequence[int], first: int = 0) -> int:
        """Return the end of the longest run of held keys that starts at index ``first``."""
        held = self._held
        for index in range(first, len(keys)):
            if keys[index] not in held:
                return index
        return max(first, len(keys))

    def put(self, keys: Sequence[int]) -> tuple[list[int], list[int]]:
        """Hold and touch a run of keys; return those added, and those dropped for it, oldest first.

        A run longer than the capacity is held up to the capacity, from its front; what is cut off
        is neither touched nor named.
        """
        run = list(dict.fromkeys(keys))
        del run[self.capacity :]
        held = self._held
        added = [key for key in run if key not in held]
        move_to_end = held.move_to_end
        for key in reversed(run):
            held[key] = None
            move_to_end(key)
        pop = held.popitem
        return added, [pop(last=False)[0] for _ in range(len(held) - self.capacity)]

    def touch(self, keys: Sequence[int]) -> None:
        """Touch those keys of a run that are held."""
        held = self._held
        for key in reversed(keys):
            if key in held:
                held.move_to_end(key)

    def remove(self, keys: Iterable[int]) -> list[int]:
        """Drop keys, and return those that were held, in order."""
        held = self._held
        removed = [key for key in dict.fromkeys(keys) if key in held]
        for key in removed:
            del held[key]
        return removed

    def clear(self) -> list[int]:
        """Drop all keys and return them, the oldest first."""
        dropped = list(self._held)
        self._held.clear()
        return dropped

    def oldest_first(self) -> list[int]:
        """Return all keys, the one touched longest ago first."""
        return list(self._held)

    def check_invariants(self) -> None:
        """Assert I1."""
        assert len(self._held) <= self.capacity, "I1"
