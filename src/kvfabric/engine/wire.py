"""Messages between control and workers as bytes: JSON behind a length, nothing that can run code.

``| length, 4 bytes, little endian | ["EngineStep", [...]] |``. A named tuple is the list of its
fields, in order.
"""

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from kvfabric.engine.admission import Limits
from kvfabric.engine.executor_port import (
    EngineStep,
    FailedRequest,
    FinishReason,
    NewRequest,
    SampledToken,
    Sampling,
    ScheduledTokens,
    StepOutput,
)
from kvfabric.engine.messages import (
    CancelBlocks,
    ExpectBlocks,
    FromWorker,
    Hello,
    LayersComputed,
    Refused,
    SendBlocks,
    Stop,
    ToWorker,
    TransferDone,
    TransferFailed,
    WorkerFailed,
)
from kvfabric.engine.transport.port import Piece

MAX_MESSAGE_BYTES: Final = 64 << 20
_LENGTH: Final = struct.Struct("<I")


class WireError(Exception):
    """What came is no message of ours."""


def _plain(value: object) -> object:
    assert isinstance(value, Enum), value
    return value.value


def encode(message: ToWorker | FromWorker) -> bytes:
    """Return a message as it is sent, its length first."""
    body = json.dumps([type(message).__name__, message], default=_plain).encode()
    assert len(body) <= MAX_MESSAGE_BYTES, "a step with more prompts than anybody serves"
    return _LENGTH.pack(len(body)) + body


def _sampling(fields: list[Any]) -> Sampling:
    max_tokens, temperature, top_k, top_p, seed, stop_token_ids, stop, ignore_eos = fields
    return Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_token_ids=tuple(stop_token_ids),
        stop=tuple(stop),
        ignore_eos=ignore_eos,
    )


def _new(fields: list[Any]) -> NewRequest:
    request_id, prompt_ids, sampling, output_ids = fields
    return NewRequest(request_id, tuple(prompt_ids), _sampling(sampling), tuple(output_ids))


def _scheduled(fields: list[Any]) -> ScheduledTokens:
    request_id, first, num_tokens, samples, table_start, new_blocks = fields
    return ScheduledTokens(request_id, first, num_tokens, samples, table_start, tuple(new_blocks))


def _step(fields: list[Any]) -> EngineStep:
    new, scheduled, gone, layer_ends = fields
    return EngineStep(
        tuple(map(_new, new)), tuple(map(_scheduled, scheduled)), tuple(gone), tuple(layer_ends)
    )


def _pieces(fields: list[Any]) -> tuple[Piece, ...]:
    return tuple(Piece(tuple(block_ids), first, end) for block_ids, first, end in fields)


def _output(fields: list[Any]) -> StepOutput:
    tokens, duration_ns, failed = fields
    return StepOutput(
        tuple(map(_sampled, tokens)), duration_ns, tuple(FailedRequest(*one) for one in failed)
    )


def _sampled(fields: list[Any]) -> SampledToken:
    request_id, token_id, finish = fields
    return SampledToken(request_id, token_id, None if finish is None else FinishReason(finish))


def _hello(fields: list[Any]) -> Hello:
    model, num_blocks, block_bytes, address, limits, num_layers = fields
    known = None if limits is None else Limits(*limits)
    return Hello(model, num_blocks, block_bytes, address, known, num_layers)


_Decoders = Mapping[str, Callable[[list[Any]], Any]]

_TO_WORKER: Final[_Decoders] = MappingProxyType(
    {
        "EngineStep": _step,
        "SendBlocks": lambda fields: SendBlocks(fields[0], fields[1], _pieces(fields[2])),
        "ExpectBlocks": lambda fields: ExpectBlocks(fields[0], _pieces(fields[1])),
        "CancelBlocks": lambda fields: CancelBlocks(*fields),
        "Stop": lambda fields: Stop(*fields),
        "Refused": lambda fields: Refused(*fields),
    }
)
_FROM_WORKER: Final[_Decoders] = MappingProxyType(
    {
        "Hello": _hello,
        "LayersComputed": lambda fields: LayersComputed(*fields),
        "StepOutput": _output,
        "TransferDone": lambda fields: TransferDone(*fields),
        "TransferFailed": lambda fields: TransferFailed(*fields),
        "WorkerFailed": lambda fields: WorkerFailed(*fields),
    }
)


def _decode(body: bytes, decoders: _Decoders) -> Any:
    try:
        name, fields = json.loads(body)
        return decoders[name](fields)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise WireError(f"{body[:80]!r}: {error!r}") from None


def decode_to_worker(body: bytes) -> ToWorker:
    """Return a message of the control.

    Raises:
        WireError: it is none.
    """
    message: ToWorker = _decode(body, _TO_WORKER)
    return message


def decode_from_worker(body: bytes) -> FromWorker:
    """Return a message of a worker.

    Raises:
        WireError: it is none.
    """
    message: FromWorker = _decode(body, _FROM_WORKER)
    return message


class MessageSocket:
    """One end of a control connection; one thread reads, any may write."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected stream socket."""
        self._socket = sock
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: ToWorker | FromWorker) -> None:
        """Write a message.

        Raises:
            OSError: the other end has gone.
        """
        data = encode(message)
        with self._lock:
            self._socket.sendall(data)

    def read(self) -> bytes | None:
        """Wait for the next message; None once the other end has gone.

        Raises:
            WireError: a length that no message has.
        """
        try:
            head = self._file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            if length > MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {length} bytes")
            body = self._file.read(length)
        except OSError:
            return None
        return body if len(body) == length else None

    def shutdown(self) -> None:
        """Cut the connection: whoever reads or writes is woken up."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end was faster

    def close(self) -> None:
        """Let go of the socket; nobody may be reading it."""
        self._file.close()
        self._socket.close()
