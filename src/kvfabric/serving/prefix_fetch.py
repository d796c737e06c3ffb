"""Fetches of prefixes under way: from the choice of a worker to the end of its prefill."""

import heapq
from dataclasses import dataclass, field
from enum import Enum

from kvfabric.kvcache.tiers import STORAGE
from kvfabric.protocol.transfer import KvPiece, TransferPlan
from kvfabric.serving.actions import Action, CancelTransfer, SendCommand, StartRead, StartTransfer
from kvfabric.serving.commands import Cancel, Cancelled, Finished, KvArrived, WorkerEvent
from kvfabric.serving.kv_pool import FetchPart, KvPool
from kvfabric.serving.kv_pool_config import FetchMode, KvPoolConfig
from kvfabric.serving.prefix_placement import OWN_HOST
from kvfabric.serving.request import Goal
from kvfabric.serving.timeline import Timeline

FIRST_FETCH_TRANSFER = 1 << 39
"""Ids of fetches, out of the way of hand-offs."""


class FetchState(Enum):
    """Where a fetch is."""

    ASKED = "asked"  # the worker was asked to reserve the blocks of the prompt
    FETCHING = "fetching"  # bytes are under way
    ARRIVED = "arrived"  # all of it is there; the prefill is not over
    LEAVING = "leaving"  # given up; the worker is yet to let go of the request


@dataclass(slots=True, eq=False)
class PrefixFetch:
    """A prefix on its way to a worker.

    Attributes:
        request_id: whose prompt it begins.
        worker: who computes the rest.
        far: the other servers, or ``STORAGE``, chosen to be read, each for a run of blocks; ():
            its own host memory only.
        num_tokens: end of the prefix that the worker was promised.
        is_last_try: if it is cut short again, the whole prompt is computed.
        state: how far it is.
        num_cached_tokens: of the prefix, what was in the worker's HBM already.
        parts: what is read, in order.
        moving: parts under way, by transfer id.
        deadline_ns: when it is given up; None: never.
        num_ready_tokens: tokens of the prefix that a layer-wise hand-off may send when it is there.
        pieces: what was computed behind it meanwhile, for the same hand-off.
        num_left_tokens: once it is given up, tokens of the prefix worth another try.
    """

    request_id: int
    worker: int
    far: tuple[int, ...]
    num_tokens: int
    is_last_try: bool = False
    state: FetchState = FetchState.ASKED
    num_cached_tokens: int = 0
    parts: list[FetchPart] = field(default_factory=list[FetchPart])
    moving: dict[int, FetchPart] = field(default_factory=dict[int, FetchPart])
    deadline_ns: int | None = None
    num_ready_tokens: int = 0
    pieces: list[KvPiece] = field(default_factory=list[KvPiece])
    num_left_tokens: int = 0


