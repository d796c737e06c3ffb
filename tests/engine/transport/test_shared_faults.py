"""Mapped pools whose blocks are given up, or whose process dies or stalls, during a copy."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import numpy as np
import pytest
from transport_workers import (
    LAYOUT,
    MakeWorker,
    Pool,
    done,
    failed,
    has_said_all,
    has_sent,
    let_time_pass,
    mapped_pools,
    open_fds,
    shared_pool,
    wait_until,
    whole,
)

from kvfabric.engine.transport.port import PeerRefused
from kvfabric.engine.transport.shared_pool import MappedPool

Peer = subprocess.Popen[str]
BIG = replace(LAYOUT, block_size=4096)  # 1.5 MiB a block, one of them a frame

pytestmark = pytest.mark.parametrize("make_worker", ["shared"], indirect=True)


class SlowCopies:
    """Copies of all mapped pools, each of which waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_begun, self.num_allowed = 0, 0
        copy = MappedPool.copy

        def slow(pool: MappedPool, *arguments: object) -> None:
            self.num_begun += 1
            number = self.num_begun
            wait_until(lambda: self.num_allowed >= number)
            copy(pool, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(MappedPool, "copy", slow)

    def wait_begun(self, number: int = 1) -> None:
        wait_until(lambda: self.num_begun >= number)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowCopies]:
    copies = SlowCopies(monkeypatch)
    yield copies
    copies.num_allowed = 1 << 30


def test_a_sender_that_cancels_while_its_blocks_are_copied(
    make_worker: MakeWorker, slow: SlowCopies
) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    target.transport.expect(1, whole(3))
    source.transport.send(1, target.address, whole(4))
    slow.wait_begun()
    assert source.transport.cancel(1)
    source.pool.values[:, :, 4] = 255  # the block is somebody else's now
    slow.num_allowed = 1
    assert failed(target.event_of(1)) in {
        "the sender cancelled it",
        "the sender gave its blocks up before they were copied",
    }
    assert shared_pool(source).num_stamped == 0
    assert source.drain() == []


def test_a_receiver_that_cancels_waits_for_the_copy_under_way(
    make_worker: MakeWorker, slow: SlowCopies
) -> None:
    pools = Pool(1, BIG), Pool(2, BIG)
    source, target = (make_worker(pool=pool) for pool in pools)
    target.transport.expect(1, whole(*range(1, 8)))
    source.transport.send(1, target.address, whole(*range(11, 18)))
    slow.wait_begun()
    incoming = target.transport._expected._expected[1]
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(target.transport.cancel(1)))
    thread.start()
    wait_until(lambda: incoming._is_over)
    assert answers == []
    slow.num_allowed = 1
    thread.join()
    assert answers == [True]
    before = target.pool.values.copy()
    slow.num_allowed = 9
    assert failed(source.event_of(1)) == "the receiver refused: the receiver cancelled it"
    np.testing.assert_array_equal(target.pool.values, before)
    assert target.drain() == []


def test_a_deadline_of_the_sender_while_its_blocks_are_copied(
    make_worker: MakeWorker, slow: SlowCopies
) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    target.transport.expect(1, whole(3))
    source.transport.send(1, target.address, whole(4))
    slow.wait_begun()
    wait_until(lambda: has_sent(source, 1))
    let_time_pass(source.transport, 1)
    reason = failed(source.event_of(1))
    assert reason == "not done in 240 s: the peer did not acknowledge it"
    assert shared_pool(source).num_stamped == 0, "wiped before it is told"
    source.pool.values[:, :, 4] = 255
    slow.num_allowed = 1
    failed(target.event_of(1))


def test_a_closed_sender_gives_all_up(make_worker: MakeWorker, slow: SlowCopies) -> None:
    source, target = make_worker(seed=1), make_worker(seed=2)
    for transfer_id in range(5):
        target.transport.expect(transfer_id, whole(3 + transfer_id))
        source.transport.send(transfer_id, target.address, whole(4))
    slow.wait_begun()
    source.transport.close()
    assert shared_pool(source).num_stamped == 0
    slow.num_allowed = 99
    for transfer_id in range(5):
        failed(target.event_of(transfer_id))


def test_a_long_transfer_does_not_hold_up_a_short_one_nor_its_own_end(
    make_worker: MakeWorker, slow: SlowCopies
) -> None:
    source, target = (make_worker(pool=Pool(seed, BIG)) for seed in (1, 2))
    long = whole(*range(28))
    target.transport.expect(1, long)
    target.transport.expect(2, whole(30))
    source.transport.send(1, target.address, long)
    slow.wait_begun()
    source.transport.send(2, target.address, whole(31))
    wait_until(lambda: has_said_all(source))
    slow.num_allowed = 1  # the offer is heard after it
    slow.wait_begun(2)
    wait_until(lambda: has_sent(source, 2))
    slow.num_allowed = 4  # the third or fourth is that of the short one
    done(target.event_of(2))
    slow.wait_begun(5)
    assert [event.transfer_id for event in target.seen if not isinstance(event, PeerRefused)] == [2]
    assert source.transport.cancel(1)
    wait_until(lambda: has_said_all(source))
    slow.num_allowed = 99
    failed(target.event_of(1))
    assert slow.num_begun == 5, "what was left of it was dropped"


