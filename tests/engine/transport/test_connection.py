import socket
from collections.abc import Iterator

import pytest

from kvfabric.engine.transport.connection import (
    MAX_POSTED,
    Connection,
    ConnectionEndedError,
    Heard,
    now_ns,
)
from kvfabric.engine.transport.frames import Frame, Kind

SECOND = 1_000_000_000


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    first, second = (Connection(sock, 1, SECOND) for sock in socket.socketpair())
    yield first, second
    first.close()
    second.close()


def test_frames_come_in_the_order_they_were_posted(pair: tuple[Connection, Connection]) -> None:
    first, second = pair
    frames = [Frame(Kind.OFFER, 7), Frame(Kind.END, 7), Frame(Kind.ACK, 2**64 - 1)]
    for frame in frames:
        first.post(frame)
    assert first.flush()
    assert [second.hear() for _ in range(4)] == [*map(Heard, frames), None]


def test_a_reason_is_one_line(pair: tuple[Connection, Connection]) -> None:
    first, second = pair
    first.post(Frame(Kind.REFUSE, 7), "two\nlines \x1b[31m")
    assert first.flush()
    assert second.hear() == Heard(Frame(Kind.REFUSE, 7, num_behind=15), "two?lines ?[31m")


def test_a_wait_ends_by_a_wake_a_frame_and_a_deadline(pair: tuple[Connection, Connection]) -> None:
    first, second = pair
    assert not first.wait(to_write=False, deadline_ns=now_ns() + 1_000_000)
    first.wake()
    assert first.wait(to_write=False, deadline_ns=None)
    assert not first.wait(to_write=False, deadline_ns=now_ns()), "a wake counts once"
    second.post(Frame(Kind.ACK, 1))
    second.flush()
    assert first.wait(to_write=False, deadline_ns=None)


def test_a_peer_that_never_reads_is_given_up(pair: tuple[Connection, Connection]) -> None:
    first, _ = pair
    for _ in range(MAX_POSTED):
        first.post(Frame(Kind.GRANT, 1))
    first.check_stopped()
    first.post(Frame(Kind.GRANT, 1))
    with pytest.raises(ConnectionEndedError, match="the peer does not read its answers"):
        first.wait(to_write=True, deadline_ns=None)


def test_what_is_closed_can_still_be_woken(pair: tuple[Connection, Connection]) -> None:
    first, second = pair
    first.close()
    first.wake()
    first.post(Frame(Kind.ACK, 1))
    with pytest.raises(ConnectionEndedError, match="the peer closed the connection"):
        second.hear()
