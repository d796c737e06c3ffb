"""Which worker and which server holds which prefix block, as the cluster's control sees it."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.kvcache.tiers import STORAGE, TierChange

_MAX_REMEMBERED_MASKS = 1 << 14


@dataclass(frozen=True, slots=True)
class PrefixSources:
    """Where a prompt's leading blocks lie, for all workers to which the same holds.

    All four counts are ends of runs from block 0: blocks ``[0, num_hbm)`` in the worker's HBM, up
    to ``num_local`` there or in its server's host memory, and from ``num_local`` on up to
    ``num_remote`` in the host memory of any one server of ``remote_servers``, or up to
    ``num_storage`` on the storage tier.

    Attributes:
        workers: the workers, as a bit mask.
        num_hbm: blocks in HBM.
        num_local: blocks in HBM or the worker's host memory; at least ``num_hbm``.
        num_remote: blocks with the longest run of another server; at least ``num_local``.
        num_storage: blocks with the run on storage; at least ``num_local``.
        remote_servers: servers with that longest run, as a bit mask; 0 for none.
    """

    workers: int
    num_hbm: int = 0
    num_local: int = 0
    num_remote: int = 0
    num_storage: int = 0
    remote_servers: int = 0


class KvDirectory:
    """An index of holders by key, one bit mask per key.

    Bits: the HBM of each worker, then the host memory of each server, then storage. A look-up costs
    O(blocks of the prompt), plus one walk per different depth at which workers run out of blocks;
    the number of workers does not matter. It knows a change ``lag_ns`` after it happened, so that
    what it names may be gone by then, and holds no key that nobody holds.
    """

    __slots__ = (
        "_holders",
        "_home",
        "_is_one_to_one",
        "_lag_ns",
        "_num_servers",
        "_pending",
        "_remembered",
        "_workers_of",
    )

    def __init__(self, worker_servers: Sequence[int], num_servers: int, *, lag_ns: int = 0) -> None:
        """Start with nothing known.

        Args:
            worker_servers: the server whose host memory each worker reads; for a worker that spans
                several, its first.
            num_servers: servers with host memory.
            lag_ns: time until a change is seen.
        """
        if any(not 0 <= server < num_servers for server in worker_servers):
            raise ConfigError(
                f"workers on servers {min(worker_servers)} to {max(worker_servers)} of"
                f" {num_servers}",
                hint=f"Write servers from 0 to {num_servers - 1}",
            )
        self._home = tuple(worker_servers)
        self._num_servers = num_servers
        self._lag_ns = lag_ns
        self._holders: dict[int, int] = {}
        self._pending: deque[tuple[int, int, Sequence[int], Sequence[int]]] = deque()
        self._workers_of = [0] * num_servers
        for worker, server in enumerate(worker_servers):
            self._workers_of[server] |= 1 << worker
        self._is_one_to_one = self._home == tuple(range(len(self._home)))
        self._remembered: dict[int, int] = {}

    @property
    def num_keys(self) -> int:
        """Return the blocks known to be somewhere."""
        return len(self._holders)

    # ------------------------------------------------------------------ changes

    def on_hbm_change(
        self, worker: int, added: Sequence[int], removed: Sequence[int], now_ns: int
    ) -> None:
        """Take in that a worker's HBM gained and lost blocks; instants never go back."""
        self._put(1 << worker, added, removed, now_ns)

    def on_tier_change(self, change: TierChange, now_ns: int) -> None:
        """Take in that a host memory or the storage tier gained and lost blocks."""
        place = self._num_servers if change.server == STORAGE else change.server
        self._put(1 << (len(self._home) + place), change.added, change.removed, now_ns)

    def _put(self, bit: int, added: Sequence[int], removed: Sequence[int], now_ns: int) -> None:
        if self._lag_ns:
            self._pending.append((now_ns + self._lag_ns, bit, added, removed))
        else:
            self._apply(bit, added, removed)

    def _apply(self, bit: int, added: Sequence[int], removed: Sequence[int]) -> None:
        holders = self._holders
        get = holders.get
        for key in added:
            holders[key] = get(key, 0) | bit
        for key in removed:
            left = get(key, 0) & ~bit
            if left:
                holders[key] = left
            else:
                holders.pop(key, None)

    def _catch_up(self, now_ns: int) -> None:
        pending = self._pending
        while pending and pending[0][0] <= now_ns:
            _, bit, added, removed = pending.popleft()
            self._apply(bit, added, removed)

    # ------------------------------------------------------------------ look-up

    def best_sources(self, keys: Sequence[int], now_ns: int) -> list[PrefixSources]:
        """Return where the blocks of a prompt lie; every worker is in exactly one entry.

        ``keys`` are those of its full blocks that may be used: leave out what has to be computed.
        """
        if self._pending:
            self._catch_up(now_ns)
        num_workers = len(self._home)
        everyone = (1 << num_workers) - 1
        held = self._held(keys)
        if not held:
            return [PrefixSources(everyone)]
        hosts = [mask >> num_workers for mask in held]
        local = [mask | self._workers_on(host) for mask, host in zip(held, hosts, strict=True)]
        in_hbm = _run_ends(held, 0, everyone)
        return [
            self._sources(workers & group, hbm_end, end, hosts)
            for end, workers in _run_ends(local, 0, everyone)
            for hbm_end, group in in_hbm
            if workers & group
        ]

    def _held(self, keys: Sequence[int]) -> list[int]:
        """Return the holders of the leading keys that anybody holds."""
        get = self._holders.get
        held: list[int] = []
        for key in keys:
            mask = get(key)
            if mask is None:
                break
            held.append(mask)
        return held

    def _workers_on(self, hosts: int) -> int:
        """Return the workers that read one of these host memories."""
        hosts &= (1 << self._num_servers) - 1
        if self._is_one_to_one:
            return hosts & ((1 << len(self._home)) - 1)
        workers = self._remembered.get(hosts)
        if workers is None:
            if len(self._remembered) >= _MAX_REMEMBERED_MASKS:
                self._remembered.clear()
            workers = 0
            for server in set_bits(hosts):
                workers |= self._workers_of[server]
            self._remembered[hosts] = workers
        return workers

    def _sources(self, workers: int, num_hbm: int, start: int, hosts: list[int]) -> PrefixSources:
        storage_bit = 1 << self._num_servers
        remote_end, remote = _longest_run(hosts, start, storage_bit - 1)
        storage_end, _ = _longest_run(hosts, start, storage_bit)
        return PrefixSources(workers, num_hbm, start, remote_end, storage_end, remote)


def _run_ends(held: Sequence[int], start: int, among: int) -> list[tuple[int, int]]:
    """Return ``(end, mask)``: whose run of held blocks from ``start`` ends where; ends ascend."""
    ends: list[tuple[int, int]] = []
    alive = among
    for index in range(start, len(held)):
        left = alive & held[index]
        if left != alive:
            ends.append((index, alive & ~left))
            if not left:
                return ends
            alive = left
    ends.append((len(held), alive))
    return ends


def _longest_run(held: Sequence[int], start: int, among: int) -> tuple[int, int]:
    """Return the end of the longest run from ``start`` and who has it; ``(start, 0)`` for none."""
    alive = among
    for index in range(start, len(held)):
        left = alive & held[index]
        if not left:
            return index, alive if index > start else 0
        alive = left
    return (len(held), alive) if len(held) > start else (start, 0)


def set_bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending.

    >>> list(set_bits(0b1010))
    [1, 3]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
