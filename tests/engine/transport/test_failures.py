import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from raw_peers import RawPeer, raw_listener, raw_sender
from transport_workers import (
    LAYOUT,
    PATIENT,
    SECOND,
    MakeWorker,
    Pool,
    Worker,
    done,
    failed,
    identity,
    kv_threads,
    let_time_pass,
    wait_until,
    whole,
)

from kvfabric.engine.transport.address import parse_address
from kvfabric.engine.transport.frames import HEADER_BYTES, MAX_DATA_BYTES, Frame, Kind
from kvfabric.engine.transport.port import PeerRefused

SHORT_NS = SECOND // 5
BLOCK = LAYOUT.block_bytes


def offer(transfer_id: int = 1, num_bytes: int = BLOCK) -> Frame:
    return Frame(Kind.OFFER, transfer_id, num_pieces=1, num_bytes=num_bytes)


def data(transfer_id: int = 1, num_behind: int = BLOCK) -> Frame:
    return Frame(Kind.DATA, transfer_id, num_behind, num_bytes=BLOCK, end_layer=3, num_blocks=1)


def granted(peer: RawPeer, worker: Worker, transfer_id: int = 1, block: int = 1) -> None:
    """Bring a transfer to where its bytes may come."""
    worker.transport.expect(transfer_id, whole(block))
    peer.tell(offer(transfer_id))
    peer.hear_kind(Kind.GRANT)


def assert_serves(worker: Worker, make_worker: MakeWorker) -> None:
    """Check that another peer's transfer gets through."""
    other = make_worker(seed=9)
    worker.transport.expect(99, whole(30))
    other.transport.send(99, worker.address, whole(31))
    done(worker.event_of(99))
    done(other.event_of(99))


# ---------------------------------------------------------------------- a bad sender


