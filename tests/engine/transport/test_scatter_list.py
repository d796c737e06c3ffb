from hypothesis import given
from hypothesis import strategies as st

from kvfabric.engine.transport.scatter_list import MAX_SEGMENTS, ScatterList

SEGMENTS = st.lists(st.binary(max_size=9), max_size=8)
ALL = 1000


def scattered(segments: list[bytes]) -> ScatterList:
    return ScatterList([memoryview(segment) for segment in segments])


@given(SEGMENTS, st.lists(st.integers(1, 12), max_size=12), st.binary(max_size=5))
def test_it_reads_like_the_joined_bytes(
    segments: list[bytes], steps: list[int], header: bytes
) -> None:
    joined, left = header + b"".join(segments), scattered(segments)
    left.put_before(memoryview(header))
    for step in steps:
        assert left.num_bytes == len(joined)
        assert b"".join(left.peek(step)) == joined[:step]
        left.advance(min(step, len(joined)))
        joined = joined[step:]


@given(SEGMENTS, st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_parts_that_are_cut_off(segments: list[bytes], one: int, two: int, step: int) -> None:
    joined, left = b"".join(segments), scattered(segments)
    first, second = left.take(one), left.take(two)
    assert b"".join(first.peek(ALL)) == joined[:one]
    assert b"".join(second.peek(ALL)) == joined[one : one + two]
    assert b"".join(left.peek(ALL)) == joined[one + two :]
    read = b""
    while second.num_bytes:
        (part, *_) = second.peek(step)
        read += part
        second.advance(len(part))
    assert read == joined[one : one + two]


@given(SEGMENTS, st.integers(0, 40), st.binary(max_size=5))
def test_blanked_bytes_are_zeros_of_the_same_number(
    segments: list[bytes], passed: int, header: bytes
) -> None:
    left = scattered(segments)
    left.advance(min(passed, left.num_bytes))
    rest = b"".join(left.peek(ALL))
    left.put_before(memoryview(header))
    left.blank()
    assert b"".join(left.peek(ALL)) == header + bytes(len(rest))


def test_no_more_segments_than_one_call_takes() -> None:
    left = scattered([b"x"] * (MAX_SEGMENTS + 5))
    assert len(left.peek(1 << 20)) == MAX_SEGMENTS
    left.put_before(memoryview(b"header"))
    assert len(left.peek(1 << 20)) == MAX_SEGMENTS


def test_filling_writes_through() -> None:
    memory = bytearray(10)
    left = ScatterList([memoryview(memory)[5:], memoryview(memory)[:5]])
    for view, value in zip(left.peek(7), (1, 2), strict=True):
        view[:] = bytes([value]) * len(view)
    assert memory == b"\2\2\0\0\0\1\1\1\1\1"
