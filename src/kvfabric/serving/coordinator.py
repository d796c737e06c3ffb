"""The cluster's control: routes requests, runs hand-offs, counts how every request ended.

A state machine over events of workers and network. It answers with actions for the driver, which
carries them out without deciding anything; ``actions`` says what is asked of it. Worker ids:
aggregated or prefill workers first, then decode workers.
"""

from kvfabric.kvcache.block_keys import block_keys
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.transfer import KvPiece
from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    EndRequest,
    IncomingRequest,
    SendCommand,
    StartRead,
    StartTransfer,
)
from kvfabric.serving.commands import (
    Cancel,
    Cancelled,
    Finished,
    FirstToken,
    KvArrived,
    Prefilled,
    PrefillStarted,
    ReleaseHeld,
    WorkerEvent,
    WorkerSignal,
)
from kvfabric.serving.coordinator_config import (
    CoordinatorConfig,
    HandoffMode,
    OnExpiry,
    Reservation,
)
from kvfabric.serving.handoff import Handoff, HandoffState
from kvfabric.serving.handoff_book import HandoffBook
from kvfabric.serving.kv_pool import KvPool, PoolCounts
from kvfabric.serving.prefix_fetch import FIRST_FETCH_TRANSFER, PrefixFetches
from kvfabric.serving.request import Goal
from kvfabric.serving.router import Router
from kvfabric.serving.timeline import NO_WORKER, Timeline

__all__ = [
    "Action",
    "CancelTransfer",
    "Coordinator",
    "CoordinatorConfig",
    "EndRequest",
    "IncomingRequest",
    "SendCommand",
    "StartRead",
    "StartTransfer",
]


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


