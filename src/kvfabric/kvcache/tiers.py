"""Prefix blocks below HBM: in the host memory of every server and on a shared storage tier.

The KV cache in HBM stays the business of each worker's block pool; here is what becomes of blocks
it computed or dropped. Keys are those of ``block_keys``, at any one granularity: private ones are
worth nothing to anybody else and need not be put here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tier_lru import LruKeys
from kvfabric.units import NS_PER_S, ceil_div

STORAGE = -1
"""Stands for the shared storage tier where another number would be a server."""


class WritePolicy(Enum):
    """When a block is written to the tier below, and whether it stays there when it is read."""

    THROUGH = "through"  # when it was computed, to every tier; it stays
    ON_EVICTION = "on_eviction"  # when the tier above drops it; it stays
    MOVE = "move"  # when the tier above drops it; its own server's read takes it out again


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """One memory tier. Writes take no time.

    Attributes:
        capacity_blocks: most blocks held.
        read_bps: bit/s at which blocks leave it.
    """

    capacity_blocks: int
    read_bps: int

    def __post_init__(self) -> None:
        """Refuse what holds or moves nothing."""
        if self.capacity_blocks < 1:
            raise ConfigError(
                f"memory tier of {self.capacity_blocks} blocks",
                hint="Write a capacity of at least one block, or leave the tier out",
            )
        if self.read_bps < 1:
            raise ConfigError(
                f"memory tier read at {self.read_bps} bit/s",
                hint="Write a rate above 0",
            )

    @classmethod
    def of_bytes(cls, capacity_bytes: int, block_bytes: int, *, read_bps: int) -> "TierSpec":
        """Return a tier of this many bytes; ``block_bytes`` are those of one block on all ranks."""
        if block_bytes < 1:
            raise ConfigError(f"KV block of {block_bytes} bytes", hint="Write a size above 0")
        return cls(capacity_blocks=capacity_bytes // block_bytes, read_bps=read_bps)

    def read_ns(self, num_bytes: int) -> int:
        """Return the time of a lone read, rounded up."""
        return ceil_div(num_bytes * 8 * NS_PER_S, self.read_bps)


@dataclass(frozen=True, slots=True)
class TierChange:
    """Keys that one tier gained (each is a block written) and lost, the oldest first.

    ``server`` is the server whose host memory changed, or ``STORAGE``.
    """

    server: int
    added: Sequence[int]
    removed: Sequence[int]


class PrefixPool:
    """The prefix blocks of a cluster below HBM.

    A block stays in its tier until it becomes the least recently used of a full one. Blocks that a
    fetch is reading are not pinned: a fetch is short against the life of a block that was touched
    when it began.

    Invariants:
        I1. no tier holds more than its capacity, nor any key twice.
        I2. what a change names as added is held after it, what it names as removed is not.
    """

    __slots__ = ("_hosts", "_policy", "_storage", "num_servers")

    def __init__(
        self,
        num_servers: int,
        host: TierSpec,
        storage: TierSpec | None = None,
        *,
        policy: WritePolicy = WritePolicy.THROUGH,
    ) -> None:
        """Start with ``num_servers`` empty host memories, and an empty storage tier if given."""
        self.num_servers = num_servers
        self._policy = policy
        self._hosts = [LruKeys(host.capacity_blocks) for _ in range(num_servers)]
        self._storage = None if storage is None else LruKeys(storage.capacity_blocks)

    def num_held(self, server: int) -> int:
        """Return the blocks in one host memory, or in ``STORAGE``."""
        tier = self._tier(server)
        return 0 if tier is None else len(tier)

    def match(self, server: int, keys: Sequence[int], first: int = 0) -> int:
        """Return the end of the longest run from ``first`` in one host memory, or in ``STORAGE``.

        Touches nothing. A fetch planned on a stale view asks this when it begins.
        """
        tier = self._tier(server)
        return first if tier is None else tier.match(keys, first)

    def _tier(self, server: int) -> LruKeys | None:
        return self._storage if server == STORAGE else self._hosts[server]

    def computed(self, server: int, keys: Sequence[int]) -> list[TierChange]:
        """Take in that a worker of this server has a prefix in HBM, from its front.

        Called at the end of a prefill and, if decode hands new blocks back, of a generation.
        """
        if self._policy is WritePolicy.THROUGH:
            return self._write_host(server, keys) + self._write_storage(keys)
        if self._policy is WritePolicy.MOVE:
            removed = self._hosts[server].remove(keys)
            return [TierChange(server, (), removed)] if removed else []
        return []

    def evicted(self, server: int, keys: Sequence[int]) -> list[TierChange]:
        """Take in blocks that a worker's HBM has dropped, those dropped first (tails) first.

        With ``WritePolicy.THROUGH`` their copies are below already, and nothing is written.
        """
        if self._policy is WritePolicy.THROUGH or not keys:
            return []
        return self._write_host(server, keys[::-1])

    def read(self, reader: int, source: int, keys: Sequence[int]) -> list[TierChange]:
        """Take in that a worker of server ``reader`` reads a run of blocks from ``source``.

        ``source`` is a server or ``STORAGE``. They are touched; with ``WritePolicy.MOVE``, blocks
        that do not come from another server's memory leave their tier.
        """
        tier = self._tier(source)
        if tier is None:
            return []
        if self._policy is WritePolicy.MOVE and source in {reader, STORAGE}:
            removed = tier.remove(keys)
            return [TierChange(source, (), removed)] if removed else []
        tier.touch(keys)
        return []

    def lose_server(self, server: int) -> list[TierChange]:
        """Take in that a server died with its memory."""
        lost = self._hosts[server].clear()
        return [TierChange(server, (), lost)] if lost else []

    def _write_host(self, server: int, keys: Sequence[int]) -> list[TierChange]:
        change = _write(self._hosts[server], server, keys)
        if self._policy is WritePolicy.THROUGH or not change.removed:
            return [change] if change.added else []
        return [change, *self._write_storage(change.removed[::-1])]

    def _write_storage(self, keys: Sequence[int]) -> list[TierChange]:
        if self._storage is None:
            return []
        change = _write(self._storage, STORAGE, keys)
        return [change] if change.added else []

    def check_invariants(self) -> None:
        """Assert I1."""
        for tier in [*self._hosts, *([] if self._storage is None else [self._storage])]:
            tier.check_invariants()


def _write(tier: LruKeys, server: int, keys: Sequence[int]) -> TierChange:
    added, dropped = tier.put(keys)
    return TierChange(server, added, dropped)
