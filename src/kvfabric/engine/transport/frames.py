"""The wire format: frames of a fixed header, some with bytes behind it.

    sender                      receiver
    OFFER  id, pieces, bytes ->             may I send transfer id?
                             <- GRANT id    it is expected, here is room
    DATA   id, piece, offset ->             a part of a piece; parts of several transfers alternate
    BLOCKS id, piece, offset ->             the same, to be copied from the sender's pool
    END    id, stamp         ->             that was all
                             <- ACK id      it is in its blocks, yours are free
    CANCEL id, reason        ->             the sender gives up, at any time after OFFER
                             <- REFUSE id, reason    the receiver does not want it (any more)

No place in the receiver's memory crosses the wire; BLOCKS names blocks of the sender's pool, which
the receiver has mapped. All numbers are little-endian; ``crc`` covers the header before it. Sizes
are checked against bounds before anything is allocated for them.
"""

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

PROTOCOL_VERSION = 1
MAX_DATA_BYTES = 1 << 21  # of one DATA frame: transfers take turns frame by frame
MAX_REASON_BYTES = 512
MAX_IDS = 128  # block ids behind one BLOCKS frame, 4 bytes each
MAX_PIECES = 1 << 16
_MAGIC = b"kvF1"
# magic, kind, first layer, end layer, piece, pieces, blocks, bytes behind, id, piece bytes, offset,
# layout digest; crc
_FIELDS = struct.Struct("<4sB3xHHIIIIQQQQ")
_CRC = struct.Struct("<I")
_ID = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size


class ProtocolError(Exception):
    """The peer sent what the protocol does not allow; the connection cannot go on."""


class Kind(IntEnum):
    """What a frame says."""

    OFFER = 1
    GRANT = 2
    DATA = 3
    END = 4
    ACK = 5
    CANCEL = 6
    REFUSE = 7
    BLOCKS = 8


_MAX_BEHIND = {
    Kind.DATA: MAX_DATA_BYTES,
    Kind.CANCEL: MAX_REASON_BYTES,
    Kind.REFUSE: MAX_REASON_BYTES,
    Kind.BLOCKS: 4 * MAX_IDS,
}
MAX_HEARD_BYTES = max(MAX_REASON_BYTES, 4 * MAX_IDS)  # behind a frame, but for DATA


class Frame(NamedTuple):
    """One header.

    Attributes:
        num_behind: bytes that follow the header: KV bytes of DATA, ids of BLOCKS, a reason in UTF-8
            of CANCEL and REFUSE.
        num_bytes: of the whole transfer in OFFER, of the whole piece in DATA and BLOCKS; in END the
            serial of the stamp, 0 if no blocks were to be copied.
        num_blocks: of the whole piece.
        offset: of the first byte of DATA or the first block of BLOCKS in its piece; in END the slot
            of the stamp.
    """

    kind: Kind
    transfer_id: int
    num_behind: int = 0
    num_pieces: int = 0
    num_bytes: int = 0
    piece: int = 0
    first_layer: int = 0
    end_layer: int = 0
    num_blocks: int = 0
    offset: int = 0


def pack(frame: Frame, layout_digest: int) -> bytes:
    """Return a header as ``HEADER_BYTES`` bytes."""
    fields = _FIELDS.pack(
        _MAGIC,
        frame.kind,
        frame.first_layer,
        frame.end_layer,
        frame.piece,
        frame.num_pieces,
        frame.num_blocks,
        frame.num_behind,
        frame.transfer_id,
        frame.num_bytes,
        frame.offset,
        layout_digest,
    )
    return fields + _CRC.pack(zlib.crc32(fields))


def unpack(header: bytes | bytearray | memoryview, layout_digest: int) -> Frame:
    """Return a header read from the wire.

    Raises:
        ProtocolError: it is garbage, of another KV layout, or asks for more than is allowed.
    """
    fields = bytes(header[: _FIELDS.size])
    (crc,) = _CRC.unpack(header[_FIELDS.size : HEADER_BYTES])
    magic, kind, first, end, piece, pieces, blocks, behind, ident, size, offset, digest = (
        _FIELDS.unpack(fields)
    )
    if magic != _MAGIC or crc != zlib.crc32(fields):
        raise ProtocolError("a frame header is garbage")
    if digest != layout_digest:
        raise ProtocolError("a frame is of another KV layout")
    if kind not in _KINDS:
        raise ProtocolError(f"a frame is of unknown kind {kind}")
    frame = Frame(Kind(kind), ident, behind, pieces, size, piece, first, end, blocks, offset)
    _check_bounds(frame)
    return frame


_KINDS = frozenset(Kind)


def _check_bounds(frame: Frame) -> None:
    if frame.num_behind > _MAX_BEHIND.get(frame.kind, 0):
        name, size = frame.kind.name, frame.num_behind
        raise ProtocolError(f"a frame {name} says that {size} bytes follow it")
    if frame.kind is Kind.BLOCKS and frame.num_behind % _ID.size:
        raise ProtocolError(f"{frame.num_behind} bytes of block ids")
    if frame.num_pieces > MAX_PIECES:
        raise ProtocolError(f"a transfer of {frame.num_pieces} pieces")


def pack_ids(block_ids: Sequence[int]) -> bytes:
    """Return block ids as they stand behind BLOCKS."""
    return struct.pack(f"<{len(block_ids)}I", *block_ids)


def unpack_ids(data: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """Return the block ids behind a BLOCKS frame."""
    return tuple(number for (number,) in _ID.iter_unpack(data))


def printable(data: bytes | bytearray | str) -> str:
    """Return text from the wire, fit for one line of a log."""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    return "".join(char if char.isprintable() else "?" for char in text)


def reason_bytes(reason: str) -> bytes:
    """Return a reason as it stands behind CANCEL and REFUSE, cut to its bound."""
    return reason.encode()[:MAX_REASON_BYTES]
