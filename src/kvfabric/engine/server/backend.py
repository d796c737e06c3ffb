"""What the HTTP server needs of the engine behind it: text to tokens and back, and generation.

The server runs in one event loop; every method here is called there, and so is every receiver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvfabric.engine.executor_port import FinishReason, Sampling
from kvfabric.protocol.record import RequestRecord


class TextCodec(Protocol):
    """The tokenizer of the served model."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt, special tokens added as the model wants them."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens; special tokens have none."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt of a conversation, up to where the assistant begins to answer.

        Raises:
            ConfigError: if the model has no chat template, or it refuses the messages.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model as clients see it.

    Attributes:
        name: what requests call it.
        max_model_len: most tokens of a request, prompt and output.
        vocab_size: token ids lie below.
        created_s: when it was loaded, seconds since 1970.
    """

    name: str
    max_model_len: int
    vocab_size: int
    created_s: int


class BackendStats(NamedTuple):
    """The state of the cluster, as far as gauges show it.

    Attributes:
        num_running: requests in a step or moving between workers.
        num_waiting: requests no worker has begun.
        kv_cache_usage: used share of the KV blocks of all workers, in [0, 1].
        num_workers: alive.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_workers: int


class Receiver(Protocol):
    """Takes the output of one request."""

    def on_token(self, token_id: int, at_ns: int) -> None:
        """Take the next token, sampled (as the server learned) at this monotonic instant."""
        ...

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        """Take in that nothing more will come; ``finish`` is None unless it finished."""
        ...


class Backend(Protocol):
    """A running cluster."""

    @property
    def model(self) -> ServedModel:
        """Return what is served."""
        ...

    @property
    def codec(self) -> TextCodec:
        """Return the tokenizer."""
        ...

    def submit(self, prompt_ids: Sequence[int], sampling: Sampling, receiver: Receiver) -> int:
        """Start a request; return its id. The receiver is told of the end exactly once."""
        ...

    def cancel(self, request_id: int) -> None:
        """End a request and free what it holds; one that has ended is left alone."""
        ...

    def stats(self) -> BackendStats:
        """Return the state now."""
        ...
