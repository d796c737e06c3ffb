"""A step while it is being planned."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvfabric.protocol.step import PrefillChunk
from kvfabric.serving.commands import PrefillStarted
from kvfabric.serving.request import Request


class Reserved(NamedTuple):
    """A request whose blocks for received KV are newly reserved.

    Attributes:
        request_id: whose blocks.
        num_cached_tokens: tokens of its prompt, from the front, whose blocks were found here.
    """

    request_id: int
    num_cached_tokens: int


@dataclass(slots=True, eq=False)
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

    now_ns: int
    budget: int
    has_preempted: bool
    chunks: list[PrefillChunk] = field(default_factory=list[PrefillChunk])
    prompts: list[tuple[Request, bool]] = field(default_factory=list[tuple[Request, bool]])
    received: list[Request] = field(default_factory=list[Request])
    reserved: list[Reserved] = field(default_factory=list[Reserved])
    started: list[PrefillStarted] = field(default_factory=list[PrefillStarted])

    def next_tokens(self, request: Request) -> int:
        """Return the tokens of a prompt that may be scheduled now."""
        return min(request.num_tokens - request.num_computed, self.budget)
