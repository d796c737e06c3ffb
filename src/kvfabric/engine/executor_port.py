"""What the wall-clock driver asks a real executor for, step by step, and what it gets back.

The driver owns control and block tables; an executor owns weights, KV tensors and token ids. It
decides nothing but what is sampled, and which output ends (stop token, stop text, limit).
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

Reached = Callable[[int], None]
"""Takes in that the KV cache of a step is there in the first so many layers; by the step's thread,
so it must not wait."""


class Sampling(NamedTuple):
    """How output tokens are chosen.

    Attributes:
        temperature: 0 is greedy.
        top_k: most likely tokens kept; 0 keeps all.
        top_p: probability mass kept, in (0, 1].
        seed: of this request's random numbers; None takes one from the request id.
        max_tokens: most output tokens.
        stop_token_ids: end the output; they are its last token.
        stop: texts that end the output; nothing from the first of them on is part of it.
        ignore_eos: do not end at the model's own end token.
    """

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class FinishReason(Enum):
    """Why an output ended, as the OpenAI API names it."""

    STOP = "stop"
    LENGTH = "length"


class NewRequest(NamedTuple):
    """A request the executor is to know: its prompt, and how to sample.

    ``output_ids`` are tokens it has generated already, on another worker: the first of a decode
    worker's requests stems from no prefill of its own.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    output_ids: tuple[int, ...] = ()


class ScheduledTokens(NamedTuple):
    """One request's share of a step.

    Token positions ``[first, first + num_tokens)`` of prompt and output are computed; the KV cache
    of those before is in the blocks. ``samples`` asks for the token after the last of them.

    Attributes:
        request_id: known to the executor.
        first: position of the first token computed.
        num_tokens: 1 for a decode.
        samples: whether a token is sampled; not for a chunk that leaves part of the prompt.
        table_start: index in the block table where ``new_blocks`` go; blocks from there on that the
            executor knew are void (the request was preempted).
        new_blocks: block ids appended since the request was last in a step.
    """

    request_id: int
    first: int
    num_tokens: int
    samples: bool
    table_start: int
    new_blocks: tuple[int, ...]


class EngineStep(NamedTuple):
    """One step of one worker: prefill chunks and decodes together.

    Attributes:
        new: requests the executor has not seen.
        scheduled: who computes what, decodes first.
        gone: requests to forget before the step.
        layer_ends: numbers of layers, ascending, after each of which ``reached`` is called; () if
            nobody waits for a part of the step.
    """

    new: tuple[NewRequest, ...]
    scheduled: tuple[ScheduledTokens, ...]
    gone: tuple[int, ...] = ()
    layer_ends: tuple[int, ...] = ()


class SampledToken(NamedTuple):
    """One output token, and whether the output ends with it.

    A token that completes a stop text ends the output too; ``finish`` says so.
    """

    request_id: int
    token_id: int
    finish: FinishReason | None = None


class FailedRequest(NamedTuple):
    """A request whose part of a step could not be computed, and why."""

    request_id: int
    reason: str


class StepOutput(NamedTuple):
    """What a step gave.

    Attributes:
        tokens: sampled, in the order of ``scheduled``.
        duration_ns: how long it took.
        failed: whose part could not be computed; the others' was.
    """

    tokens: tuple[SampledToken, ...]
    duration_ns: int
    failed: tuple[FailedRequest, ...] = ()


class Executor(Protocol):
    """Runs steps; one at a time, in order."""

    def run(self, step: EngineStep, reached: Reached | None = None) -> StepOutput:
        """Compute a step; call ``reached`` after each of its ``layer_ends`` on the way.

        A step that raises has sampled nothing: its parts can be run again.
        """
        ...

    def read_blocks(self, block_ids: Sequence[int], first_layer: int, end_layer: int) -> memoryview:
        """Return the KV cache of whole blocks of some layers, as bytes in wire order."""
        ...

    def write_blocks(
        self, block_ids: Sequence[int], first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Put bytes in wire order into whole blocks of some layers."""
        ...

    def forget_requests(self) -> None:
        """Know no request any more, as at first; what blocks hold stays, and means nothing."""
        ...
