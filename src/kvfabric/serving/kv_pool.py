"""Where prefixes lie in HBM, host memories and storage, and what of it a prompt can use."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvfabric.errors import ConfigError
from kvfabric.kvcache.block_keys import BlockKeys
from kvfabric.kvcache.tier_lru import LruKeys
from kvfabric.kvcache.tiers import STORAGE, PrefixPool, TierChange
from kvfabric.protocol.transfer import RankTransfer
from kvfabric.serving.kv_directory import KvDirectory
from kvfabric.serving.kv_pool_config import KvPoolConfig
from kvfabric.serving.prefix_placement import (
    OWN_HOST,
    Placement,
    place_prompt,
    stripe_end,
    usable_blocks,
)
from kvfabric.serving.router import Router


@dataclass(slots=True, kw_only=True)
class PoolCounts:
    """What became of the prompt tokens of completed prefills, and what was moved for it.

    Tokens count where they were found; bytes are those of fetches that were completed.

    Attributes:
        num_prompts: prefills completed on prefill (or aggregated) workers.
        num_prompt_tokens: their tokens; all of them, found or computed.
        hbm_tokens: found in the worker's HBM.
        host_tokens: read from the host memory of the worker's server.
        remote_tokens: fetched from the host memory of another server.
        storage_tokens: fetched from storage.
        host_bytes: bytes read from own host memories.
        remote_bytes: bytes fetched from other servers over the fabric.
        storage_bytes: bytes fetched from storage.
        num_fetches: fetches begun, of any source.
        num_fetch_fallbacks: fetches given up or cut short, whose prompts were queued again.
        num_handed_back_tokens: tokens that decode has written to host memory.
        handed_back_bytes: their bytes.
    """

    num_prompts: int = 0
    num_prompt_tokens: int = 0
    hbm_tokens: int = 0
    host_tokens: int = 0
    remote_tokens: int = 0
    storage_tokens: int = 0
    host_bytes: int = 0
    remote_bytes: int = 0
    storage_bytes: int = 0
    num_fetches: int = 0
    num_fetch_fallbacks: int = 0
    num_handed_back_tokens: int = 0
    handed_back_bytes: int = 0

    @property
    def hit_tokens(self) -> int:
        """Return the prompt tokens that were not computed."""
        return self.hbm_tokens + self.host_tokens + self.remote_tokens + self.storage_tokens

    @property
    def hit_rate(self) -> Fraction:
        """Return the share of prompt tokens that were not computed; 0 before any prefill."""
        return Fraction(self.hit_tokens, self.num_prompt_tokens or 1)


@dataclass(frozen=True, slots=True)
class FetchPart:
    """A run of prompt tokens that is read from one place.

    Attributes:
        source: ``OWN_HOST``, another server, or ``STORAGE``.
        num_tokens: length of the run.
        rank_bytes: its bytes on each rank of the worker.
    """

    source: int
    num_tokens: int
    rank_bytes: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes on all ranks."""
        return sum(self.rank_bytes)


