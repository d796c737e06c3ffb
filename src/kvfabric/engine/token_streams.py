"""Output tokens on their way to clients: each once, also where a request had to start anew."""

from dataclasses import dataclass
from typing import Protocol

from kvfabric.engine.executor_port import FinishReason, SampledToken
from kvfabric.protocol.record import RequestRecord


class OutputSink(Protocol):
    """Takes what clients are told. Called by the control loop: it must not block."""

    def on_token(self, request_id: int, token_id: int) -> None:
        """Take the next output token of a request."""
        ...

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        """Take in that a request is over; ``finish`` is None unless it finished."""
        ...


@dataclass(slots=True)
class _Stream:
    num_sent: int = 0
    num_seen: int = 0  # of the attempt that runs
    finish: FinishReason | None = None


class TokenStreams:
    """Who has been sent what.

    A request whose worker died starts from its prompt. It gives the same tokens again, since they
    follow from prompt, sampling and seed; those its client has are not sent twice.
    """

    def __init__(self, sink: OutputSink) -> None:
        """Start without requests."""
        self._sink = sink
        self._streams: dict[int, _Stream] = {}

    def open(self, request_id: int) -> None:
        """Take a request in."""
        assert request_id not in self._streams, "request ids are unique"
        self._streams[request_id] = _Stream()

    def begin_attempt(self, request_id: int) -> None:
        """Count the tokens of a request anew."""
        self._streams[request_id].num_seen = 0

    def sampled(self, token: SampledToken) -> None:
        """Pass a token on, unless its client has it or has gone."""
        stream = self._streams.get(token.request_id)
        if stream is None:
            return
        stream.num_seen += 1
        stream.finish = token.finish
        if stream.num_seen > stream.num_sent:
            stream.num_sent += 1
            self._sink.on_token(token.request_id, token.token_id)

    def end(self, record: RequestRecord) -> None:
        """Close a stream with its request's record."""
        stream = self._streams.pop(record.request_id)
        self._sink.on_end(record, stream.finish)