class PrefixFetches:
    """All fetches by request, and what a coordinator does about them.

    A fetch that finds less than was promised, that loses its source or passes its deadline is given
    up: its request leaves the worker and is queued there again, for what is left of the prefix, and
    at the second time without any. Only a request that generates where it prefills and whose
    layer-wise fetch has begun cannot be queued again: it ends.

    Invariants:
        I1. bytes are under way exactly while a fetch is ``FETCHING``.
        I2. a transfer under way belongs to one fetch.
    """

    __slots__ = ("_by_request", "_config", "_deadlines", "_moving", "_num_transfers", "pool")

    def __init__(self, config: KvPoolConfig, pool: KvPool) -> None:
        """Start with no fetch."""
        self._config = config
        self.pool = pool
        self._by_request: dict[int, PrefixFetch] = {}
        self._moving: dict[int, PrefixFetch] = {}
        self._deadlines: list[tuple[int, int]] = []  # (deadline, request id), some outdated
        self._num_transfers = 0

    # ------------------------------------------------------------------ what others may ask

    def is_asked(self, request_id: int) -> bool:
        """Return whether a worker is to reserve blocks for a prefix."""
        return self._is_in(request_id, FetchState.ASKED)

    def is_fetching(self, request_id: int) -> bool:
        """Return whether a prefix is on its way."""
        return self._is_in(request_id, FetchState.FETCHING)

    def is_leaving(self, request_id: int, worker: int) -> bool:
        """Return whether a request is to leave this worker and be queued there again."""
        return (
            self._is_in(request_id, FetchState.LEAVING)
            and self._by_request[request_id].worker == worker
        )

    def _is_in(self, request_id: int, state: FetchState) -> bool:
        fetch = self._by_request.get(request_id)
        return fetch is not None and fetch.state is state

    # ------------------------------------------------------------------ the way of one fetch

    def place(self, timeline: Timeline, now_ns: int) -> tuple[int, int]:
        """Return the worker of a prompt, and the tokens of its prefix that are to be fetched."""
        request_id, num_prompt_tokens = timeline.request_id, timeline.num_prompt_tokens
        placement = self.pool.place(num_prompt_tokens, timeline.keys, now_ns)
        if not placement.fetches:
            return placement.worker, 0
        far = tuple([fetch.source for fetch in placement.fetches if fetch.source != OWN_HOST])
        num_tokens = num_prompt_tokens - placement.num_computed_tokens
        self._by_request[request_id] = PrefixFetch(request_id, placement.worker, far, num_tokens)
        return placement.worker, num_tokens

    def reserved(self, timeline: Timeline, num_cached_tokens: int, now_ns: int) -> list[Action]:
        """Begin to read what is there of a prefix, for which the worker has blocks now."""
        fetch = self._by_request[timeline.request_id]
        hashes = timeline.keys.hashes
        num_cached_tokens = min(num_cached_tokens, fetch.num_tokens)
        parts = self.pool.find(fetch.worker, hashes, fetch.far, num_cached_tokens, fetch.num_tokens)
        num_found = num_cached_tokens + sum(part.num_tokens for part in parts)
        if num_found < fetch.num_tokens:
            fetch.num_left_tokens = self._worth_another_try(fetch, num_found, bool(parts))
            return self.give_up(timeline.request_id)
        if not parts:  # all of it is in HBM by now
            del self._by_request[timeline.request_id]
            return [SendCommand(fetch.worker, KvArrived(timeline.request_id))]
        fetch.num_cached_tokens, fetch.parts = num_cached_tokens, parts
        self.pool.begin(fetch.worker, hashes, parts, num_cached_tokens, now_ns)
        return self._start(fetch, now_ns)

    def _worth_another_try(self, fetch: PrefixFetch, num_found: int, has_parts: bool) -> int:
        block_tokens = self._config.placement.block_tokens
        return (
            num_found // block_tokens * block_tokens if has_parts and not fetch.is_last_try else 0
        )

    def _start(self, fetch: PrefixFetch, now_ns: int) -> list[Action]:
        fetch.state = FetchState.FETCHING
        if self._config.fetch_deadline_ns is not None:
            fetch.deadline_ns = now_ns + self._config.fetch_deadline_ns
            heapq.heappush(self._deadlines, (fetch.deadline_ns, fetch.request_id))
        is_layer_wise = self._config.fetch_mode is FetchMode.LAYER_WISE
        actions = [self._move(fetch, part, is_awaited=is_layer_wise) for part in fetch.parts]
        if is_layer_wise:
            actions.append(SendCommand(fetch.worker, KvArrived(fetch.request_id)))
        return actions

    def _move(self, fetch: PrefixFetch, part: FetchPart, *, is_awaited: bool) -> Action:
        transfer_id = FIRST_FETCH_TRANSFER + self._num_transfers
        self._num_transfers += 1
        fetch.moving[transfer_id] = part
        self._moving[transfer_id] = fetch
        awaited_by = fetch.request_id if is_awaited else None
        flows = self.pool.flows(fetch.worker, part)
        if flows:
            return StartTransfer(TransferPlan(transfer_id, flows), awaited_by)
        place = STORAGE if part.source == STORAGE else self.pool.home(fetch.worker)
        return StartRead(transfer_id, place, part.num_bytes, awaited_by)

    def arrived(self, transfer_id: int) -> PrefixFetch:
        """Count a part as there and return its fetch, which may have more under way.

        Raises:
            KeyError: it was cancelled or never started.
        """
        fetch = self._moving.pop(transfer_id)
        self.pool.end_part(fetch.moving.pop(transfer_id))
        if not fetch.moving:
            fetch.state = FetchState.ARRIVED
        return fetch

    def completed(self, fetch: PrefixFetch) -> list[Action]:
        """Let the rest of a prompt be computed, all of whose prefix is there."""
        if self._config.fetch_mode is FetchMode.LAYER_WISE:
            return []  # it may run already
        return [SendCommand(fetch.worker, KvArrived(fetch.request_id))]

    def keep_back(self, request_id: int, piece: KvPiece) -> bool:
        """Keep a computed piece until the prefix before it is there; return whether it is kept."""
        fetch = self._by_request.get(request_id)
        if fetch is None or fetch.state is FetchState.ARRIVED:
            return False
        fetch.pieces.append(piece)
        return True

    def keep_back_cached(self, request_id: int, num_tokens: int) -> bool:
        """Do the same for the cached tokens of a prompt whose prefill starts."""
        if not self.is_fetching(request_id):
            return False
        self._by_request[request_id].num_ready_tokens = num_tokens
        return True

    # ------------------------------------------------------------------ giving up

    def give_up(self, request_id: int) -> list[Action]:
        """Stop a fetch and take its request off the worker, to be queued there again."""
        fetch = self._by_request[request_id]
        actions = self._cancel(fetch)
        fetch.state = FetchState.LEAVING
        fetch.pieces.clear()
        self.pool.counts.num_fetch_fallbacks += 1
        return [*actions, SendCommand(fetch.worker, Cancel(request_id))]

    def _cancel(self, fetch: PrefixFetch) -> list[Action]:
        actions: list[Action] = [CancelTransfer(transfer_id) for transfer_id in fetch.moving]
        for transfer_id, part in fetch.moving.items():
            del self._moving[transfer_id]
            self.pool.end_part(part)
        fetch.moving = {}
        fetch.deadline_ns = None
        return actions

    def let_go(self, timeline: Timeline, event: WorkerEvent) -> list[Action]:
        """Queue a request again at the worker that says it is gone; other news is outdated."""
        if not isinstance(event, Cancelled | Finished):
            return []
        fetch = self._by_request.pop(timeline.request_id)
        num_tokens = fetch.num_left_tokens
        if num_tokens:
            self._by_request[timeline.request_id] = PrefixFetch(
                timeline.request_id, fetch.worker, fetch.far, num_tokens, is_last_try=True
            )
        command = timeline.add_request(timeline.goal, num_external_tokens=num_tokens)
        return [SendCommand(fetch.worker, command)]

    def stop(self, request_id: int) -> list[Action]:
        """Forget a fetch, if there is one, of a request that is taken off its worker."""
        fetch = self._by_request.pop(request_id, None)
        return [] if fetch is None else self._cancel(fetch)

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of a fetch that is still under way."""
        deadlines, by_request = self._deadlines, self._by_request
        while deadlines:
            deadline_ns, request_id = deadlines[0]
            fetch = by_request.get(request_id)
            is_late = fetch is not None and fetch.deadline_ns == deadline_ns
            if is_late and self.is_fetching(request_id):
                return deadline_ns
            heapq.heappop(deadlines)
        return None

    def expired(self, now_ns: int) -> int | None:
        """Return the request whose fetch has passed its deadline, the earliest first, or None."""
        deadline_ns = self.next_deadline_ns()
        if deadline_ns is None or deadline_ns > now_ns:
            return None
        return self._deadlines[0][1]

    def may_queue_again(self, timeline: Timeline) -> bool:
        """Return whether a request may be queued again although its fetch has begun.

        Not if the worker may have run it already and would have sampled tokens for it: with two
        steps out, a request that the second one preempted is gone at once when it is cancelled, and
        the first may still sample a token under the same id after it was added again.
        """
        is_before = self._config.fetch_mode is FetchMode.BEFORE
        return is_before or timeline.goal is Goal.PREFILL

    # ------------------------------------------------------------------ what workers did

    def prefilled(self, timeline: Timeline, worker: int, num_cached: int, now_ns: int) -> None:
        """Count where the tokens of a prompt came from, and what the worker holds now."""
        fetch = self._by_request.pop(timeline.request_id, None)
        counts = self.pool.counts
        counts.num_prompts += 1
        counts.num_prompt_tokens += timeline.num_prompt_tokens
        counts.hbm_tokens += num_cached
        if fetch is not None:
            assert fetch.state is FetchState.ARRIVED, "computed behind a prefix that is not there"
            for part in fetch.parts:
                counts.hbm_tokens -= part.num_tokens
                self._count(part)
        self.pool.computed(worker, timeline.keys, timeline.num_prompt_tokens, now_ns)

    def _count(self, part: FetchPart) -> None:
        counts = self.pool.counts
        if part.source == OWN_HOST:
            counts.host_tokens += part.num_tokens
            counts.host_bytes += part.num_bytes
        elif part.source == STORAGE:
            counts.storage_tokens += part.num_tokens
            counts.storage_bytes += part.num_bytes
        else:
            counts.remote_tokens += part.num_tokens
            counts.remote_bytes += part.num_bytes

    def lose(self, worker: int, now_ns: int) -> set[int]:
        """Take in that a worker died; return the requests that read from its lost server."""
        server = self.pool.lose(worker, now_ns)
        if server is None:
            return set()
        return {
            fetch.request_id
            for fetch in self._moving.values()
            if any(part.source == server for part in fetch.moving.values())
        }

    def check_invariants(self) -> None:
        """Assert I1 and I2."""
        self.pool.check_invariants()
        for request_id, fetch in self._by_request.items():
            assert fetch.request_id == request_id
            assert bool(fetch.moving) == (fetch.state is FetchState.FETCHING), "I1"
            assert all(self._moving[i] is fetch for i in fetch.moving), "I2"
        num_moving = sum(len(fetch.moving) for fetch in self._by_request.values())
        assert len(self._moving) == num_moving, "I2"

    def requests(self) -> set[int]:
        """Return the requests with a fetch, over or under way, whose prefill is not over."""
        return set(self._by_request)