# ---------------------------------------------------------------------- processes

PEER = """
    import sys, time
    from dataclasses import replace
    from transport_workers import LAYOUT, Pool, Worker, whole
    from kvfabric.engine.transport.shared_pool import MappedPool

    copy = MappedPool.copy

    def slow(*arguments):
        print("copying", flush=True)
        sys.stdin.readline()
        copy(*arguments)

    MappedPool.copy = slow
    Pool.in_shared_memory = True
    worker = Worker(sys.argv[1], pool=Pool(1, replace(LAYOUT, block_size=4096), 16))
    if sys.argv[2]:
        worker.transport.send(1, sys.argv[2], whole(*range(16)))
    else:
        worker.transport.expect(1, whole(*range(16)))
        print("expecting", flush=True)
        print(worker.event_of(1), flush=True)
    time.sleep(300)
"""


@contextmanager
def peer_process(send_to: str = "") -> Iterator[tuple[Peer, str]]:
    """Yield a process that sends transfer 1, or expects it, and its address.

    Each of its copies takes a line from it, or the end of its input.
    """
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with TemporaryDirectory() as folder:
        address = f"unix:{folder}/p"
        command = [sys.executable, "-c", dedent(PEER), address, send_to]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        with process:
            yield process, address
            process.kill()


def line_of(process: Peer) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def held() -> tuple[int, int, list[str]]:
    """Return file descriptors, mappings of pools, and names in /dev/shm."""
    names = [path.name for path in Path("/dev/shm").glob("*kv*")]  # noqa: S108 - looked at only
    return open_fds(), mapped_pools(), names


def test_a_sender_killed_while_its_blocks_are_copied(
    make_worker: MakeWorker, slow: SlowCopies
) -> None:
    worker = make_worker(pool=Pool(2, BIG, 16))
    before = held()
    worker.transport.expect(1, whole(*range(16)))
    with peer_process(send_to=worker.address) as (process, _):
        slow.wait_begun()
        process.send_signal(signal.SIGKILL)
        process.wait()
        slow.num_allowed = 99
        assert "connection" in failed(worker.event_of(1))
    wait_until(lambda: held() == before)
    other = make_worker(pool=Pool(3, BIG, 16))
    worker.transport.expect(2, whole(1))
    other.transport.send(2, worker.address, whole(2))
    done(worker.event_of(2))


def test_a_receiver_killed_while_it_copies(make_worker: MakeWorker) -> None:
    worker = make_worker(pool=Pool(2, BIG, 16))
    before = held()
    with peer_process() as (process, address):
        assert line_of(process) == "expecting\n"
        worker.transport.send(1, address, whole(*range(16)))
        assert line_of(process) == "copying\n"
        assert shared_pool(worker).num_stamped == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert "connection" in failed(worker.event_of(1))
    assert shared_pool(worker).num_stamped == 0
    wait_until(lambda: held() == before)


def test_a_receiver_that_stalls_takes_nothing_once_it_goes_on(make_worker: MakeWorker) -> None:
    worker = make_worker(pool=Pool(2, BIG, 16))
    with peer_process() as (process, address):
        assert line_of(process) == "expecting\n"
        worker.transport.send(1, address, whole(*range(16)))
        assert line_of(process) == "copying\n"
        wait_until(lambda: has_sent(worker, 1))
        process.send_signal(signal.SIGSTOP)
        let_time_pass(worker.transport, 1)
        assert failed(worker.event_of(1)) == "not done in 240 s: the peer did not acknowledge it"
        worker.pool.values[:] = 255  # the blocks are somebody else's now
        assert process.stdin is not None
        process.stdin.close()
        process.send_signal(signal.SIGCONT)
        while (line := line_of(process)) == "copying\n":
            pass
        assert line.startswith("TransferFailed(transfer_id=1")


def test_blocks_of_a_process_arrive(make_worker: MakeWorker) -> None:
    worker = make_worker(pool=Pool(2, BIG, 16))
    worker.transport.expect(1, whole(*reversed(range(16))))
    with peer_process(send_to=worker.address):
        done(worker.event_of(1))
    sent = Pool(1, BIG, 16)
    sent.close()
    np.testing.assert_array_equal(worker.pool.values[:, :, ::-1], sent.values)
