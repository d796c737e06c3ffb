"""What a scheduler tells an executor, and what the executor reports back.

A run makes several of them per request, so they are plain objects with constructors written out:
a third of the time of frozen dataclasses, a tenth as machine code. None changes once made: their
fields are final, which mypy holds everybody to.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, init=False)
class PrefillChunk:
    """A piece of one prompt to compute in a step.

    Token positions ``[num_history_tokens, num_history_tokens + num_tokens)`` are computed; those
    before are in the cache already. ``is_last`` means the step also samples a token for it.
    """

    request_id: Final[int]
    num_tokens: Final[int]
    num_history_tokens: Final[int]
    is_last: Final[bool]

    def __init__(
        self, request_id: int, num_tokens: int, num_history_tokens: int, is_last: bool
    ) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.num_tokens = num_tokens
        self.num_history_tokens = num_history_tokens
        self.is_last = is_last


@dataclass(slots=True, init=False)
class DecodeJoin:
    """A request that decodes from this step on, with ``num_context_tokens`` in its cache."""

    request_id: Final[int]
    num_context_tokens: Final[int]

    def __init__(self, request_id: int, num_context_tokens: int) -> None:
        """Set the fields."""
        self.request_id = request_id
        self.num_context_tokens = num_context_tokens


@dataclass(slots=True, init=False)
class StepPlan:
    """One step, or the first of several identical decode iterations.

    The decode batch is carried as totals; the requests in it are the ones that joined and have not
    left. Iteration i (from 0) reads ``context_tokens + i * num_decodes`` tokens of KV cache.

    Attributes:
        num_decodes: requests that decode one token per iteration.
        context_tokens: tokens in their caches before the first iteration, summed.
        prefill: chunks computed in the same step.
        joined: requests whose KV cache was received and that decode from this step on, in order. A
            request whose last prefill chunk ran decodes from the next step on without being named.
        left: requests that are gone from the batch or their prefill without having finished
            (preempted or cancelled) since the last plan.
    """

    num_decodes: Final[int]
    context_tokens: Final[int]
    prefill: Final[tuple[PrefillChunk, ...]]
    joined: Final[tuple[DecodeJoin, ...]]
    left: Final[tuple[int, ...]]

    def __init__(
        self,
        num_decodes: int,
        context_tokens: int,
        prefill: tuple[PrefillChunk, ...],
        joined: tuple[DecodeJoin, ...] = (),
        left: tuple[int, ...] = (),
    ) -> None:
        """Set the fields."""
        self.num_decodes = num_decodes
        self.context_tokens = context_tokens
        self.prefill = prefill
        self.joined = joined
        self.left = left


@dataclass(slots=True, init=False)
class StepResult:
    """What ran: iterations, and the requests that produced their last output token, ascending."""

    num_iterations: Final[int]
    finished: Final[tuple[int, ...]]

    def __init__(self, num_iterations: int, finished: tuple[int, ...] = ()) -> None:
        """Set the fields."""
        self.num_iterations = num_iterations
        self.finished = finished


@dataclass(slots=True, init=False)
class StepShape:
    """A mixed step as a step-time model sees it.

    Attributes:
        num_decodes: requests that decode one token.
        context_tokens: their cached tokens, summed.
        prefill: ``(num_tokens, num_history_tokens)`` per chunk.
    """

    num_decodes: Final[int]
    context_tokens: Final[int]
    prefill: Final[tuple[tuple[int, int], ...]]

    def __init__(
        self, num_decodes: int, context_tokens: int, prefill: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """Set the fields."""
        self.num_decodes = num_decodes
        self.context_tokens = context_tokens
        self.prefill = prefill
