"""The cluster's control: routes requests, runs hand-offs, counts how every request ended.

A state machine over events of workers and network. It answers with actions for the driver, which
carries them out without deciding anything. Worker ids: aggregated or prefill workers first, then
decode workers.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from kvfabric.kvcache.block_keys import block_keys
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.transfer import RankTransfer, TransferPlan
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Cancelled,
    Command,
    Finished,
    FirstToken,
    KvArrived,
    Prefilled,
    ReleaseHeld,
    WorkerEvent,
    WorkerSignal,
)
from kvfabric.serving.handoff import Handoff, HandoffState
from kvfabric.serving.request import Goal
from kvfabric.serving.router import Router
from kvfabric.serving.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRequest:
    """A request as a client sends it: no output length (INV-9)."""

    request_id: int
    num_prompt_tokens: int
    max_tokens: int
    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendCommand:
    """Pass a command to a worker's scheduler."""

    worker: int
    command: Command


@dataclass(frozen=True, slots=True)
class StartTransfer:
    """Let the network move a hand-off's bytes."""

    transfer: TransferPlan


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Stop moving a hand-off's bytes."""

    transfer_id: int


@dataclass(frozen=True, slots=True)
class EndRequest:
    """A request is over; this is its record."""

    record: RequestRecord


Action = SendCommand | StartTransfer | CancelTransfer | EndRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """What the control needs to know of the cluster.

    Attributes:
        worker_gpus: fabric GPU indices of each worker, in rank order.
        num_decode: the last so many workers only decode; 0 means all are aggregated.
        block_size: tokens per KV block.
        hash_block_tokens: tokens per content hash of the workload, 0 without hashes.
        max_model_len: most tokens of one request.
        rank_bytes: KV bytes each rank sends for a prompt of so many tokens, in rank order.
        handoff_deadline_ns: time from the end of prefill until a hand-off is given up.
    """

    worker_gpus: tuple[tuple[int, ...], ...]
    num_decode: int
    block_size: int
    hash_block_tokens: int
    max_model_len: int
    rank_bytes: Callable[[int], tuple[int, ...]]
    handoff_deadline_ns: int

    @property
    def num_prefill(self) -> int:
        """Return the workers that compute prompts."""
        return len(self.worker_gpus) - self.num_decode


