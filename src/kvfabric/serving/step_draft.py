"""A step while it is being planned."""

from dataclasses import dataclass
from typing import Final

from kvfabric.protocol.step import PrefillChunk
from kvfabric.serving.commands import PrefillStarted
from kvfabric.serving.request import Request


@dataclass(slots=True, init=False)
class Reserved:
    """A request whose blocks for received KV are newly reserved.

    Attributes:
        request_id: whose blocks.
        num_cached_tokens: tokens of its prompt, from the front, whose blocks were found here.
    """

    request_id: Final[int]
    num_cached_tokens: Final[int]

    def __init__(self, request_id: int, num_cached_tokens: int) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.num_cached_tokens = num_cached_tokens


class StepDraft:
    """What one call of ``schedule`` has decided so far.

    Attributes:
        now_ns: when it is planned.
        budget: tokens that may still be scheduled.
        has_preempted: whether somebody lost its blocks to this step.
        chunks: prompt pieces, in order.
        prompts: requests whose last chunk is among them, in order, and whether for the first time.
        received: requests that decode their first token from received KV, in order.
        reserved: requests whose blocks for received KV are newly reserved.
        started: prompts that only prefill here and whose first chunk is among ``chunks``.
    """

    __slots__ = (
        "budget",
        "chunks",
        "has_preempted",
        "now_ns",
        "prompts",
        "received",
        "reserved",
        "started",
    )

    def __init__(self, now_ns: int, budget: int, *, has_preempted: bool) -> None:
        """Start with nothing decided."""
        self.now_ns = now_ns
        self.budget = budget
        self.has_preempted = has_preempted
        self.chunks: list[PrefillChunk] = []
        self.prompts: list[tuple[Request, bool]] = []
        self.received: list[Request] = []
        self.reserved: list[Reserved] = []
        self.started: list[PrefillStarted] = []

    def next_tokens(self, request: Request) -> int:
        """Return the tokens of a prompt that may be scheduled now."""
        return min(request.num_tokens - request.num_computed, self.budget)
