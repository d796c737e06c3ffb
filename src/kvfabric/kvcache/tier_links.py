"""When reads of host memory and storage end: every tier serves one read after the other."""

from kvfabric.kvcache.tiers import STORAGE, TierSpec


class TierLinks:
    """The read side of each server's host memory and of storage.

    First come, first served at the full rate of the tier. A read that nobody waits for any more
    is carried out all the same. Writes go the other way and are not slowed by reads.
    """

    __slots__ = ("_free_ns", "_host", "_storage")

    def __init__(self, num_servers: int, host: TierSpec, storage: TierSpec | None = None) -> None:
        """Start with nothing to read."""
        self._host = host
        self._storage = storage
        self._free_ns = [0] * (num_servers + 1)  # storage is the last

    def read(self, place: int, num_bytes: int, now_ns: int) -> int:
        """Queue a read of a server's host memory, or of ``STORAGE``, and return when it ends."""
        tier = self._storage if place == STORAGE else self._host
        assert tier is not None, "a read of a storage tier that is not there"
        end_ns = max(now_ns, self._free_ns[place]) + tier.read_ns(num_bytes)
        self._free_ns[place] = end_ns
        return end_ns
