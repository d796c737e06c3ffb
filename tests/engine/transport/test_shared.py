"""Workers that map each other's pools: what is theirs alone; the rest runs in the other tests."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from raw_peers import RawPeer, raw_listener, raw_sender
from transport_workers import (
    LAYOUT,
    NUM_BLOCKS,
    PATIENT,
    SECOND,
    MakeWorker,
    Pool,
    Worker,
    by_layer,
    done,
    failed,
    identity,
    mapped_pools,
    open_fds,
    shared_pool,
    wait_until,
    whole,
)

from kvfabric.engine.transport.address import parse_address
from kvfabric.engine.transport.block_memory import PooledBlocks
from kvfabric.engine.transport.frames import HEADER_BYTES, Frame, Kind, pack_ids
from kvfabric.engine.transport.greeter import MAPS_POOLS, POOL_BLOCKS
from kvfabric.engine.transport.handshake import greeting
from kvfabric.engine.transport.port import Side
from kvfabric.engine.transport.shared_pool import NUM_STAMPS, Stamp

BLOCK = LAYOUT.block_bytes


@pytest.fixture
def worker(make_worker: MakeWorker) -> Worker:
    return make_worker(seed=2)


pytestmark = pytest.mark.parametrize("make_worker", ["shared"], indirect=True)


class ShownPool:
    """A raw sender's pool."""

    def __init__(self) -> None:
        self.pool = Pool(1)
        assert self.pool.shared is not None
        self.shared = self.pool.shared
        stamp = self.shared.stamp()
        assert stamp is not None
        self.stamp = stamp

    def blocks(self, *ids: int, **fields: int) -> tuple[Frame, bytes]:
        frame = Frame(
            Kind.BLOCKS, 1, 4 * len(ids), num_bytes=BLOCK * len(ids), end_layer=3, num_blocks=1
        )
        changed: dict[str, Any] = {"num_blocks": len(ids), **fields}
        return frame._replace(**changed), pack_ids(ids)

    def end(self, stamp: Stamp | None = None) -> Frame:
        slot, serial = stamp or self.stamp
        return Frame(Kind.END, 1, num_bytes=serial, offset=slot)


@pytest.fixture
def shown(make_worker: MakeWorker) -> Iterator[ShownPool]:
    assert callable(make_worker)
    made = ShownPool()
    yield made
    made.pool.close()


@contextmanager
def showing(worker: Worker, shown: ShownPool, *blocks: int) -> Iterator[RawPeer]:
    """Yield a sender that has shown its pool, with transfer 1 granted."""
    with raw_sender(worker.address, {POOL_BLOCKS: NUM_BLOCKS}) as peer:
        assert peer.theirs == {MAPS_POOLS: 1}
        socket.send_fds(peer.sock, [b"P"], [shown.shared.fd])
        worker.transport.expect(1, whole(*blocks))
        peer.tell(Frame(Kind.OFFER, 1, num_pieces=1, num_bytes=BLOCK * len(blocks)))
        peer.hear_kind(Kind.GRANT)
        yield peer


def no_bytes(*_: object) -> None:
    raise AssertionError("bytes went through the socket")


# ---------------------------------------------------------------------- who maps, who does not


