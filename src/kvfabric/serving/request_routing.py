"""Where requests go: to their first worker, to a decode worker, and off all of them.

The lowest of the three layers of a coordinator, see ``coordinator``. It holds what the control
knows of requests in flight.
"""

from kvfabric.kvcache.block_keys import block_keys
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    EndRequest,
    IncomingRequest,
    SendCommand,
)
from kvfabric.serving.commands import Cancel
from kvfabric.serving.coordinator_config import CoordinatorConfig, HandoffMode, Reservation
from kvfabric.serving.handoff import Handoff
from kvfabric.serving.handoff_book import HandoffBook
from kvfabric.serving.kv_pool import KvPool, PoolCounts
from kvfabric.serving.prefix_fetch import PrefixFetches
from kvfabric.serving.request import Goal
from kvfabric.serving.router import Router
from kvfabric.serving.timeline import NO_WORKER, Timeline


def _fetches(config: CoordinatorConfig, router: Router) -> PrefixFetches | None:
    if config.pool is None:
        return None
    pool = KvPool(
        config.pool,
        config.worker_gpus,
        router,
        num_prefill=config.num_prefill,
        hash_block_tokens=config.hash_block_tokens,
    )
    return PrefixFetches(config.pool, pool)


class RequestRouting:
    """Requests in flight, and the commands that bring them to workers and take them away.

    Attributes:
        counts: ended requests by outcome.
        num_arrived: requests that have arrived.
        num_expired: hand-offs given up at their deadline, whatever became of the requests.
        num_restarts: times a request started anew because its worker died.
        observe: of the router: takes in that a worker has changed.
        pool_counts: where prompt tokens were found; zeros without a pool.

    Invariants:
        I1. arrived = finished + rejected + aborted + failed + in flight (INV-1).
        I2. only requests in flight have a fetch or a hand-off, and it is under way (INV-10).
        I3. no request in flight is on a lost worker.
    """

    __slots__ = (
        "_book",
        "_config",
        "_fetches",
        "_live",
        "_router",
        "counts",
        "num_arrived",
        "num_expired",
        "num_restarts",
        "observe",
        "pool_counts",
    )

    def __init__(self, config: CoordinatorConfig, router: Router) -> None:
        """Make the control of an idle cluster."""
        self._config = config
        self._router = router
        self.observe = router.observe
        self._live: dict[int, Timeline] = {}
        self._book = HandoffBook(config)
        self._fetches = _fetches(config, router)
        self.pool_counts = PoolCounts() if self._fetches is None else self._fetches.pool.counts
        self.num_arrived = 0
        self.num_expired = 0
        self.num_restarts = 0
        self.counts = dict.fromkeys(Outcome, 0)

    @property
    def num_in_flight(self) -> int:
        """Return the requests that have arrived and not ended."""
        return len(self._live)

    @property
    def is_drained(self) -> bool:
        """Return whether every request has ended."""
        return not self._live

    @property
    def num_layer_groups(self) -> int:
        """Return in how many parts a driver reports a prefill step; 0 if in none."""
        config = self._config
        is_streaming = config.num_decode > 0 and config.handoff is HandoffMode.LAYER_WISE
        return config.num_layer_groups if is_streaming else 0

    @property
    def signal_interval_ns(self) -> int:
        """Return for how long the router sees the same reports."""
        return self._router.signal_interval_ns

    # ------------------------------------------------------------------ requests

    def arrive(self, request: IncomingRequest, now_ns: int) -> list[Action]:
        """Route a request, or reject one that can never run."""
        self.num_arrived += 1
        timeline = Timeline(
            request_id=request.request_id,
            arrival_ns=now_ns,
            num_prompt_tokens=request.num_prompt_tokens,
        )
        self._live[request.request_id] = timeline
        room = self._config.max_model_len - request.num_prompt_tokens
        if room < 1:
            return [self._end(timeline, Outcome.REJECTED)]
        timeline.max_tokens = min(request.max_tokens, room)
        timeline.keys = block_keys(
            request.request_id,
            request.block_hashes,
            num_prompt_tokens=request.num_prompt_tokens,
            hash_block_tokens=self._config.hash_block_tokens,
            block_size=self._config.block_size,
            namespace=request.namespace,
        )
        return self._route(timeline, now_ns)

    def _route(self, timeline: Timeline, now_ns: int) -> list[Action]:
        """Give a request that is nowhere to its first worker."""
        config = self._config
        if timeline.first_token_ns is None:
            timeline.routed_ns = now_ns
        if config.num_decode and config.reservation is Reservation.DECODE_FIRST:
            return self._to_decode(timeline, NO_WORKER, now_ns)
        return self._to_prefill(timeline, now_ns)

    def _to_prefill(self, timeline: Timeline, now_ns: int) -> list[Action]:
        if not self._router.has_prefill:
            return self._give_up(timeline, Outcome.FAILED, now_ns)
        num_external_tokens = 0
        if self._fetches is not None:
            worker, num_external_tokens = self._fetches.place(timeline, now_ns)
        else:
            worker = self._router.choose_prefill(
                timeline.num_prompt_tokens,
                timeline.keys.hashes,
                self._config.hash_block_tokens,
                now_ns,
            )
        timeline.goal = Goal.PREFILL if self._config.num_decode else Goal.GENERATE
        handoff = self._book.by_request.get(timeline.request_id)
        if handoff is None:
            timeline.worker = worker
        else:
            handoff.source = worker
        command = timeline.add_request(timeline.goal, num_external_tokens=num_external_tokens)
        return [SendCommand(worker, command)]

    def _to_decode(self, timeline: Timeline, source: int, now_ns: int) -> list[Action]:
        """Open a hand-off: ask a decode worker for the blocks of the whole prompt."""
        if not self._router.has_decode:
            return self._give_up(timeline, Outcome.FAILED, now_ns)
        num_tokens = timeline.num_prompt_tokens
        destination = self._router.choose_decode(num_tokens, now_ns, source, self._book.num_to)
        self._book.open(timeline.request_id, num_tokens, source, destination)
        timeline.worker = destination
        return [SendCommand(destination, timeline.add_request(Goal.DECODE))]

    # ------------------------------------------------------------------ out of the cluster

    def cancel(self, request_id: int, now_ns: int) -> list[Action]:
        """Abort a request in whatever state it is; one that has ended is left alone."""
        timeline = self._live.get(request_id)
        return [] if timeline is None else self._give_up(timeline, Outcome.ABORTED, now_ns)

    def _give_up(self, timeline: Timeline, outcome: Outcome, now_ns: int) -> list[Action]:
        """Take a request off every worker that has it, and end it."""
        handoff = self._book.by_request.get(timeline.request_id)
        actions = self._stop_fetch(timeline.request_id)
        if handoff is not None:
            actions += self._cancel_handoff(handoff)
        elif timeline.worker != NO_WORKER and not timeline.is_leaving:
            actions.append(SendCommand(timeline.worker, Cancel(timeline.request_id)))
        timeline.finished_ns = now_ns
        actions.append(self._end(timeline, outcome))
        return actions

    def _end(self, timeline: Timeline, outcome: Outcome) -> EndRequest:
        del self._live[timeline.request_id]
        self.counts[outcome] += 1
        return EndRequest(timeline.record(outcome))

    def _stop_fetch(self, request_id: int) -> list[Action]:
        return [] if self._fetches is None else self._fetches.stop(request_id)

    def _cancel_handoff(self, handoff: Handoff, lost: int = NO_WORKER) -> list[Action]:
        """Stop a hand-off and take the request off both workers, but for a lost one."""
        actions: list[Action] = [CancelTransfer(i) for i in self._book.cancel(handoff)]
        workers = [w for w in (handoff.source, handoff.destination) if w not in {NO_WORKER, lost}]
        return actions + [SendCommand(w, Cancel(handoff.request_id)) for w in workers]

    # ------------------------------------------------------------------ what others may ask

    def unfinished(self) -> list[RequestRecord]:
        """Return records of the requests still in flight, by id, without ending them."""
        return [self._live[i].record(Outcome.UNFINISHED) for i in sorted(self._live)]

    def awaits_queued(self, request_id: int, worker: int) -> bool:
        """Return whether this is the worker that counts for when a request is read."""
        timeline = self._live.get(request_id)
        if timeline is None or timeline.first_token_ns is not None:
            return False
        return worker < self._config.num_prefill or timeline.goal is Goal.GENERATE

    def on_queued(self, request_id: int, queued_ns: int) -> None:
        """Note when a worker's engine reads a request that it was sent, which may be later."""
        self._live[request_id].queued_ns = queued_ns

    # ------------------------------------------------------------------ checking

    def check_invariants(self) -> None:
        """Assert I1 to I3."""
        assert self.num_arrived == sum(self.counts.values()) + len(self._live), "I1 (INV-1)"
        assert self._book.by_request.keys() <= self._live.keys(), "I2"
        self._book.check_invariants()
        if self._fetches is not None:
            self._fetches.check_invariants()
            assert self._fetches.requests() <= self._live.keys(), "I2"
        for timeline in self._live.values():
            assert not self._router.is_lost(timeline.worker), "I3"
        for handoff in self._book.by_request.values():
            assert not self._router.is_lost(handoff.source), "I3"
            assert not self._router.is_lost(handoff.destination), "I3"
