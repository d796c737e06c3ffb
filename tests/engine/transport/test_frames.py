import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.engine.transport.frames import (
    HEADER_BYTES,
    MAX_DATA_BYTES,
    MAX_PIECES,
    MAX_REASON_BYTES,
    Frame,
    Kind,
    ProtocolError,
    pack,
    reason_bytes,
    unpack,
)

LONG = st.integers(0, 2**64 - 1)
SHORT = st.integers(0, 2**16 - 1)


@given(
    kind=st.sampled_from(Kind),
    ids=st.tuples(LONG, LONG, LONG, LONG),
    layers=st.tuples(SHORT, SHORT),
    counts=st.tuples(SHORT, SHORT, st.integers(0, 2**32 - 1)),
)
def test_a_header_comes_back_as_it_was(
    kind: Kind,
    ids: tuple[int, int, int, int],
    layers: tuple[int, int],
    counts: tuple[int, int, int],
) -> None:
    transfer_id, num_bytes, offset, digest = ids
    num_pieces, piece, num_blocks = counts
    frame = Frame(kind, transfer_id, 0, num_pieces, num_bytes, piece, *layers, num_blocks, offset)
    header = pack(frame, digest)
    assert len(header) == HEADER_BYTES == 64
    assert unpack(header, digest) == frame


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ProtocolError, match="garbage"):
        unpack(noise, 0)


@given(position=st.integers(0, HEADER_BYTES - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_noticed(position: int, flip: int) -> None:
    header = bytearray(pack(Frame(Kind.DATA, 3, num_behind=100), 9))
    header[position] ^= flip
    with pytest.raises(ProtocolError):
        unpack(header, 9)


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (Frame(Kind.DATA, 1, num_behind=MAX_DATA_BYTES + 1), "bytes follow"),
        (Frame(Kind.REFUSE, 1, num_behind=MAX_REASON_BYTES + 1), "bytes follow"),
        (Frame(Kind.OFFER, 1, num_behind=1), "bytes follow"),
        (Frame(Kind.ACK, 1, num_behind=2**32 - 1), "bytes follow"),
        (Frame(Kind.OFFER, 1, num_pieces=MAX_PIECES + 1), "pieces"),
    ],
)
def test_sizes_beyond_the_bounds_are_refused(frame: Frame, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        unpack(pack(frame, 0), 0)


def test_another_layout_and_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ProtocolError, match="another KV layout"):
        unpack(pack(Frame(Kind.ACK, 1), 5), 6)
    fields = bytearray(pack(Frame(Kind.ACK, 1), 5)[:-4])
    fields[4] = 99  # kind stands behind the magic word
    with pytest.raises(ProtocolError, match="unknown kind 99"):
        unpack(bytes(fields) + struct.pack("<I", zlib.crc32(fields)), 5)


def test_a_long_reason_is_cut() -> None:
    assert len(reason_bytes("x" * 10_000)) == MAX_REASON_BYTES
