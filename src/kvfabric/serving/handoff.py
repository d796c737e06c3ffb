"""The life cycle of moving one request's KV cache from a prefill to a decode worker."""

from dataclasses import dataclass
from enum import Enum

from kvfabric.errors import IllegalTransitionError
from kvfabric.serving.streaming import LayerStream


class HandoffState(Enum):
    """States of a hand-off; the last two are final and exclude each other (INV-10)."""

    ASKED = "asked"  # destination asked to reserve the blocks of the whole prompt
    RESERVED = "reserved"  # destination blocks reserved, bytes may move
    TRANSFERRING = "transferring"  # some bytes have begun to move
    ACKNOWLEDGED = "acknowledged"  # all bytes at the destination; source released
    CANCELLED = "cancelled"  # both sides released

    __hash__ = object.__hash__  # by identity: a transition looks up two states


_NEXT: dict[HandoffState, frozenset[HandoffState]] = {
    HandoffState.ASKED: frozenset({HandoffState.RESERVED, HandoffState.CANCELLED}),
    HandoffState.RESERVED: frozenset({HandoffState.TRANSFERRING, HandoffState.CANCELLED}),
    HandoffState.TRANSFERRING: frozenset({HandoffState.ACKNOWLEDGED, HandoffState.CANCELLED}),
    HandoffState.ACKNOWLEDGED: frozenset(),
    HandoffState.CANCELLED: frozenset(),
}


@dataclass(slots=True, eq=False, init=False)
class Handoff:
    """One hand-off. Source blocks stay held until it is acknowledged or cancelled, never both.

    Attributes:
        request_id: whose KV cache moves.
        source: prefill worker; ``NO_WORKER`` until one has been given the request.
        destination: decode worker.
        state: how far it is.
        lease_end_ns: until when the source holds finished blocks; None while it still computes.
        stream: what is ready and not sent, layer by layer; None moves the whole prompt at once.
        transfer_ids: transfers under way, oldest first.
        has_failed: one of those will not complete; nothing more is sent.
        turn: which of its source's hand-offs it is, counted from 0; -1 until something is sent.
    """

    request_id: int
    source: int
    destination: int
    state: HandoffState
    lease_end_ns: int | None
    stream: LayerStream | None
    transfer_ids: list[int]
    has_failed: bool
    turn: int

    def __init__(
        self,
        request_id: int,
        source: int,
        destination: int,
        state: HandoffState = HandoffState.ASKED,
    ) -> None:
        """Make one of which nothing has moved."""
        self.request_id = request_id
        self.source = source
        self.destination = destination
        self.state = state
        self.lease_end_ns = None
        self.stream = None
        self.transfer_ids = []
        self.has_failed = False
        self.turn = -1

    def move_to(self, state: HandoffState) -> None:
        """Take a transition of the table, or raise and change nothing."""
        if state not in _NEXT[self.state]:
            raise IllegalTransitionError(
                f"hand-off of request {self.request_id}: {self.state.value} -> {state.value}"
            )
        self.state = state

    @property
    def is_prefilled(self) -> bool:
        """Return whether the source has computed the whole prompt."""
        return self.lease_end_ns is not None

    @property
    def is_complete(self) -> bool:
        """Return whether the prompt is computed and all of it has arrived."""
        return (
            self.state is HandoffState.TRANSFERRING
            and self.lease_end_ns is not None
            and not self.transfer_ids
            and (self.stream is None or self.stream.is_sent)
        )

    @property
    def is_over(self) -> bool:
        """Return whether the hand-off has ended one way or the other."""
        return not _NEXT[self.state]
