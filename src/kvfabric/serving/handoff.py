"""The life cycle of moving one request's KV cache from a prefill to a decode worker."""

from dataclasses import dataclass
from enum import Enum

from kvfabric.errors import IllegalTransitionError


class HandoffState(Enum):
    """States of a hand-off; the last two are final and exclude each other (INV-10)."""

    HELD = "held"  # source blocks held, destination asked to reserve
    RESERVED = "reserved"  # destination blocks reserved, bytes may move
    TRANSFERRING = "transferring"
    ACKNOWLEDGED = "acknowledged"  # all bytes at the destination; source released
    CANCELLED = "cancelled"  # both sides released


_NEXT: dict[HandoffState, frozenset[HandoffState]] = {
    HandoffState.HELD: frozenset({HandoffState.RESERVED, HandoffState.CANCELLED}),
    HandoffState.RESERVED: frozenset({HandoffState.TRANSFERRING, HandoffState.CANCELLED}),
    HandoffState.TRANSFERRING: frozenset({HandoffState.ACKNOWLEDGED, HandoffState.CANCELLED}),
    HandoffState.ACKNOWLEDGED: frozenset(),
    HandoffState.CANCELLED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Handoff:
    """One hand-off. Source blocks stay held until it is acknowledged or cancelled, never both."""

    request_id: int
    source: int
    destination: int
    deadline_ns: int
    state: HandoffState = HandoffState.HELD

    def move_to(self, state: HandoffState) -> None:
        """Take a transition of the table, or raise and change nothing."""
        if state not in _NEXT[self.state]:
            raise IllegalTransitionError(
                f"hand-off of request {self.request_id}: {self.state.value} -> {state.value}"
            )
        self.state = state

    @property
    def is_over(self) -> bool:
        """Return whether the hand-off has ended one way or the other."""
        return not _NEXT[self.state]