@pytest.mark.parametrize("pieces", [whole, by_layer])
def test_no_kv_byte_goes_through_the_socket(
    make_worker: MakeWorker, pieces: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(pieces)
    source, target = make_worker(seed=1), make_worker(seed=2)
    for name in ("outgoing", "incoming"):
        monkeypatch.setattr(PooledBlocks, name, no_bytes)
    target.transport.expect(5, pieces(7, 8, 3))
    source.transport.send(5, target.address, pieces(1, 2, 30))
    done(source.event_of(5))
    np.testing.assert_array_equal(
        source.pool.values[:, :, [1, 2, 30]], target.pool.values[:, :, [7, 8, 3]]
    )


@pytest.mark.parametrize("who", [Side.SOURCE, Side.DESTINATION])
def test_one_that_has_no_such_pool_gets_and_sends_bytes(
    make_worker: MakeWorker, who: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = make_worker(seed=1)
    monkeypatch.setattr(Pool, "in_shared_memory", False)
    plain = make_worker(seed=2)
    source, target = (mapping, plain) if who is Side.DESTINATION else (plain, mapping)
    target.transport.expect(1, whole(3))
    source.transport.send(1, target.address, whole(4))
    done(source.event_of(1))
    np.testing.assert_array_equal(source.pool.values[:, :, 4], target.pool.values[:, :, 3])
    assert mapped_pools() == 1, "its own"


def test_without_a_stamp_left_bytes_are_sent(make_worker: MakeWorker) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    stamps = [shared_pool(source).stamp() for _ in range(NUM_STAMPS)]
    target.transport.expect(1, whole(3))
    source.transport.send(1, target.address, whole(4))
    done(source.event_of(1))
    np.testing.assert_array_equal(source.pool.values[:, :, 4], target.pool.values[:, :, 3])
    for stamp in stamps:
        assert stamp is not None
        shared_pool(source).wipe(stamp)


def test_another_users_process_is_not_shown_the_pool(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    source.transport.send(1, target.address, whole(4))
    reason = failed(source.event_of(1))
    assert reason.startswith(f"the peer is of user {os.getuid()}, this worker of 12345")


@pytest.mark.parametrize("says", [{}, {MAPS_POOLS: 0}, {POOL_BLOCKS: 5}])
def test_who_does_not_say_that_it_maps_pools_is_shown_none(
    make_worker: MakeWorker, says: dict[str, int]
) -> None:
    source = make_worker(seed=1)
    with raw_listener() as listener:
        source.transport.send(1, listener.address, whole(4))
        peer = listener.accept(says)
        assert peer.theirs == {POOL_BLOCKS: NUM_BLOCKS}
        data, fds, _, _ = socket.recv_fds(peer.sock, 1, 4)
        assert (data[:1], fds) == (b"k", []), "the offer comes at once"
        peer.sock.close()
        failed(source.event_of(1))


def test_who_does_not_fit_is_shown_none(make_worker: MakeWorker) -> None:
    source = make_worker(seed=1, who=identity(model="other"))
    with raw_listener() as listener:
        source.transport.send(1, listener.address, whole(4))
        sock, _ = listener.sock.accept()
        with sock:
            sock.sendall(greeting(identity(), says={MAPS_POOLS: 1}))
            assert "different model" in failed(source.event_of(1))
            greeted, fds, _, _ = socket.recv_fds(sock, 4096, 4)
            assert (greeted[:4], fds) == (b"kvHI", [])
            assert socket.recv_fds(sock, 4096, 4)[:2] == (b"", [])


# ---------------------------------------------------------------------- a bad sender


@pytest.mark.parametrize(
    ("num_blocks", "reason"),
    [
        (0, "a KV pool of '0' blocks"),
        (-1, "a KV pool of '-1' blocks"),
        ((1 << 32) + 1, "a KV pool of '4294967297' blocks"),
        ("many", "a KV pool of 'many' blocks"),
        (True, "a KV pool of 'True' blocks"),
        (1e300, "a KV pool of '1e+300' blocks"),
    ],
)
def test_a_number_of_blocks_that_is_none(worker: Worker, num_blocks: int, reason: str) -> None:
    with raw_sender(worker.address, {POOL_BLOCKS: num_blocks}) as peer:
        assert peer.is_cut()
    assert worker.refusal().reason == reason


def test_a_pool_that_could_be_cut_is_refused(worker: Worker, shown: ShownPool) -> None:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, os.fstat(shown.shared.fd).st_size)
    with raw_sender(worker.address, {POOL_BLOCKS: NUM_BLOCKS}) as peer:
        socket.send_fds(peer.sock, [b"P"], [fd])
        os.close(fd)
        assert peer.is_cut()
    assert "not sealed" in worker.refusal().reason


@pytest.mark.parametrize("num_fds", [0, 2])
def test_one_file_descriptor_is_taken(worker: Worker, shown: ShownPool, num_fds: int) -> None:
    with raw_sender(worker.address, {POOL_BLOCKS: NUM_BLOCKS}) as peer:
        socket.send_fds(peer.sock, [b"P"], [shown.shared.fd] * num_fds)
        assert peer.is_cut()
    reason = "protocol error: the peer passed something else than one file descriptor"
    assert worker.refusal().reason == reason


def test_a_pool_that_does_not_come(make_worker: MakeWorker) -> None:
    worker = make_worker(deadlines=replace(PATIENT, handshake_ns=SECOND // 5))
    with socket.socket(socket.AF_UNIX) as sock:
        with worker.transport._lock:  # nobody is let in meanwhile: the greeting is there by then
            sock.connect(parse_address(worker.address).for_socket)
            sock.sendall(greeting(identity(), says={POOL_BLOCKS: NUM_BLOCKS}))
        while sock.recv(4096):
            pass
    assert worker.refusal().reason == "the peer did not greet in time"


def test_descriptors_that_nobody_asked_for_are_dropped(worker: Worker, shown: ShownPool) -> None:
    with showing(worker, shown, 3) as peer:
        before = open_fds()
        for _ in range(HEADER_BYTES):
            socket.send_fds(peer.sock, [b"x"], [shown.shared.fd] * 8)
        assert peer.is_cut()
    assert "garbage" in failed(worker.event_of(1))
    wait_until(lambda: open_fds() <= before - 2)


def test_blocks_are_copied_from_a_pool_that_is_shown(worker: Worker, shown: ShownPool) -> None:
    with showing(worker, shown, 3, 9) as peer:
        peer.tell(*shown.blocks(4, 31))
        peer.tell(shown.end())
        peer.hear_kind(Kind.ACK)
    done(worker.event_of(1))
    np.testing.assert_array_equal(
        shown.pool.values[:, :, [4, 31]], worker.pool.values[:, :, [3, 9]]
    )


@pytest.mark.parametrize(
    ("ids", "fields", "reason"),
    [
        ((4, 5), {"piece": 1}, "sent are (1, 0, 3, 2, 3072, 0)"),
        ((4, 5), {"first_layer": 1}, "sent are (0, 1, 3, 2, 3072, 0)"),
        ((4, 5), {"end_layer": 4}, "sent are (0, 0, 4, 2, 3072, 0)"),
        ((4, 5), {"num_blocks": 3}, "sent are (0, 0, 3, 3, 3072, 0)"),
        ((4, 5), {"num_bytes": 1}, "sent are (0, 0, 3, 2, 1, 0)"),
        ((4, 5), {"offset": 1}, "sent are (0, 0, 3, 2, 3072, 1)"),
        ((4, 5, 6), {"num_blocks": 2, "num_bytes": 3072}, "3 blocks follow"),
        ((), {"num_blocks": 2, "num_bytes": 3072}, "0 blocks follow"),
        ((4, 32), {}, "block 32 of a pool of 32 blocks"),
        ((4, 2**32 - 1), {}, "block 4294967295 of a pool of 32 blocks"),
    ],
)
def test_other_blocks_than_expected_fail_the_transfer_and_write_nothing(
    worker: Worker, shown: ShownPool, ids: tuple[int, ...], fields: dict[str, int], reason: str
) -> None:
    before = worker.pool.values.copy()
    with showing(worker, shown, 3, 9) as peer:
        peer.tell(*shown.blocks(*ids, **fields))
        assert reason in failed(worker.event_of(1))
        peer.hear_kind(Kind.REFUSE)
        peer.tell(shown.end())
        worker.transport.expect(2, whole(1))  # the connection lives
        peer.tell(Frame(Kind.OFFER, 2, num_pieces=1, num_bytes=BLOCK))
        peer.hear_kind(Kind.GRANT)
    np.testing.assert_array_equal(worker.pool.values, before)


def test_more_blocks_than_offered_fail_the_transfer(worker: Worker, shown: ShownPool) -> None:
    with showing(worker, shown, 3) as peer:
        peer.tell(*shown.blocks(4))
        peer.tell(*shown.blocks(5))
        assert failed(worker.event_of(1)) == "more blocks came than were offered"


def test_a_piece_comes_by_bytes_or_by_blocks_not_by_both(worker: Worker, shown: ShownPool) -> None:
    with showing(worker, shown, 3, 9) as peer:
        frame, ids = shown.blocks(4, 5)
        peer.tell(frame._replace(num_behind=4), ids[:4])
        data = Frame(Kind.DATA, 1, 2 * BLOCK, num_bytes=2 * BLOCK, end_layer=3, num_blocks=2)
        copied = worker.pool.values[:, :, 3], shown.pool.values[:, :, 4]
        wait_until(lambda: np.array_equal(*copied))
        peer.tell(data, bytes(2 * BLOCK))
        assert "bytes and offset sent are" in failed(worker.event_of(1))


def test_ids_that_are_cut_end_the_connection(worker: Worker, shown: ShownPool) -> None:
    with showing(worker, shown, 3) as peer:
        frame, ids = shown.blocks(4)
        peer.tell(frame._replace(num_behind=3), ids[:3])
        assert failed(worker.event_of(1)) == "protocol error: 3 bytes of block ids"
        assert peer.is_cut()


def test_blocks_from_a_sender_that_shows_no_pool_end_the_connection(
    worker: Worker, shown: ShownPool
) -> None:
    with raw_sender(worker.address) as peer:
        worker.transport.expect(1, whole(3))
        peer.tell(Frame(Kind.OFFER, 1, num_pieces=1, num_bytes=BLOCK))
        peer.hear_kind(Kind.GRANT)
        peer.tell(*shown.blocks(4))
        reason = failed(worker.event_of(1))
        assert reason == "protocol error: a sender that shows no KV pool sent BLOCKS"
        assert peer.is_cut()


def test_a_sender_that_goes_away_before_the_end(worker: Worker, shown: ShownPool) -> None:
    with showing(worker, shown, 3) as peer:
        peer.tell(*shown.blocks(4))
    assert "connection" in failed(worker.event_of(1))
    wait_until(lambda: mapped_pools() == 2)  # the worker's and the raw sender's own


# ---------------------------------------------------------------------- blocks given up


@pytest.mark.parametrize("stamp", ["wiped", "of another slot", "none"])
def test_blocks_that_the_sender_gave_up_are_not_taken(
    worker: Worker, shown: ShownPool, stamp: str
) -> None:
    wrong = {"wiped": shown.stamp, "of another slot": Stamp(9, 1), "none": Stamp(0, 0)}[stamp]
    with showing(worker, shown, 3) as peer:
        peer.tell(*shown.blocks(4))
        if stamp == "wiped":
            shown.shared.wipe(shown.stamp)
        peer.tell(shown.end(wrong))
        reason = "the sender gave its blocks up before they were copied"
        assert failed(worker.event_of(1)) == reason
        assert peer.hear_kind(Kind.REFUSE)[1] == reason.encode()
