"""A transfer at its sender: what was sent, and the frames of what is left."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.engine.transport.frames import (
    MAX_DATA_BYTES,
    MAX_IDS,
    MAX_PIECES,
    Frame,
    Kind,
    pack_ids,
)
from kvfabric.engine.transport.port import BlockMemory, Piece
from kvfabric.engine.transport.scatter_list import ScatterList
from kvfabric.engine.transport.shared_pool import Stamp

# A BLOCKS frame holds a sixteenth of its transfer: fewer and larger turns copy faster (64 MiB in
# turns of 4 MiB a seventh faster than of 2), smaller ones let short transfers through sooner.
_TURNS, _LEAST_PER_TURN, _MOST_PER_TURN = 16, 1 << 21, 1 << 23


def worth_sending(pieces: Sequence[Piece], memory: BlockMemory) -> tuple[Piece, ...]:
    """Return the pieces that have bytes; both sides leave out the others and count alike.

    Raises:
        ValueError: there are more than the protocol can count.
    """
    found = tuple(piece for piece in pieces if memory.num_bytes(piece))
    if len(found) > MAX_PIECES:
        raise ValueError(f"a transfer of {len(found)} pieces; at most {MAX_PIECES} are possible")
    return found


@dataclass(slots=True, eq=False)
class Outgoing:
    """One transfer under way.

    Attributes:
        pieces: none of them empty.
        start_ns: when it was asked for.
        deadline_ns: when it fails unless acknowledged.
        stage: what it waits for, in words that follow "not done in time: ".
        may_move: it was offered on a connection that another transfer began. Should the peer turn
            out to have closed that, and have granted nothing, it is offered on a new one instead.
        stamp: tells the peer that copies blocks that they are still there; None: bytes are sent.
    """

    transfer_id: int
    pieces: tuple[Piece, ...]
    num_bytes: int
    start_ns: int
    deadline_ns: int
    stage: str = "the peer did not expect it"
    is_granted: bool = False
    is_sent: bool = False
    may_move: bool = False
    stamp: Stamp | None = None
    _num_begun: int = 0
    _piece_bytes: int = 0
    _num_shown: int = 0  # blocks of the piece under way
    _left: ScatterList = field(default_factory=lambda: ScatterList(()))

    def offer(self) -> Frame:
        """Return the frame that asks the peer."""
        num_pieces = len(self.pieces)
        return Frame(Kind.OFFER, self.transfer_id, num_pieces=num_pieces, num_bytes=self.num_bytes)

    def end(self) -> Frame:
        """Return the frame that says that all is sent."""
        if self.stamp is None:
            return Frame(Kind.END, self.transfer_id)
        slot, serial = self.stamp
        return Frame(Kind.END, self.transfer_id, num_bytes=serial, offset=slot)

    def next_blocks(self, memory: BlockMemory) -> tuple[Frame, ScatterList] | None:
        """Return the next BLOCKS frame and its ids, or None when all are sent.

        A part of them at a time, so that transfers take turns.
        """
        if self._num_begun == len(self.pieces):
            return None
        piece = self.pieces[self._num_begun]
        block_ids, first_layer, end_layer = piece
        size, start = memory.num_bytes(piece), self._num_shown
        turn = min(max(self.num_bytes // _TURNS, _LEAST_PER_TURN), _MOST_PER_TURN)
        most = max(1, min(MAX_IDS, turn * len(block_ids) // size))
        ids = pack_ids(block_ids[start : start + most])
        frame = Frame(
            Kind.BLOCKS,
            self.transfer_id,
            num_behind=len(ids),
            num_bytes=size,
            piece=self._num_begun,
            first_layer=first_layer,
            end_layer=end_layer,
            num_blocks=len(block_ids),
            offset=start,
        )
        self._num_shown += most
        if self._num_shown >= len(block_ids):
            self._num_begun, self._num_shown = self._num_begun + 1, 0
        return frame, ScatterList([memoryview(ids)])

    def next_data(self, memory: BlockMemory) -> tuple[Frame, ScatterList] | None:
        """Return the next DATA frame and its bytes, or None when all are sent."""
        if not self._left.num_bytes:
            if self._num_begun == len(self.pieces):
                return None
            self._left = ScatterList(memory.outgoing(self.pieces[self._num_begun]))
            self._piece_bytes = self._left.num_bytes
            self._num_begun += 1
        index = self._num_begun - 1
        offset = self._piece_bytes - self._left.num_bytes
        data = self._left.take(MAX_DATA_BYTES)
        block_ids, first_layer, end_layer = self.pieces[index]
        frame = Frame(
            Kind.DATA,
            self.transfer_id,
            num_behind=data.num_bytes,
            num_bytes=self._piece_bytes,
            piece=index,
            first_layer=first_layer,
            end_layer=end_layer,
            num_blocks=len(block_ids),
            offset=offset,
        )
        return frame, data