class Coordinator:
    """Follows every request from arrival to its record.

    Invariants:
        I1. arrived = finished + rejected + aborted + in flight (INV-1).
        I2. a hand-off is acknowledged or cancelled, exactly one of them (INV-10).
    """

    __slots__ = ("_config", "_deadlines", "_handoffs", "_live", "_router", "counts", "num_arrived")

    def __init__(self, config: CoordinatorConfig, router: Router) -> None:
        """Make the control of an idle cluster."""
        self._config = config
        self._router = router
        self._live: dict[int, Timeline] = {}
        self._handoffs: dict[int, Handoff] = {}
        self._deadlines: list[tuple[int, int]] = []
        self.num_arrived = 0
        self.counts = dict.fromkeys(Outcome, 0)

    @property
    def num_in_flight(self) -> int:
        """Return the requests that have arrived and not ended."""
        return len(self._live)

    @property
    def is_drained(self) -> bool:
        """Return whether every request has ended."""
        return not self._live

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
        )
        timeline.routed_ns = now_ns
        timeline.worker = self._router.choose_prefill(
            request.num_prompt_tokens,
            request.block_hashes,
            self._config.hash_block_tokens,
            now_ns,
        )
        goal = Goal.PREFILL if self._config.num_decode else Goal.GENERATE
        return [self._add(timeline, timeline.worker, goal)]

    def _add(self, timeline: Timeline, worker: int, goal: Goal) -> SendCommand:
        command = AddRequest(
            request_id=timeline.request_id,
            num_prompt_tokens=timeline.num_prompt_tokens,
            max_tokens=timeline.max_tokens,
            goal=goal,
            keys=timeline.keys,
        )
        return SendCommand(worker, command)

    def cancel(self, request_id: int, now_ns: int) -> list[Action]:
        """Abort a request in whatever state it is; one that has ended is left alone."""
        timeline = self._live.get(request_id)
        if timeline is None:
            return []
        handoff = self._handoffs.get(request_id)
        actions = [] if handoff is None else self._cancel_handoff(handoff)
        if handoff is None:
            actions.append(SendCommand(timeline.worker, Cancel(request_id)))
        timeline.finished_ns = now_ns
        actions.append(self._end(timeline, Outcome.ABORTED))
        return actions

    def _end(self, timeline: Timeline, outcome: Outcome) -> EndRequest:
        del self._live[timeline.request_id]
        self.counts[outcome] += 1
        return EndRequest(timeline.record(outcome))

    def unfinished(self) -> list[RequestRecord]:
        """Return records of the requests still in flight, by id, without ending them."""
        return [self._live[i].record(Outcome.UNFINISHED) for i in sorted(self._live)]

    # ------------------------------------------------------------------ events of workers

    def on_worker_event(self, worker: int, event: WorkerEvent, now_ns: int) -> list[Action]:
        """Follow what a worker says became of a request; stale news of ended ones is ignored."""
        timeline = self._live.get(event.request_id)
        if timeline is None:
            return []
        match event:
            case Prefilled(_, started_ns, num_cached_tokens):
                timeline.prefill_start_ns = started_ns
                timeline.num_cached_tokens = num_cached_tokens
                timeline.prefill_end_ns = now_ns
                return self._after_prefill(timeline, worker, now_ns)
            case FirstToken():
                timeline.first_token_ns = now_ns
            case Finished(_, num_outputs, num_preemptions):
                timeline.finished_ns = now_ns
                timeline.num_output_tokens = num_outputs
                timeline.num_preemptions += num_preemptions
                return [self._end(timeline, Outcome.FINISHED)]
            case Cancelled():
                pass
        return []

    def _after_prefill(self, timeline: Timeline, worker: int, now_ns: int) -> list[Action]:
        if not self._config.num_decode:
            timeline.reserved_ns = timeline.transferred_ns = now_ns
            timeline.first_token_ns = now_ns
            return []
        destination = self._router.choose_decode(timeline.num_prompt_tokens, now_ns)
        handoff = Handoff(
            timeline.request_id, worker, destination, now_ns + self._config.handoff_deadline_ns
        )
        self._handoffs[timeline.request_id] = handoff
        heapq.heappush(self._deadlines, (handoff.deadline_ns, timeline.request_id))
        timeline.worker = destination
        return [self._add(timeline, destination, Goal.DECODE)]

    # ------------------------------------------------------------------ hand-offs

    def on_reserved(self, request_id: int, now_ns: int) -> list[Action]:
        """Start to move a request's KV cache: its decode blocks are reserved."""
        handoff = self._handoffs[request_id]
        timeline = self._live[request_id]
        handoff.move_to(HandoffState.RESERVED)
        timeline.reserved_ns = now_ns
        transfer = self._transfer(handoff, timeline.num_prompt_tokens)
        timeline.transfer_bytes = transfer.num_bytes
        handoff.move_to(HandoffState.TRANSFERRING)
        return [StartTransfer(transfer)]

    def _transfer(self, handoff: Handoff, num_tokens: int) -> TransferPlan:
        """Rank r of the source sends to rank r of the destination."""
        gpus = self._config.worker_gpus
        ranks = zip(
            gpus[handoff.source],
            gpus[handoff.destination],
            self._config.rank_bytes(num_tokens),
            strict=True,
        )
        parts = tuple(RankTransfer(src, dst, size) for src, dst, size in ranks if size)
        return TransferPlan(handoff.request_id, parts)

    def on_transferred(self, transfer_id: int, now_ns: int) -> list[Action]:
        """Acknowledge a hand-off: release the source, let the destination decode."""
        handoff = self._handoffs.pop(transfer_id)
        handoff.move_to(HandoffState.ACKNOWLEDGED)
        self._live[transfer_id].transferred_ns = now_ns
        return [
            SendCommand(handoff.source, ReleaseHeld(transfer_id)),
            SendCommand(handoff.destination, KvArrived(transfer_id)),
        ]

    def _cancel_handoff(self, handoff: Handoff) -> list[Action]:
        is_moving = handoff.state is HandoffState.TRANSFERRING
        handoff.move_to(HandoffState.CANCELLED)
        del self._handoffs[handoff.request_id]
        actions: list[Action] = [CancelTransfer(handoff.request_id)] if is_moving else []
        actions.append(SendCommand(handoff.source, Cancel(handoff.request_id)))
        actions.append(SendCommand(handoff.destination, Cancel(handoff.request_id)))
        return actions

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of a hand-off that is still under way."""
        while self._deadlines:
            deadline_ns, request_id = self._deadlines[0]
            handoff = self._handoffs.get(request_id)
            if handoff is not None and handoff.deadline_ns == deadline_ns:
                return deadline_ns
            heapq.heappop(self._deadlines)
        return None

    def expire(self, now_ns: int) -> list[Action]:
        """Abort the requests whose hand-off has passed its deadline."""
        actions: list[Action] = []
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            actions.extend(self.cancel(self._deadlines[0][1], now_ns))
        return actions

    def check_invariants(self) -> None:
        """Assert I1 and I2."""
        assert self.num_arrived == sum(self.counts.values()) + len(self._live), "I1 (INV-1)"
        assert self._handoffs.keys() <= self._live.keys(), "I2"
        assert not any(handoff.is_over for handoff in self._handoffs.values()), "I2 (INV-10)"
