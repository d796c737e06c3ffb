"""Thousands of random operations: every transfer ends once, in time, and nothing is left behind."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from raw_peers import raw_sender
from transport_workers import (
    NUM_BLOCKS,
    PATIENT,
    SECOND,
    Pool,
    Worker,
    by_layer,
    collect_garbage,
    kv_threads,
    mapped_pools,
    open_fds,
    wait_until,
    whole,
)

from kvfabric.engine.transport.frames import Frame, Kind
from kvfabric.engine.transport.port import PeerRefused, Side, TransferDone

NUM_WORKERS = 3
HALF = NUM_BLOCKS // 2  # blocks below are sent, those from there on are received
DEADLINES = replace(PATIENT, transfer_ns=60 * SECOND, early_ns=60 * SECOND)


class Soak:
    """A few workers, one place in the receiving half of a pool per transfer under way."""

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.addresses = [
            "tcp:127.0.0.1:0" if kind == "tcp" else f"unix:{folder / str(i)}"
            for i in range(NUM_WORKERS)
        ]
        self.workers = [self._start(i) for i in range(NUM_WORKERS)]
        self.next_id = 0
        self.free = [list(range(HALF, NUM_BLOCKS)) for _ in range(NUM_WORKERS)]
        self.expected: Counter[tuple[int, Side]] = Counter()  # events still to come
        self.places: dict[int, tuple[int, int, int, int]] = {}  # id: source, block, target, place
        self.ended: Counter[tuple[int, Side]] = Counter()
        self.num_done = 0
        self.disturbed: set[int] = set()  # ids that may fail

    def _start(self, index: int) -> Worker:
        worker = Worker(self.addresses[index], seed=index, deadlines=DEADLINES)
        self.addresses[index] = worker.address
        return worker

    def transfer(self) -> None:
        source, target = self.rng.sample(range(NUM_WORKERS), 2)
        if not self.free[target]:
            return
        transfer_id, self.next_id = self.next_id, self.next_id + 1
        block, place = self.rng.randrange(HALF), self.free[target].pop()
        self.places[transfer_id] = source, block, target, place
        pieces = self.rng.choice((whole, by_layer))
        sides = [Side.SOURCE, Side.DESTINATION]
        self.rng.shuffle(sides)
        for side in sides:
            self.expected[transfer_id, side] += 1
            if side is Side.SOURCE:
                address = self.workers[target].address
                self.workers[source].transport.send(transfer_id, address, pieces(block))
            else:
                self.workers[target].transport.expect(transfer_id, pieces(place))

    def cancel(self) -> None:
        if not self.places:
            return
        transfer_id = self.rng.choice(list(self.places))
        source, _, target, _ = self.places[transfer_id]
        self.disturbed.add(transfer_id)
        for worker, side in ((source, Side.SOURCE), (target, Side.DESTINATION)):
            # both are told, as the control does it; what has ended gives False
            if self.workers[worker].transport.cancel(transfer_id):
                self.expected[transfer_id, side] -= 1

    def disturb(self) -> None:
        """Come as a peer that breaks off, or sends noise."""
        address = self.rng.choice(self.workers).address
        with raw_sender(address) as peer:
            peer.tell(Frame(Kind.OFFER, 10**9 + self.rng.randrange(5), num_pieces=1, num_bytes=8))
            if self.rng.random() < 0.5:
                peer.sock.sendall(self.rng.randbytes(self.rng.randrange(1, 200)))

    def restart(self) -> None:
        index = self.rng.randrange(NUM_WORKERS)
        for transfer_id, (source, _, target, _) in self.places.items():
            if index in {source, target}:
                self.disturbed.add(transfer_id)
        worker = self.workers[index]
        worker.close()
        self.collect()
        self.workers[index] = self._start(index)
        self.workers[index].pool.values[:] = worker.pool.values

    def collect(self) -> None:
        """Take in events; a place is free when both ends are over."""
        for worker in self.workers:
            for event in worker.drain():
                if isinstance(event, PeerRefused):
                    continue
                self.ended[event.transfer_id, event.side] += 1
                is_done = isinstance(event, TransferDone)
                assert is_done or event.transfer_id in self.disturbed, event
                if is_done and event.side is Side.DESTINATION:
                    self._check_bytes(event.transfer_id)
                    self.num_done += 1
            worker.seen.clear()
        for transfer_id in [i for i in self.places if self._is_over(i)]:
            _, _, target, place = self.places.pop(transfer_id)
            self.free[target].append(place)

    def is_over(self) -> bool:
        """Return whether every transfer has ended."""
        self.collect()
        return not self.places

    def _is_over(self, transfer_id: int) -> bool:
        return all(
            self.ended[transfer_id, side] == self.expected[transfer_id, side] for side in Side
        )

    def _check_bytes(self, transfer_id: int) -> None:
        source, block, target, place = self.places[transfer_id]
        sent = self.workers[source].pool.values[:, :, block]
        np.testing.assert_array_equal(sent, self.workers[target].pool.values[:, :, place])


@pytest.mark.parametrize(("kind", "seed"), [("unix", 1), ("tcp", 2), ("shared", 3), ("shared", 4)])
def test_random_operations(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "in_shared_memory", kind == "shared")
    collect_garbage()
    before = open_fds(), mapped_pools()
    soak_once(kind, seed)
    collect_garbage()
    wait_until(lambda: kv_threads() == [])
    assert (open_fds(), mapped_pools()) == before


def soak_once(kind: str, seed: int) -> None:
    with TemporaryDirectory() as folder:
        soak = Soak(Path(folder), kind, seed)
        num_operations = 0
        while num_operations < 1500 or soak.num_done <= 300:
            num_operations += 1
            draw = soak.rng.random()
            if draw < 0.75:
                soak.transfer()
            elif draw < 0.9:
                soak.cancel()
            elif draw < 0.92:
                soak.disturb()
            elif draw < 0.925:
                soak.restart()
            soak.collect()
        wait_until(soak.is_over)
        assert soak.ended == +soak.expected, "every transfer ended exactly once at either end"
        assert all(len(free) == NUM_BLOCKS - HALF for free in soak.free)
        expected = [worker.transport._expected for worker in soak.workers]
        wait_until(lambda: sum(table.num_waiting for table in expected) <= 5)  # of strangers
        pools = [worker.pool.shared for worker in soak.workers]
        wait_until(lambda: not any(pool.num_stamped for pool in pools if pool is not None))
        for worker in soak.workers:
            worker.close()
