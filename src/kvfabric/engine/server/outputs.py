"""The outputs of one HTTP request: started together, told apart by index, cancelled together."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from kvfabric.engine.detokenizer import Detokenizer
from kvfabric.engine.executor_port import FinishReason, Sampling
from kvfabric.engine.server.backend import Backend
from kvfabric.engine.server.errors import ApiError, server_error
from kvfabric.engine.server.metrics import ServerMetrics
from kvfabric.engine.server.openai_types import OutputOptions
from kvfabric.engine.server.text_stream import TextStream
from kvfabric.protocol.record import Outcome, RequestRecord


class OutputPiece(NamedTuple):
    """What is new of one output.

    Attributes:
        output_idx: of the output in its HTTP request.
        text: certain now, often one token's, sometimes none.
        finish: set in the last piece.
    """

    output_idx: int
    text: str
    finish: FinishReason | None = None


@dataclass(slots=True)
class Usage:
    """Token counts of an HTTP request so far; a prompt counts once, whatever ``n`` is."""

    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_cached_tokens: int = 0

    def body(self) -> dict[str, object]:
        """Return the API's ``usage``."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


class _Output:
    """One output: takes tokens from the backend, measures, and passes them on."""

    __slots__ = ("_metrics", "_outputs", "_start_ns", "first_ns", "index", "last_ns", "text")

    def __init__(
        self, index: int, text: TextStream, outputs: "RequestOutputs", metrics: ServerMetrics
    ) -> None:
        self.index, self.text = index, text
        self._outputs, self._metrics = outputs, metrics
        self._start_ns = time.monotonic_ns()
        self.first_ns = self.last_ns = 0

    def on_token(self, token_id: int, at_ns: int) -> None:
        if self.first_ns:
            self._metrics.next_token(at_ns - self.last_ns)
        else:
            self._metrics.first_token(at_ns - self._start_ns)
            self.first_ns = at_ns
        self.last_ns = at_ns
        self._outputs.put((self, token_id))

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        latency_ns = time.monotonic_ns() - self._start_ns
        self._metrics.ended(record, finish, latency_ns, self.last_ns - self.first_ns)
        self._outputs.put((self, _End(record, finish)))


class _End(NamedTuple):
    record: RequestRecord
    finish: FinishReason | None


class RequestOutputs:
    """Runs every output of one HTTP request; leaving its context cancels what still runs."""

    def __init__(
        self,
        backend: Backend,
        metrics: ServerMetrics,
        prompts: Sequence[Sequence[int]],
        sampling: Sequence[Sampling],
        num_outputs: int,
    ) -> None:
        """Prepare the outputs; entering the context starts them.

        Args:
            backend: runs them.
            metrics: counts them.
            prompts: token ids.
            sampling: of each prompt; a seed counts up over a prompt's outputs.
            num_outputs: per prompt.
        """
        self._backend, self._metrics = backend, metrics
        self._prompts, self._sampling, self._num_outputs = prompts, sampling, num_outputs
        self._inbox: asyncio.Queue[tuple[_Output | None, int | _End]] = asyncio.Queue()
        self._running: dict[int, int] = {}  # request id by index
        self._failure: ApiError | None = None
        self.usage = Usage(sum(len(prompt) for prompt in prompts))

    @property
    def num_outputs(self) -> int:
        """Return how many outputs there are, of all prompts."""
        return len(self._prompts) * self._num_outputs

    async def __aenter__(self) -> Self:
        """Start all outputs."""
        for i, (prompt, sampling) in enumerate(zip(self._prompts, self._sampling, strict=True)):
            for j in range(self._num_outputs):
                seeded = sampling
                if sampling.seed is not None:
                    seeded = sampling._replace(seed=sampling.seed + j)
                self._start(i * self._num_outputs + j, prompt, seeded)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what still runs."""
        for request_id in self._running.values():
            self._backend.cancel(request_id)
        self._running.clear()

    def _start(self, index: int, prompt: Sequence[int], sampling: Sampling) -> None:
        text = TextStream(Detokenizer(self._backend.codec.decode), sampling.stop)
        output = _Output(index, text, self, self._metrics)
        self._running[index] = self._backend.submit(prompt, sampling, output)

    def put(self, item: tuple[_Output, int | _End]) -> None:
        """Take what a backend tells."""
        self._inbox.put_nowait(item)

    def fail(self, error: ApiError) -> None:
        """End the request with an error, from outside."""
        self._failure = error
        self._inbox.put_nowait((None, 0))

    def chunk_usage(self, options: OutputOptions) -> dict[str, object]:
        """Return what a chunk says about usage: nothing, null until the last one, or the counts."""
        if options.continuous_usage:
            return {"usage": self.usage.body()}
        return {"usage": None} if options.include_usage else {}

    async def pieces(self) -> AsyncIterator[OutputPiece]:
        """Return the pieces of all outputs as they come.

        Raises:
            ApiError: if one of them fails; the others are cancelled when the context is left.
        """
        while self._running:
            output, item = await self._inbox.get()
            if self._failure is not None:
                raise self._failure
            assert output is not None
            if isinstance(item, _End):
                yield self._end(output, item)
                continue
            self.usage.num_output_tokens += 1
            sampling = self._sampling[output.index // self._num_outputs]
            if item not in sampling.stop_token_ids:  # such a token ends the output, without text
                yield OutputPiece(output.index, output.text.push(item))

    def _end(self, output: _Output, end: _End) -> OutputPiece:
        del self._running[output.index]
        if end.finish is None:
            raise _failed(end.record)
        if output.index % self._num_outputs == 0:
            self.usage.num_cached_tokens += end.record.num_cached_tokens
        return OutputPiece(output.index, output.text.finish(), end.finish)


def _failed(record: RequestRecord) -> ApiError:
    match record.outcome:
        case Outcome.REJECTED:
            return ApiError(
                f"This request of {record.num_prompt_tokens} prompt tokens does not fit into the "
                "KV cache of any worker. Shorten the prompt or lower max_tokens.",
                code="context_length_exceeded",
            )
        case Outcome.ABORTED:
            return server_error("The request was aborted.", status=503, code="aborted")
        case _:
            return server_error(
                "No worker could finish the request: they died or none is left.",
                status=503,
                code="worker_lost",
            )