class Coordinator:
    """Follows every request from arrival to its record.

    Attributes:
        counts: ended requests by outcome.
        num_arrived: requests that have arrived.
        num_expired: hand-offs given up at their deadline, whatever became of the requests.
        num_restarts: times a request started anew because its worker died.
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
        "pool_counts",
    )

    def __init__(self, config: CoordinatorConfig, router: Router) -> None:
        """Make the control of an idle cluster."""
        self._config = config
        self._router = router
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

    def observe(self, worker: int, signal: WorkerSignal, now_ns: int) -> None:
        """Pass on to the router that a worker has changed."""
        self._router.observe(worker, signal, now_ns)

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
        destination = self._router.choose_decode(num_tokens, now_ns)
        self._book.open(timeline.request_id, num_tokens, source, destination)
        timeline.worker = destination
        return [SendCommand(destination, timeline.add_request(Goal.DECODE))]

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

    def unfinished(self) -> list[RequestRecord]:
        """Return records of the requests still in flight, by id, without ending them."""
        return [self._live[i].record(Outcome.UNFINISHED) for i in sorted(self._live)]

    def on_queued(self, request_id: int, worker: int, queued_ns: int) -> None:
        """Note when a worker's engine reads a request that it was sent, which may be later."""
        timeline = self._live.get(request_id)
        is_first = timeline is not None and (
            worker < self._config.num_prefill or timeline.goal is Goal.GENERATE
        )
        if timeline is not None and is_first and timeline.first_token_ns is None:
            timeline.queued_ns = queued_ns

    # ------------------------------------------------------------------ events of workers

    def on_worker_event(self, worker: int, event: WorkerEvent, now_ns: int) -> list[Action]:
        """Follow what a worker says became of a request; stale news of ended ones is ignored."""
        timeline = self._live.get(event.request_id)
        if timeline is None:
            return []
        if timeline.is_leaving:
            has_left = worker == timeline.worker and isinstance(event, Cancelled)
            return self._start_anew(timeline, now_ns) if has_left else []
        if self._fetches is not None and self._fetches.is_leaving(event.request_id, worker):
            return self._fetches.let_go(timeline, event)
        match event:
            case Prefilled():
                return self._prefilled(timeline, worker, event, now_ns)
            case FirstToken():
                if timeline.first_token_ns is None:
                    timeline.first_token_ns = now_ns
            case Finished(_, num_outputs, num_preemptions):
                timeline.finished_ns = now_ns
                timeline.num_output_tokens = num_outputs
                timeline.num_preemptions += num_preemptions
                self._keep_generated(timeline, worker, now_ns)
                return [self._end(timeline, Outcome.FINISHED)]
            case PrefillStarted(_, num_cached_tokens):
                return self._prefill_started(timeline, worker, num_cached_tokens, now_ns)
            case Cancelled():
                pass
        return []

    def _prefill_started(
        self, timeline: Timeline, worker: int, num_cached_tokens: int, now_ns: int
    ) -> list[Action]:
        """Open a layer-wise hand-off; its cached tokens can move at once."""
        if timeline.goal is not Goal.PREFILL or self._config.handoff is HandoffMode.WHOLE_PROMPT:
            return []
        actions: list[Action] = []
        if timeline.request_id not in self._book.by_request:
            actions = self._to_decode(timeline, worker, now_ns)
        handoff = self._book.by_request.get(timeline.request_id)
        if handoff is None or handoff.stream is None:
            return actions
        if self._fetches is not None and self._fetches.keep_back_cached(
            timeline.request_id, num_cached_tokens
        ):
            return actions
        handoff.stream.add_all(num_cached_tokens)
        return actions + self._advance(handoff, timeline, now_ns)

    def _prefilled(
        self, timeline: Timeline, worker: int, event: Prefilled, now_ns: int
    ) -> list[Action]:
        if timeline.first_token_ns is None:
            timeline.prefill_start_ns = event.started_ns
            timeline.num_cached_tokens = event.num_cached_tokens
            timeline.prefill_end_ns = now_ns
        if self._fetches is not None and worker < self._config.num_prefill:
            self._fetches.prefilled(timeline, worker, event.num_cached_tokens, now_ns)
        if timeline.goal is not Goal.PREFILL:
            if timeline.first_token_ns is None:
                timeline.reserved_ns = timeline.transferred_ns = now_ns
                timeline.first_token_ns = now_ns
            return []
        actions: list[Action] = []
        handoff = self._book.by_request.get(timeline.request_id)
        if handoff is None:
            actions = self._to_decode(timeline, worker, now_ns)
            handoff = self._book.by_request.get(timeline.request_id)
            if handoff is None:
                return actions  # no decode worker is left
        self._book.hold(handoff, timeline.num_prompt_tokens, now_ns)
        return actions or self._advance(handoff, timeline, now_ns)

    # ------------------------------------------------------------------ hand-offs

    def on_reserved(self, request_id: int, now_ns: int, num_cached_tokens: int = 0) -> list[Action]:
        """Follow that decode blocks are reserved: let prefill start, or what is computed move.

        Or that blocks for a prefix are, of which the worker has ``num_cached_tokens`` in HBM: let
        the rest be fetched.
        """
        if self._fetches is not None and self._fetches.is_asked(request_id):
            return self._fetches.reserved(self._live[request_id], num_cached_tokens, now_ns)
        handoff = self._book.by_request[request_id]
        timeline = self._live[request_id]
        handoff.move_to(HandoffState.RESERVED)
        if timeline.first_token_ns is None:
            timeline.reserved_ns = now_ns
        if handoff.source == NO_WORKER:
            return self._to_prefill(timeline, now_ns)
        return self._advance(handoff, timeline, now_ns)

    def on_layers_ready(self, request_id: int, piece: KvPiece, now_ns: int) -> list[Action]:
        """Move a piece of KV cache that was just computed, or keep it until blocks are reserved.

        Pieces of requests without a layer-wise hand-off are left alone.
        """
        handoff = self._book.by_request.get(request_id)
        if handoff is None:
            return []
        if self._fetches is not None and self._fetches.keep_back(request_id, piece):
            return []
        self._book.ready(handoff, piece)
        return self._advance(handoff, self._live[request_id], now_ns)

    def on_transferred(self, transfer_id: int, now_ns: int) -> list[Action]:
        """Follow that a transfer or read has arrived.

        The last one acknowledges its hand-off, or lets the rest of the prompt be computed.
        """
        if transfer_id >= FIRST_FETCH_TRANSFER:
            return self._on_fetched(transfer_id, now_ns)
        handoff = self._book.arrived(transfer_id)
        return self._advance(handoff, self._live[handoff.request_id], now_ns)

    def _advance(self, handoff: Handoff, timeline: Timeline, now_ns: int) -> list[Action]:
        """Move what can move; if all has arrived, release the source and let the other decode."""
        transfer = self._book.send(handoff, timeline.num_prompt_tokens)
        if transfer is not None:
            timeline.transfer_bytes += transfer.num_bytes
            return [StartTransfer(transfer)]
        if not handoff.is_complete:
            return []
        self._book.acknowledge(handoff)
        timeline.goal = Goal.DECODE
        if timeline.first_token_ns is None:
            timeline.transferred_ns = now_ns
        return [
            SendCommand(handoff.source, ReleaseHeld(handoff.request_id)),
            SendCommand(handoff.destination, KvArrived(handoff.request_id)),
        ]

    def _on_fetched(self, transfer_id: int, now_ns: int) -> list[Action]:
        assert self._fetches is not None
        fetch = self._fetches.arrived(transfer_id)
        if fetch.moving:
            return []
        timeline = self._live[fetch.request_id]
        if timeline.first_token_ns is None:
            timeline.fetched_ns = now_ns
            timeline.num_fetched_tokens = sum(part.num_tokens for part in fetch.parts)
        actions = self._fetches.completed(fetch)
        handoff = self._book.by_request.get(fetch.request_id)
        if handoff is None or handoff.stream is None:
            return actions
        handoff.stream.add_all(fetch.num_ready_tokens)
        for piece in fetch.pieces:
            self._book.ready(handoff, piece)
        return actions + self._advance(handoff, timeline, now_ns)

    def _expire_fetches(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        if self._fetches is not None:
            while (request_id := self._fetches.expired(now_ns)) is not None:
                actions += self._lose_fetch(self._live[request_id], Outcome.ABORTED, now_ns)
        return actions

    def _lose_fetch(self, timeline: Timeline, outcome: Outcome, now_ns: int) -> list[Action]:
        """Let a prompt be computed without the prefix under way, or end it if that cannot be."""
        assert self._fetches is not None
        if self._fetches.may_queue_again(timeline):
            return self._fetches.give_up(timeline.request_id)
        return self._give_up(timeline, outcome, now_ns)

    def _stop_fetch(self, request_id: int) -> list[Action]:
        return [] if self._fetches is None else self._fetches.stop(request_id)

    def _keep_generated(self, timeline: Timeline, worker: int, now_ns: int) -> None:
        """Note what of a finished request others can use; its last token has no KV cache."""
        if self._fetches is not None:
            num_prompt = timeline.num_prompt_tokens
            num_tokens = num_prompt + timeline.num_output_tokens - 1
            self._fetches.pool.generated(worker, timeline.keys, num_prompt, num_tokens, now_ns)

    def _cancel_handoff(self, handoff: Handoff, lost: int = NO_WORKER) -> list[Action]:
        """Stop a hand-off and take the request off both workers, but for a lost one."""
        actions: list[Action] = [CancelTransfer(i) for i in self._book.cancel(handoff)]
        workers = [w for w in (handoff.source, handoff.destination) if w not in {NO_WORKER, lost}]
        return actions + [SendCommand(w, Cancel(handoff.request_id)) for w in workers]

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of a hand-off or fetch that is still under way."""
        deadline_ns = self._book.next_deadline_ns()
        if self._fetches is None:
            return deadline_ns
        fetch_ns = self._fetches.next_deadline_ns()
        if deadline_ns is None or fetch_ns is None:
            return fetch_ns if deadline_ns is None else deadline_ns
        return min(deadline_ns, fetch_ns)

    def expire(self, now_ns: int) -> list[Action]:
        """Give up the hand-offs that have passed their deadline: both sides lose their blocks.

        Their requests are aborted, or computed by the decode worker from the prompt on; no token
        ever comes from blocks that were given back. A fetch that is late only costs its time.
        """
        actions = self._expire_fetches(now_ns)
        while (handoff := self._book.expired(now_ns)) is not None:
            self.num_expired += 1
            timeline = self._live[handoff.request_id]
            if self._config.on_expiry is OnExpiry.FAIL:
                actions += self._give_up(timeline, Outcome.ABORTED, now_ns)
                continue
            actions += self._cancel_handoff(handoff)
            timeline.goal = Goal.GENERATE
            timeline.fetched_ns, timeline.num_fetched_tokens = None, 0
            command = timeline.add_request(timeline.goal)
            actions.append(SendCommand(handoff.destination, command))
        return actions

    # ------------------------------------------------------------------ workers that come and go

    def on_worker_lost(self, worker: int, now_ns: int) -> list[Action]:
        """Start anew, or fail, every request that a dead worker has even a part of.

        Its output is lost. It starts from its prompt as soon as the other worker of its hand-off,
        if there is one, has let go of it.
        """
        self._router.lose(worker)
        orphans = set[int]() if self._fetches is None else self._fetches.lose(worker, now_ns)
        actions: list[Action] = []
        for request_id in sorted(self._live):
            timeline = self._live[request_id]
            handoff = self._book.by_request.get(request_id)
            if handoff is not None and worker in {handoff.source, handoff.destination}:
                actions += self._restart(timeline, handoff, worker, now_ns)
            elif timeline.worker == worker and timeline.is_leaving:
                actions += self._start_anew(timeline, now_ns)
            elif timeline.worker == worker:
                actions += self._restart(timeline, None, worker, now_ns)
            elif request_id in orphans:
                actions += self._lose_fetch(timeline, Outcome.FAILED, now_ns)
        return actions

    def on_worker_joined(self, worker: int, now_ns: int) -> None:
        """Use a worker again; it is new: idle, its prefix cache empty."""
        del now_ns
        self._router.join(worker)
        if self._fetches is not None:
            self._fetches.pool.join(worker)

    def _restart(
        self, timeline: Timeline, handoff: Handoff | None, lost: int, now_ns: int
    ) -> list[Action]:
        """Take a request off the worker that survived, and start it anew or fail it."""
        actions = self._stop_fetch(timeline.request_id)
        timeline.worker = NO_WORKER
        if handoff is not None:
            actions += self._cancel_handoff(handoff, lost)
            is_source_lost = handoff.source == lost
            timeline.worker = handoff.destination if is_source_lost else handoff.source
        if timeline.num_restarts >= self._config.max_restarts:
            timeline.finished_ns = now_ns
            actions.append(self._end(timeline, Outcome.FAILED))
            return actions
        timeline.num_restarts += 1
        self.num_restarts += 1
        timeline.forget_attempt()
        timeline.is_leaving = timeline.worker != NO_WORKER
        return actions if timeline.is_leaving else actions + self._start_anew(timeline, now_ns)

    def _start_anew(self, timeline: Timeline, now_ns: int) -> list[Action]:
        timeline.is_leaving = False
        timeline.worker = NO_WORKER
        return self._route(timeline, now_ns)

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
