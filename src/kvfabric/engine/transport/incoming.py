"""A transfer at its receiver: what is expected, where it goes, and how far it has come."""

import threading
from collections.abc import Sequence
from typing import Protocol

from kvfabric.engine.transport.connection import Connection, now_ns
from kvfabric.engine.transport.frames import Frame
from kvfabric.engine.transport.port import BlockMemory, Piece
from kvfabric.engine.transport.scatter_list import ScatterList
from kvfabric.engine.transport.shared_pool import MappedPool

_FILL_BYTES = 1 << 19  # asked of the socket at once


class Teller(Protocol):
    """A connection that a transfer can come by."""

    def grant(self, incoming: "Incoming") -> None:
        """Let the sender send; callable from any thread."""
        ...

    def refuse(self, transfer_id: int, reason: str) -> None:
        """Tell the sender that a transfer is not wanted (any more); callable from any thread."""
        ...


class Incoming:
    """One expected transfer. ``_lock`` is held while a byte is written into the blocks.

    Attributes:
        pieces: none of them empty.
        teller: the connection it comes by, once a sender has offered it.
        start_ns: when it was offered.
        is_copied: whether blocks were copied from the sender's pool; a stamp vouches for them.
    """

    def __init__(
        self,
        transfer_id: int,
        pieces: tuple[Piece, ...],
        memory: BlockMemory,
        asked_ns: int,
        timeout_ns: int,
    ) -> None:
        """Expect pieces from an instant on."""
        self.transfer_id, self.pieces = transfer_id, pieces
        self.asked_ns, self.deadline_ns = asked_ns, asked_ns + timeout_ns
        self.num_bytes = sum(map(memory.num_bytes, pieces))
        self.teller: Teller | None = None
        self.start_ns = asked_ns
        self.is_copied = False
        self._memory = memory
        self._lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._is_over = False
        self._num_done = 0  # pieces
        self._views: Sequence[memoryview] = ()  # of the piece under way
        self._left = ScatterList(())
        self._offset = 0
        self._num_copied = 0  # blocks of the piece under way

    # ------------------------------------------------------------------ from any thread

    def end(self) -> bool:
        """Let no byte be written any more; return False if that was so before.

        Who gets True reports how the transfer ended.
        """
        with self._end_lock:
            was_over, self._is_over = self._is_over, True  # nothing more begins
        with self._lock:  # what has begun is over
            self._views, self._left = (), ScatterList(())
        return not was_over

    @property
    def stage(self) -> str:
        """Return what it waits for."""
        return "no sender offered it" if self.teller is None else "the sender did not send it all"

    # ------------------------------------------------------------------ the connection's thread

    def misfit_of_offer(self, offer: Frame) -> str:
        """Return what of an offer is not as expected, or nothing."""
        offered = offer.num_pieces, offer.num_bytes
        expected = len(self.pieces), self.num_bytes
        if offered == expected:
            return ""
        return (
            f"offered {offered[0]} pieces of {offered[1]} bytes, "
            f"expected {expected[0]} of {expected[1]}"
        )

    def begin(self, frame: Frame) -> str:
        """Prepare for a DATA frame's bytes; return what of it is not as expected, or nothing."""
        with self._lock:
            if self._is_over:
                return ""
            if self._num_done == len(self.pieces):
                return "more bytes came than were offered"
            piece = self.pieces[self._num_done]
            sent, expected = self._places(frame, piece, self._offset)
            size = self._memory.num_bytes(piece)
            is_fit = 0 < frame.num_behind <= size - self._offset and not self._num_copied
            if sent != expected or not is_fit:
                return (
                    "piece, layers, blocks, bytes and offset sent are "
                    f"{sent}, expected {expected}; {frame.num_behind} bytes follow"
                )
            if not self._offset:
                self._views = self._memory.incoming(piece)
                self._left = ScatterList(self._views)
            return ""

    def fill(self, connection: Connection, max_bytes: int, scratch: memoryview) -> int:
        """Take what the socket has, up to a bound; into ``scratch`` when the transfer is over."""
        with self._lock:
            if self._is_over:
                return connection.receive_into([scratch[:max_bytes]])
            num_bytes = connection.receive_into(self._left.peek(min(max_bytes, _FILL_BYTES)))
            self._left.advance(num_bytes)
            self._offset += num_bytes
            if num_bytes and not self._left.num_bytes:
                self._memory.received(self.pieces[self._num_done], self._views)
                self._num_done += 1
                self._views, self._offset = (), 0
            return num_bytes

    def copy(self, frame: Frame, block_ids: Sequence[int], peer: MappedPool) -> str:
        """Copy blocks that a BLOCKS frame names; return what of it is not as expected, or nothing.

        ``peer``, the sender's pool, is read once all is compared.
        """
        with self._lock:
            if self._is_over:
                return ""
            if self._num_done == len(self.pieces):
                return "more blocks came than were offered"
            piece = self.pieces[self._num_done]
            own_ids, first_layer, end_layer = piece
            start = self._num_copied
            sent, expected = self._places(frame, piece, start)
            end = start + len(block_ids)
            is_fit = start < end <= len(own_ids) and not self._offset
            if sent != expected or not is_fit:
                return (
                    "piece, layers, blocks, bytes and first block sent are "
                    f"{sent}, expected {expected}; {len(block_ids)} blocks follow"
                )
            if max(block_ids) >= peer.num_blocks:
                return f"block {max(block_ids)} of a pool of {peer.num_blocks} blocks"
            peer.copy(own_ids[start:end], block_ids, slice(first_layer, end_layer))
            self.is_copied, self._num_copied = True, end
            if end == len(own_ids):
                self._num_done, self._num_copied = self._num_done + 1, 0
            return ""

    def _places(
        self, frame: Frame, piece: Piece, offset: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where a frame says that it belongs, and where the next one does."""
        size, layers = self._memory.num_bytes(piece), (frame.first_layer, frame.end_layer)
        sent = (frame.piece, *layers, frame.num_blocks, frame.num_bytes, frame.offset)
        return sent, (self._num_done, *piece[1:], len(piece.block_ids), size, offset)

    @property
    def is_complete(self) -> bool:
        """Return whether all bytes are in their blocks."""
        return self._num_done == len(self.pieces)

    @property
    def duration_ns(self) -> int:
        """Return the time since the offer."""
        return now_ns() - self.start_ns
