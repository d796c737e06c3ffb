"""What moves between workers: KV cache of hand-offs and fetched prefixes, and their deadlines.

The middle of the three layers of a coordinator, see ``coordinator``.
"""

from kvfabric.protocol.record import Outcome
from kvfabric.protocol.transfer import KvPiece
from kvfabric.serving.actions import Action, SendCommand, StartTransfer
from kvfabric.serving.commands import KvArrived, Prefilled, ReleaseHeld
from kvfabric.serving.coordinator_config import CoordinatorConfig, HandoffMode, OnExpiry
from kvfabric.serving.handoff import Handoff, HandoffState
from kvfabric.serving.prefix_fetch import FIRST_FETCH_TRANSFER
from kvfabric.serving.request import Goal
from kvfabric.serving.request_routing import RequestRouting
from kvfabric.serving.router import Router
from kvfabric.serving.timeline import NO_WORKER, Timeline


class KvMovement(RequestRouting):
    """Follows prompts from the start of their prefill to the acknowledged hand-off.

    Attributes:
        num_broken: hand-offs given up since a transfer failed, whatever became of the requests.
    """

    __slots__ = ("num_broken",)

    def __init__(self, config: CoordinatorConfig, router: Router) -> None:
        """Make the control of an idle cluster."""
        super().__init__(config, router)
        self.num_broken = 0

    # ------------------------------------------------------------------ prompts

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
        if handoff.has_failed:
            return self._break(handoff, now_ns)
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

    def on_transfer_failed(self, transfer_id: int, now_ns: int) -> list[Action]:
        """Give up the hand-off of a transfer that will not complete, as if its time had passed.

        A request that the decode worker is to compute stays at a source that still computes its
        prompt until that is over: the source may be in a step with it, and could not take it back
        if the decode worker were lost too. A transfer that is not under way is ignored, and so is
        one of a fetch, which its deadline ends.
        """
        handoff = self._book.failed(transfer_id)
        if handoff is None:
            return []
        if self._config.on_expiry is OnExpiry.RECOMPUTE and not handoff.is_prefilled:
            return []
        return self._break(handoff, now_ns)

    def _break(self, handoff: Handoff, now_ns: int) -> list[Action]:
        self.num_broken += 1
        return self._give_up_handoff(handoff, now_ns)

    # ------------------------------------------------------------------ fetched prefixes

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

    def _lose_fetch(self, timeline: Timeline, outcome: Outcome, now_ns: int) -> list[Action]:
        """Let a prompt be computed without the prefix under way, or end it if that cannot be."""
        assert self._fetches is not None
        if self._fetches.may_queue_again(timeline):
            return self._fetches.give_up(timeline.request_id)
        return self._give_up(timeline, outcome, now_ns)

    # ------------------------------------------------------------------ deadlines

    @property
    def least_deadline_ns(self) -> int:
        """Return the shortest time from the start of a hand-off's or fetch's lease to its end."""
        config = self._config
        if config.pool is None or config.pool.fetch_deadline_ns is None:
            return config.handoff_deadline_ns
        return min(config.handoff_deadline_ns, config.pool.fetch_deadline_ns)

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
            actions += self._give_up_handoff(handoff, now_ns)
        return actions

    def _give_up_handoff(self, handoff: Handoff, now_ns: int) -> list[Action]:
        """Free the blocks of both sides; abort the request or let it be computed again."""
        timeline = self._live[handoff.request_id]
        if self._config.on_expiry is OnExpiry.FAIL:
            return self._give_up(timeline, Outcome.ABORTED, now_ns)
        actions = self._cancel_handoff(handoff)
        timeline.goal = Goal.GENERATE
        timeline.fetched_ns, timeline.num_fetched_tokens = None, 0
        command = timeline.add_request(timeline.goal)
        return [*actions, SendCommand(handoff.destination, command)]

    def _expire_fetches(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        if self._fetches is not None:
            while (request_id := self._fetches.expired(now_ns)) is not None:
                actions += self._lose_fetch(self._live[request_id], Outcome.ABORTED, now_ns)
        return actions