def test_a_sender_that_goes_away_fails_what_it_sent(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        peer.tell(data(), b"x" * 100)
    assert "connection" in failed(worker.event_of(1))
    assert_serves(worker, make_worker)


def test_a_sender_that_stalls_is_cut_off(make_worker: MakeWorker) -> None:
    worker = make_worker(deadlines=replace(PATIENT, stall_ns=SECOND // 4))
    with raw_sender(worker.address) as peer:
        granted(peer, worker, 1)
        granted(peer, worker, 2, 2)
        peer.tell(data(), b"x" * 100)
        assert failed(worker.event_of(1)) == "the peer stalled: not a byte in 0.25 s"
        assert "stalled" in failed(worker.event_of(2)), "nothing else can follow a torn frame"
        assert peer.is_cut()


def test_a_sender_that_sends_nothing_is_given_up_at_the_deadline(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        peer.tell(offer())
        wait_until(lambda: worker.transport._expected.num_waiting == 1)
        worker.transport.expect(1, whole(1), timeout_ns=SHORT_NS)
        peer.hear_kind(Kind.GRANT)
        assert failed(worker.event_of(1)) == "not done in 0.2 s: the sender did not send it all"
        assert b"not done in 0.2 s" in peer.hear_kind(Kind.REFUSE)[1]
        before = worker.pool.values.copy()
        peer.tell(data(), b"x" * BLOCK)  # too late: read and dropped
        peer.tell(Frame(Kind.CANCEL, 1))
        granted(peer, worker, 2, 2)
        np.testing.assert_array_equal(worker.pool.values, before)


def test_nobody_offers(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.transport.expect(1, whole(1), timeout_ns=SHORT_NS)
    assert failed(worker.event_of(1)) == "not done in 0.2 s: no sender offered it"


def test_a_sender_gives_up(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        peer.tell(data(num_behind=BLOCK // 2), b"x" * (BLOCK // 2))
        peer.tell(Frame(Kind.CANCEL, 1, num_behind=5), b"why\n?")
        assert failed(worker.event_of(1)) == "why??"
        granted(peer, worker, 2)


def test_an_end_before_all_bytes_is_a_failure(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        peer.tell(Frame(Kind.END, 1))
        assert failed(worker.event_of(1)) == "the sender ended before all bytes were sent"
        assert peer.hear_kind(Kind.REFUSE)[0].transfer_id == 1


@pytest.mark.parametrize(
    "frame",
    [
        data()._replace(piece=1),
        data()._replace(first_layer=1),
        data()._replace(end_layer=2),
        data()._replace(num_blocks=2),
        data()._replace(num_bytes=BLOCK + 1),
        data()._replace(offset=1),
        data(num_behind=BLOCK + 1),
        data(num_behind=0),
    ],
)
def test_bytes_of_another_shape_fail_the_transfer_and_write_nothing(
    make_worker: MakeWorker, frame: Frame
) -> None:
    worker = make_worker()
    before = worker.pool.values.copy()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        peer.tell(frame, b"x" * frame.num_behind)
        assert "expected (0, 0, 3, 1, 1536, 0)" in failed(worker.event_of(1))
        peer.hear_kind(Kind.REFUSE)
        granted(peer, worker, 2, 2)  # the connection lives
    np.testing.assert_array_equal(worker.pool.values, before)


def test_more_bytes_than_offered_fail_the_transfer(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        peer.tell(data(), b"x" * BLOCK)
        peer.tell(data(), b"x" * BLOCK)
        assert failed(worker.event_of(1)) == "more bytes came than were offered"


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * HEADER_BYTES, b"GET / HTTP/1.1\r\n" * 8, os.urandom(HEADER_BYTES * 3)],
)
def test_garbage_ends_the_connection_only(make_worker: MakeWorker, garbage: bytes) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        peer.sock.sendall(garbage)
        assert failed(worker.event_of(1)) == "protocol error: a frame header is garbage"
        assert peer.is_cut()
    assert_serves(worker, make_worker)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (data(num_behind=MAX_DATA_BYTES + 1), "a frame DATA says that 2097153 bytes follow it"),
        (data(7), "DATA of transfer 7, not granted"),
        (Frame(Kind.END, 7), "END of transfer 7, not granted"),
        (Frame(Kind.GRANT, 1), "a sender sent GRANT"),
    ],
)
def test_what_the_protocol_forbids_ends_the_connection(
    make_worker: MakeWorker, frame: Frame, reason: str
) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        peer.tell(frame)
        assert failed(worker.event_of(1)) == f"protocol error: {reason}"
        assert peer.is_cut()


def test_an_offer_that_nobody_expects_is_refused_in_time(make_worker: MakeWorker) -> None:
    worker = make_worker(deadlines=replace(PATIENT, early_ns=SHORT_NS))
    with raw_sender(worker.address) as peer:
        peer.tell(offer(44))
        assert peer.hear_kind(Kind.REFUSE)[1] == b"nobody expects transfer 44"
    with raw_sender(make_worker().address) as peer:
        peer.tell(offer(45))
        peer.tell(offer(45))
        assert peer.hear_kind(Kind.REFUSE)[1] == b"it is offered twice"


def test_a_second_sender_of_a_transfer_is_refused(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer, raw_sender(worker.address) as other:
        granted(peer, worker)
        other.tell(offer())
        assert other.hear_kind(Kind.REFUSE)[1] == b"it comes by another connection already"
        peer.tell(data(), b"x" * BLOCK)
        peer.tell(Frame(Kind.END, 1))
        peer.hear_kind(Kind.ACK)
        done(worker.event_of(1))


def test_a_receiver_that_cancels_writes_nothing_more(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_sender(worker.address) as peer:
        granted(peer, worker)
        half = BLOCK // 2
        peer.tell(data(), b"x" * half)
        wait_until(lambda: worker.pool.values[1, 0, 1, -1] == ord("x"))
        assert worker.transport.cancel(1)
        assert not worker.transport.cancel(1)
        before = worker.pool.values.copy()
        peer.sock.sendall(b"y" * half)
        assert peer.hear_kind(Kind.REFUSE)[1] == b"the receiver cancelled it"
        peer.tell(Frame(Kind.END, 1))
        granted(peer, worker, 2, 2)
        np.testing.assert_array_equal(worker.pool.values, before)
        assert worker.drain() == [], "who cancels is told nothing"


# ---------------------------------------------------------------------- a bad receiver


def sending(make_worker: MakeWorker, address: str, **deadlines: int) -> Worker:
    """Return a worker that sends transfer 1 of 24 MB, more than any socket buffer takes."""
    layout = replace(LAYOUT, block_size=4096)
    worker = make_worker(
        pool=Pool(1, layout, 16), deadlines=replace(PATIENT, **deadlines), who=identity()
    )
    worker.transport.send(1, address, whole(*range(16)))
    return worker


def test_nobody_listens(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with socket.socket() as nobody:  # bound, not listening
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp:127.0.0.1:{nobody.getsockname()[1]}"
        for where in (address, "unix:/tmp/nobody/listens", "tcp:127.0.0.1:1"):
            worker.transport.send(1, where, whole(1))
            reason = failed(worker.event_of(1))
            assert reason.startswith("connection lost: cannot connect: E")
            assert reason.endswith(f"({where})")
            worker.seen.clear()


def test_a_transfer_does_not_wait_longer_for_a_greeting_than_it_may_take(
    make_worker: MakeWorker,
) -> None:
    with raw_listener() as listener:
        worker = make_worker(deadlines=replace(PATIENT, handshake_ns=600 * SECOND))
        worker.transport.send(1, listener.address, whole(1), timeout_ns=SHORT_NS)
        assert failed(worker.event_of(1)).startswith("the peer did not greet in time")


def test_a_peer_that_does_not_greet(make_worker: MakeWorker) -> None:
    with raw_listener() as listener:
        worker = sending(make_worker, listener.address, handshake_ns=SHORT_NS)
        assert failed(worker.event_of(1)).startswith("the peer did not greet in time")


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_receiver_that_reads_nothing(make_worker: MakeWorker, kind: str) -> None:
    with raw_listener(kind) as listener:
        worker = sending(make_worker, listener.address, stall_ns=SECOND // 4)
        peer = listener.accept()
        peer.hear_kind(Kind.OFFER)
        peer.tell(Frame(Kind.GRANT, 1))
        assert failed(worker.event_of(1)).startswith("the peer stalled: not a byte in 0.25 s")
        peer.sock.close()
        worker.transport.send(2, listener.address, whole(1))
        again = listener.accept()
        again.hear_kind(Kind.OFFER)
        again.sock.close()


def test_a_receiver_that_never_grants(make_worker: MakeWorker) -> None:
    with raw_listener() as listener:
        worker = make_worker(deadlines=replace(PATIENT, transfer_ns=SHORT_NS))
        worker.transport.send(1, listener.address, whole(1), timeout_ns=PATIENT.transfer_ns)
        peer = listener.accept()
        peer.hear_kind(Kind.OFFER)  # they have greeted
        worker.transport.send(2, listener.address, whole(2))
        assert failed(worker.event_of(2)) == "not done in 0.2 s: the peer did not expect it"
        assert peer.hear_kind(Kind.OFFER)[0].transfer_id == 2
        assert peer.hear_kind(Kind.CANCEL)[0].transfer_id == 2
        peer.sock.close()


def test_a_receiver_that_never_acknowledges(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_listener() as listener:
        worker.transport.send(1, listener.address, whole(1))
        peer = listener.accept()
        peer.hear_kind(Kind.OFFER)
        peer.tell(Frame(Kind.GRANT, 1))
        assert peer.hear_kind(Kind.DATA)[1] == b"".join(worker.pool.pooled().outgoing(whole(1)[0]))
        peer.hear_kind(Kind.END)
        let_time_pass(worker.transport, 1)
        assert failed(worker.event_of(1)) == "not done in 240 s: the peer did not acknowledge it"
        peer.hear_kind(Kind.CANCEL)
        peer.tell(Frame(Kind.ACK, 1))  # too late, no harm
        worker.transport.send(2, listener.address, whole(1))
        peer.hear_kind(Kind.OFFER)
        peer.sock.close()
        again = listener.accept()  # it might have been closed before the offer
        assert again.hear_kind(Kind.OFFER)[0].transfer_id == 2
        again.sock.close()
        assert "connection" in failed(worker.event_of(2))


def test_an_acknowledgement_right_before_the_end_counts(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with raw_listener() as listener:
        for transfer_id in range(10):
            worker.transport.send(transfer_id, listener.address, whole(1))
            peer = listener.accept()
            peer.hear_kind(Kind.OFFER)
            peer.tell(Frame(Kind.GRANT, transfer_id))
            peer.hear_kind(Kind.DATA)
            peer.hear_kind(Kind.END)
            peer.tell(Frame(Kind.ACK, transfer_id))
            peer.sock.close()
            done(worker.event_of(transfer_id))
            wait_until(lambda: len(kv_threads()) == 1)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Frame(Kind.ACK, 1), "a receiver sent ACK out of turn"),
        (Frame(Kind.OFFER, 1), "a receiver sent OFFER out of turn"),
        (Frame(Kind.REFUSE, 1, num_behind=9999), "a frame REFUSE says that 9999 bytes follow it"),
    ],
)
def test_a_receiver_that_breaks_the_protocol(
    make_worker: MakeWorker, frame: Frame, reason: str
) -> None:
    with raw_listener() as listener:
        worker = sending(make_worker, listener.address)
        peer = listener.accept()
        peer.hear_kind(Kind.OFFER)
        peer.tell(frame)
        assert failed(worker.event_of(1)).startswith(f"protocol error: {reason}")
        peer.sock.close()


def test_a_sender_that_cancels_sends_zeros_to_the_end_of_the_frame(make_worker: MakeWorker) -> None:
    with raw_listener() as listener:
        worker = sending(make_worker, listener.address)
        peer = listener.accept()
        peer.hear_kind(Kind.OFFER)
        peer.tell(Frame(Kind.GRANT, 1))
        peer.sock.recv(HEADER_BYTES, socket.MSG_PEEK)
        assert worker.transport.cancel(1)
        worker.pool.values[:] = 255  # the blocks are somebody else's now
        while (heard := peer.hear())[0].kind is Kind.DATA:
            last = heard[1]
        assert heard[0].kind is Kind.CANCEL
        assert heard[1] == b"the sender cancelled it"
        assert b"\xff" * 64 not in last
        assert worker.drain() == []
        peer.sock.close()


# ---------------------------------------------------------------------- processes

SENDING_PROCESS = """
    import sys, time
    from transport_workers import Pool, Worker, identity, LAYOUT, whole
    from dataclasses import replace

    worker = Worker("tcp:127.0.0.1:0", pool=Pool(1, replace(LAYOUT, block_size=4096), 16))
    worker.transport.send(1, sys.argv[1], whole(*range(16)))
    worker.transport.send(2, sys.argv[1], whole(0))
    time.sleep(300)
"""


def test_a_worker_killed_while_it_sends(make_worker: MakeWorker) -> None:
    layout = replace(LAYOUT, block_size=4096)
    pool = Pool(2, layout, 16)
    slow = SlowMemory(pool)
    worker = make_worker(pool=pool, memory=slow)
    worker.transport.expect(1, whole(*range(16)))
    folder = str(Path(__file__).parents[1])
    code = dedent(SENDING_PROCESS)
    process = subprocess.Popen(
        [sys.executable, "-c", code, worker.address], env={**os.environ, "PYTHONPATH": folder}
    )
    wait_until(slow.has_begun.is_set)
    process.send_signal(signal.SIGKILL)
    process.wait()
    slow.goes_on.set()
    assert "connection" in failed(worker.event_of(1))
    wait_until(lambda: len(kv_threads()) == 1)
    assert worker.transport._expected.num_waiting == 0, "its early offer is forgotten"
    assert_serves(make_worker(), make_worker)


class SlowMemory:
    """A pool whose first piece says when its bytes begin to come, and waits with taking them."""

    def __init__(self, pool: Pool) -> None:
        self._memory = pool.pooled()
        self.has_begun, self.goes_on = threading.Event(), threading.Event()
        self.num_bytes, self.outgoing = self._memory.num_bytes, self._memory.outgoing
        self.received = self._memory.received

    def incoming(self, piece: object) -> list[memoryview]:
        self.has_begun.set()
        self.goes_on.wait()
        return list(self._memory.incoming(piece))  # type: ignore[arg-type]


def test_a_worker_that_comes_back_is_reached_again(make_worker: MakeWorker) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    address = target.address
    source.transport.send(1, address, whole(1))
    target.transport.expect(1, whole(1))
    done(source.event_of(1))
    target.transport.close()
    wait_until(lambda: len(kv_threads()) == 1)
    again = Worker(address, seed=3)
    again.transport.expect(2, whole(1))
    source.transport.send(2, address, whole(1))
    done(source.event_of(2))
    again.close()


def test_an_offer_on_a_connection_that_the_peer_had_closed_is_made_again(
    make_worker: MakeWorker,
) -> None:
    """A peer that restarts, or closes as idle, may be sent to before its end is noticed."""
    worker = make_worker()
    with raw_listener() as listener:
        worker.transport.send(1, listener.address, whole(1))
        old = listener.accept()
        old.hear_kind(Kind.OFFER)
        for transfer_id in (2, 3):
            worker.transport.send(transfer_id, listener.address, whole(2))
            old.hear_kind(Kind.OFFER)
        old.tell(Frame(Kind.GRANT, 3))
        old.hear_kind(Kind.DATA)
        old.sock.close()
        assert "connection" in failed(worker.event_of(3)), "granted: the peer may have some of it"
        new = listener.accept()
        assert new.hear_kind(Kind.OFFER)[0].transfer_id == 2
        new.tell(Frame(Kind.GRANT, 2))
        new.hear_kind(Kind.DATA)
        new.hear_kind(Kind.END)
        new.tell(Frame(Kind.ACK, 2))
        done(worker.event_of(2))
        assert "connection" in failed(worker.event_of(1)), "offered on a new connection"
        new.sock.close()


def test_refusals_are_told_apart_from_transfers(make_worker: MakeWorker) -> None:
    worker = make_worker()
    where = parse_address(worker.address)
    with socket.socket(where.family, socket.SOCK_STREAM) as sock:
        sock.connect(where.for_socket)
    assert isinstance(worker.refusal(), PeerRefused)