class KvPool:
    """The memory tiers of a cluster, and the control's view of them.

    HBM is an estimate, the blocks that the worker computed or fetched last: its true hits are known
    when it reserves blocks. The view of host memories and storage may lag; what a fetch really
    finds is asked when it begins.
    """

    __slots__ = (
        "_config",
        "_directory",
        "_hbm",
        "_live_workers",
        "_num_begun",
        "_num_prefill",
        "_outgoing",
        "_router",
        "_sizes",
        "_tiers",
        "_worker_gpus",
        "counts",
    )

    def __init__(
        self,
        config: KvPoolConfig,
        worker_gpus: Sequence[tuple[int, ...]],
        router: Router,
        *,
        num_prefill: int,
        hash_block_tokens: int,
    ) -> None:
        """Start with empty memories.

        Raises:
            ConfigError: not one server per worker, or a placement of other blocks.
        """
        if len(config.worker_servers) != len(worker_gpus):
            raise ConfigError(
                f"the KV pool names the servers of {len(config.worker_servers)} workers, there are"
                f" {len(worker_gpus)}",
                hint="Write one server per worker, decode workers last",
            )
        if config.placement.block_tokens != hash_block_tokens:
            raise ConfigError(
                f"placement of blocks of {config.placement.block_tokens} tokens, the workload"
                f" hashes {hash_block_tokens}",
                hint="Write placement.block_tokens as the workload has it",
            )
        self._config = config
        self._worker_gpus = worker_gpus
        self._router = router
        self._num_prefill = num_prefill
        self._tiers = PrefixPool(
            config.num_servers, config.host, config.storage, policy=config.policy
        )
        self._directory = KvDirectory(
            config.worker_servers[:num_prefill], config.num_servers, lag_ns=config.directory_lag_ns
        )
        self._hbm = [
            LruKeys(config.hbm_blocks) for _ in range(num_prefill if config.hbm_blocks else 0)
        ]
        self._outgoing = [0] * config.num_servers  # bytes under way from each server
        self._sizes = config.rank_bytes_in_turn or (config.rank_bytes,)
        self._num_begun = [0] * len(worker_gpus)  # fetches of each worker
        self._live_workers = [config.worker_servers.count(s) for s in range(config.num_servers)]
        self.counts = PoolCounts()

    # ------------------------------------------------------------------ placing and fetching

    def place(self, num_prompt_tokens: int, keys: BlockKeys, now_ns: int) -> Placement:
        """Choose the worker of a prompt and what it fetches; count it as sent there."""
        num_blocks = usable_blocks(num_prompt_tokens, self._config.placement.block_tokens)
        named = keys.hashes[: min(num_blocks, keys.num_known // keys.ratio)]
        placement = place_prompt(
            self._config.placement,
            num_prompt_tokens,
            self._directory.best_sources(named, now_ns),
            self._router.queued_tokens(now_ns),
            outgoing_bytes=self._outgoing,
            last=self._router.last_prefill,
        )
        self._router.send(placement.worker, placement.num_computed_tokens)
        return placement

    def find(
        self,
        worker: int,
        hashes: Sequence[int],
        far: Sequence[int],
        num_cached: int,
        num_wanted: int,
    ) -> list[FetchPart]:
        """Return what is really there of the tokens ``[num_cached, num_wanted)``, in order.

        Servers share what is not in the worker's own equally, in runs of blocks; what one of them
        no longer has, those after it are asked for.

        Args:
            worker: who reads it.
            hashes: of the prompt.
            far: the other servers, or ``STORAGE``, that were chosen to be read; (): nothing far.
            num_cached: tokens that the worker's HBM holds.
            num_wanted: end of the prefix that was promised, a multiple of the block.
        """
        block_tokens = self._config.placement.block_tokens
        wanted = hashes[: num_wanted // block_tokens]
        first = num_cached // block_tokens
        home = self._config.worker_servers[worker]
        end = self._tiers.match(home, wanted, first)
        parts: list[FetchPart] = []
        rank_bytes = self._sizes[self._num_begun[worker] % len(self._sizes)]
        token = _add_part(parts, rank_bytes, OWN_HOST, num_cached, end * block_tokens)
        for place, server in enumerate(far):
            stop = stripe_end(end, len(wanted), len(far) - place)
            if stop > end:
                end = self._tiers.match(server, wanted[:stop], end)
                token = _add_part(parts, rank_bytes, server, token, end * block_tokens)
        return parts

    def begin(
        self,
        worker: int,
        hashes: Sequence[int],
        parts: Sequence[FetchPart],
        first: int,
        now_ns: int,
    ) -> None:
        """Take in that a worker begins to read these parts, which follow on token ``first``."""
        home = self._config.worker_servers[worker]
        block_tokens = self._config.placement.block_tokens
        for part in parts:
            end = first + part.num_tokens
            run = hashes[first // block_tokens : end // block_tokens]
            source = home if part.source == OWN_HOST else part.source
            self._note(self._tiers.read(home, source, run), now_ns)
            self._count_outgoing(part, part.num_bytes)
            first = end
        self._num_begun[worker] += 1
        self.counts.num_fetches += 1

    def end_part(self, part: FetchPart) -> None:
        """Take in that a part has arrived or was given up."""
        self._count_outgoing(part, -part.num_bytes)

    def _count_outgoing(self, part: FetchPart, num_bytes: int) -> None:
        if part.source >= 0:
            self._outgoing[part.source] += num_bytes

    def home(self, worker: int) -> int:
        """Return the server whose host memory a worker reads."""
        return self._config.worker_servers[worker]

    def flows(self, worker: int, part: FetchPart) -> tuple[RankTransfer, ...]:
        """Return what a part moves over the fabric; () if it does not cross it.

        A rank receives from the GPU that has its own place in the sending server, which is on its
        rail; a server with fewer GPUs takes turns.
        """
        if part.source == OWN_HOST:
            return ()
        senders = (
            self._config.storage_gpus
            if part.source == STORAGE
            else self._config.server_gpus[part.source]
        )
        if not senders:
            return ()
        place_of = {gpu: i for i, gpu in enumerate(self._config.server_gpus[self.home(worker)])}
        receivers = enumerate(zip(self._worker_gpus[worker], part.rank_bytes, strict=True))
        return tuple(
            RankTransfer(senders[place_of.get(gpu, rank) % len(senders)], gpu, size)
            for rank, (gpu, size) in receivers
            if size
        )

    # ------------------------------------------------------------------ what tiers hold

    def computed(self, worker: int, keys: BlockKeys, num_tokens: int, now_ns: int) -> None:
        """Take in that a worker has the first ``num_tokens`` tokens of a request in HBM."""
        run = self._blocks(keys, num_tokens)
        self._hold_in_hbm(worker, run, now_ns)
        self._note(self._tiers.computed(self.home(worker), run), now_ns)

    def generated(
        self, worker: int, keys: BlockKeys, num_prompt_tokens: int, num_tokens: int, now_ns: int
    ) -> None:
        """Take in that a worker is done with a request whose context has ``num_tokens`` tokens."""
        run = self._blocks(keys, num_tokens)
        first = num_prompt_tokens // self._config.placement.block_tokens
        if first >= len(run):
            return  # nothing new that another request could name
        if worker < self._num_prefill:
            self._hold_in_hbm(worker, run, now_ns)
        if self._config.hands_back:
            self._hand_back(worker, run, first, now_ns)

    def _hand_back(self, worker: int, run: Sequence[int], first: int, now_ns: int) -> None:
        block_tokens = self._config.placement.block_tokens
        self._note(self._tiers.computed(self.home(worker), run[first:]), now_ns)
        self.counts.num_handed_back_tokens += (len(run) - first) * block_tokens
        ends = (first * block_tokens, len(run) * block_tokens)
        before, after = (sum(self._config.rank_bytes(end)) for end in ends)
        self.counts.handed_back_bytes += after - before

    def _blocks(self, keys: BlockKeys, num_tokens: int) -> Sequence[int]:
        """Return the full blocks of a context that another request can name."""
        num_blocks = num_tokens // self._config.placement.block_tokens
        return keys.hashes[: min(num_blocks, keys.num_known // keys.ratio)]

    def _hold_in_hbm(self, worker: int, run: Sequence[int], now_ns: int) -> None:
        if not self._hbm:
            return
        added, dropped = self._hbm[worker].put(run)
        if added or dropped:
            self._directory.on_hbm_change(worker, added, dropped, now_ns)
            self._note(self._tiers.evicted(self.home(worker), dropped), now_ns)

    def _note(self, changes: Iterable[TierChange], now_ns: int) -> None:
        for change in changes:
            self._directory.on_tier_change(change, now_ns)

    # ------------------------------------------------------------------ workers that come and go

    def lose(self, worker: int, now_ns: int) -> int | None:
        """Take in that a worker died; return its server if that died with it."""
        if worker < len(self._hbm):
            self._directory.on_hbm_change(worker, (), self._hbm[worker].clear(), now_ns)
        server = self.home(worker)
        self._live_workers[server] -= 1
        if self._live_workers[server]:
            return None
        self._note(self._tiers.lose_server(server), now_ns)
        return server

    def join(self, worker: int) -> None:
        """Take in that a dead worker is back, empty."""
        self._live_workers[self.home(worker)] += 1

    def check_invariants(self) -> None:
        """Assert those of the parts, and that no server has less than nothing to send."""
        self._tiers.check_invariants()
        assert min(self._outgoing) >= 0


def _add_part(
    parts: list[FetchPart],
    rank_bytes: Callable[[int], Sequence[int]],
    source: int,
    first: int,
    end: int,
) -> int:
    """Add the tokens ``[first, end)``, if there are any, and return where the next ones begin."""
    if end <= first:
        return first
    before, after = rank_bytes(first), rank_bytes(end)
    sizes = tuple([b - a for a, b in zip(before, after, strict=True)])
    parts.append(FetchPart(source, end - first, sizes))
    return end
