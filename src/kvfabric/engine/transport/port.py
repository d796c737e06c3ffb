"""The port of KV block transfers: what a worker asks of them, and what it is told.

A sender names a transfer and a peer, never an address in the peer's memory: the receiver has been
told into which blocks that transfer goes. Each accepted ``send`` and ``expect`` ends in exactly one
``TransferDone`` or ``TransferFailed``, unless it is cancelled here. No torch is needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from kvfabric.units import NS_PER_S


class Side(Enum):
    """Which end of a transfer speaks."""

    SOURCE = "source"
    DESTINATION = "destination"


class Piece(NamedTuple):
    """Whole blocks of some layers, ``[first_layer, end_layer)``; sent and checked as one.

    Both sides list as many pieces, of the same layers and as many blocks; the ids are each side's.
    """

    block_ids: tuple[int, ...]
    first_layer: int
    end_layer: int


class TransferDone(NamedTuple):
    """All bytes are in the destination's blocks.

    The destination's word decides: its acknowledgement can be lost on the way to the source, which
    then reports a failure.

    Attributes:
        duration_ns: from ``send`` at the source, from the sender's offer at the destination.
    """

    transfer_id: int
    side: Side
    num_bytes: int
    duration_ns: int


class TransferFailed(NamedTuple):
    """A transfer has ended without all its bytes; nothing of it is read or written any more."""

    transfer_id: int
    side: Side
    reason: str


class PeerRefused(NamedTuple):
    """A connection that was not let in: who asked, and why not. No transfer was part of it."""

    peer: str
    reason: str


TransportEvent = TransferDone | TransferFailed | PeerRefused
Report = Callable[[TransportEvent], None]
"""Takes events, from the transport's threads or within a call, holding none of its locks. It should
only put them into a queue or a socket, and must not raise."""


class BlockMemory(Protocol):
    """Where a worker's KV blocks lie; called from the transport's threads.

    Views are flat and contiguous, one byte an item.
    """

    def num_bytes(self, piece: Piece) -> int:
        """Return the bytes of a piece; both sides must agree."""
        ...

    def outgoing(self, piece: Piece) -> Sequence[memoryview]:
        """Return the bytes of a piece in wire order, as a list to gather from."""
        ...

    def incoming(self, piece: Piece) -> Sequence[memoryview]:
        """Return where the bytes of a piece go, in wire order, as a list to scatter to."""
        ...

    def received(self, piece: Piece, views: Sequence[memoryview]) -> None:
        """Take note that ``views``, from ``incoming``, are filled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long anything may take, in ns.

    Attributes:
        connect_ns: to reach a peer.
        handshake_ns: to exchange greetings once connected.
        transfer_ns: of a transfer, from ``send`` to the acknowledgement and from ``expect`` to the
            last byte; each call may set its own.
        stall_ns: without a byte in the middle of a frame; the connection is cut then, since
            what follows on it cannot be told apart.
        early_ns: an offer waits for its ``expect``.
        idle_ns: a connection without transfers stays open.
    """

    connect_ns: int = 5 * NS_PER_S
    handshake_ns: int = 5 * NS_PER_S
    transfer_ns: int = 60 * NS_PER_S
    stall_ns: int = 10 * NS_PER_S
    early_ns: int = 30 * NS_PER_S
    idle_ns: int = 300 * NS_PER_S


class KvTransport(Protocol):
    """One worker's end of all its transfers. Every call returns at once; events come by report."""

    @property
    def address(self) -> str:
        """Return where peers reach this worker."""
        ...

    def send(
        self, transfer_id: int, peer: str, pieces: Sequence[Piece], *, timeout_ns: int | None = None
    ) -> None:
        """Send pieces, in order, to the worker at an address. The blocks must be held meanwhile.

        Raises:
            ValueError: a transfer of this id is being sent.
        """
        ...

    def expect(
        self, transfer_id: int, pieces: Sequence[Piece], *, timeout_ns: int | None = None
    ) -> None:
        """Take what a transfer brings into blocks; may come before or after the sender's offer.

        Raises:
            ValueError: a transfer of this id is expected.
        """
        ...

    def cancel(self, transfer_id: int) -> bool:
        """Stop a transfer, sent or expected; return whether there was one. No event follows.

        When this returns, its blocks are not read or written any more and may be used again.
        """
        ...

    def close(self) -> None:
        """Fail what is under way, cut all connections, and wait for the threads to end."""
        ...
