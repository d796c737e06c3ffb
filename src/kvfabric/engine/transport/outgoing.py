"""A transfer at its sender: what was sent, and the frames of what is left."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvfabric.engine.transport.frames import MAX_DATA_BYTES, MAX_PIECES, Frame, Kind
from kvfabric.engine.transport.port import BlockMemory, Piece
from kvfabric.engine.transport.scatter_list import ScatterList


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
    """

    transfer_id: int
    pieces: tuple[Piece, ...]
    num_bytes: int
    start_ns: int
    deadline_ns: int
    stage: str = "the peer did not expect it"
    is_granted: bool = False
    is_sent: bool = False
    _num_begun: int = 0
    _piece_bytes: int = 0
    _left: ScatterList = field(default_factory=lambda: ScatterList(()))

    def offer(self) -> Frame:
        """Return the frame that asks the peer."""
        num_pieces = len(self.pieces)
        return Frame(Kind.OFFER, self.transfer_id, num_pieces=num_pieces, num_bytes=self.num_bytes)

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
