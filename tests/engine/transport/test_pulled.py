"""The contract of the port, for transports whose bytes a library reads from the peer's memory.

The stand-in reads within this process and runs everywhere; NIXL and Mooncake run where they are
installed, here over plain memory and TCP.
"""

import importlib.util
import queue
import time  # noqa: TID251 - waits for threads
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from transport_workers import (
    LAYOUT,
    NUM_BLOCKS,
    PATIENCE_S,
    PATIENT,
    SECOND,
    Pool,
    by_layer,
    identity,
    let_time_pass,
    whole,
)

from kvfabric.engine.transport.handshake import Identity
from kvfabric.engine.transport.one_sided import OneSidedReader, PullError
from kvfabric.engine.transport.port import (
    PeerRefused,
    Side,
    TransferDone,
    TransferFailed,
    TransportEvent,
)
from kvfabric.engine.transport.pulled_transport import PulledTransport, _receipt
from kvfabric.engine.transport.staging import StagingArea, StagingFullError

AREA_BYTES = 1 << 20
_AREAS: dict[str, StagingArea] = {}


class LocalReader:
    """Reads from areas of this process."""

    fails = False

    def __init__(self, area: StagingArea) -> None:
        self._area = area
        self.descriptor = f"{area.address:x}"
        _AREAS[self.descriptor] = area

    def read(
        self, descriptor: str, remote_offset: int, offset: int, num_bytes: int, deadline_ns: int
    ) -> None:
        del deadline_ns
        if self.fails or descriptor not in _AREAS:
            raise PullError("the peer is gone")
        source = _AREAS[descriptor].buffer[remote_offset : remote_offset + num_bytes]
        self._area.buffer[offset : offset + num_bytes] = source

    def progress(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        del _AREAS[self.descriptor]


def _nixl(area: StagingArea) -> OneSidedReader:
    from kvfabric.engine.transport.nixl_reader import NixlReader  # noqa: PLC0415

    return NixlReader(area)


def _mooncake(area: StagingArea) -> OneSidedReader:
    from kvfabric.engine.transport.mooncake_reader import MooncakeReader  # noqa: PLC0415

    return MooncakeReader(area)


def _needs(module: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(is_missing, reason=f"{module} is not installed")


READERS = [
    pytest.param(LocalReader, id="local"),
    pytest.param(_nixl, id="nixl", marks=_needs("nixl_cu12")),
    pytest.param(_mooncake, id="mooncake", marks=_needs("mooncake")),
]


class Worker:
    """A transport over a pool, and what it reported."""

    def __init__(
        self, make_reader: Callable[[StagingArea], OneSidedReader], seed: int, who: Identity
    ) -> None:
        self.pool, self.area = Pool(seed), StagingArea(AREA_BYTES)
        self.events: queue.SimpleQueue[TransportEvent] = queue.SimpleQueue()
        self.reader = make_reader(self.area)
        self.transport = PulledTransport(
            who,
            self.pool.copied(),
            self.events.put,
            reader=self.reader,
            area=self.area,
            deadlines=PATIENT,
        )

    def event(self, timeout_s: float = PATIENCE_S) -> TransferDone | TransferFailed:
        while True:
            event = self.events.get(timeout=timeout_s)
            if not isinstance(event, PeerRefused):
                return event

    def is_clean(self) -> bool:
        tickets = self.transport._tickets.by_id
        return not (self.area.num_taken or self.transport._open or tickets)


@pytest.fixture(params=READERS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Worker, Worker]]:
    workers = [Worker(request.param, seed, identity()) for seed in (1, 2)]
    yield workers[0], workers[1]
    for worker in workers:
        worker.transport.close()
        assert worker.is_clean()


def wait_clean(*workers: Worker) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not all(worker.is_clean() for worker in workers):
        assert time.monotonic() < end_s, "something is left"
        time.sleep(0.01)


@pytest.mark.parametrize("pieces", [whole, by_layer])
@pytest.mark.parametrize("is_early", [False, True])
def test_blocks_arrive_where_the_receiver_expects_them(
    pair: tuple[Worker, Worker], pieces: Callable[..., list[object]], *, is_early: bool
) -> None:
    source, target = pair
    before = target.pool.values.copy()
    if not is_early:
        target.transport.expect(5, pieces(7, 8, 3))  # type: ignore[arg-type]
    source.transport.send(5, target.transport.address, pieces(1, 30, 2))  # type: ignore[arg-type]
    if is_early:
        target.transport.expect(5, pieces(7, 8, 3))  # type: ignore[arg-type]
    for worker, side in ((target, Side.DESTINATION), (source, Side.SOURCE)):
        event = worker.event()
        assert isinstance(event, TransferDone), event
        assert (event.transfer_id, event.side) == (5, side)
        assert event.num_bytes == 3 * LAYOUT.block_bytes
    moved, put = source.pool.values[:, :, [1, 30, 2]], target.pool.values[:, :, [7, 8, 3]]
    np.testing.assert_array_equal(moved, put)
    others = [block for block in range(NUM_BLOCKS) if block not in {7, 8, 3}]
    np.testing.assert_array_equal(target.pool.values[:, :, others], before[:, :, others])
    wait_clean(source, target)


def test_many_transfers_both_ways(pair: tuple[Worker, Worker]) -> None:
    sent = [worker.pool.values[:, :, :8].copy() for worker in pair]
    for i in range(8):
        for number, (source, target) in enumerate((pair, pair[::-1])):
            transfer_id = 2 * i + number
            target.transport.expect(transfer_id, whole(16 + i))
            source.transport.send(transfer_id, target.transport.address, whole(i))
    events = [worker.event() for worker in pair for _ in range(16)]
    assert all(isinstance(event, TransferDone) for event in events), events
    for copied, target in zip(sent, pair[::-1], strict=True):
        np.testing.assert_array_equal(copied, target.pool.values[:, :, 16:24])
    wait_clean(*pair)


def test_a_cancelled_transfer_writes_nothing_and_leaves_nothing(
    pair: tuple[Worker, Worker],
) -> None:
    source, target = pair
    before = target.pool.values.copy()
    target.transport.expect(1, whole(9))
    assert target.transport.cancel(1)
    assert not target.transport.cancel(1)
    source.transport.send(1, target.transport.address, whole(4))
    assert source.transport.cancel(1)
    target.transport._sockets._expected._deadlines = replace(PATIENT, early_ns=SECOND // 5)
    source.transport.send(2, target.transport.address, whole(4))
    event = source.event()  # nobody expects it
    assert isinstance(event, TransferFailed)
    np.testing.assert_array_equal(target.pool.values, before)
    wait_clean(source, target)


def test_what_is_not_expected_so_is_refused(pair: tuple[Worker, Worker]) -> None:
    source, target = pair
    target.transport.expect(1, whole(9, 10))
    source.transport.send(1, target.transport.address, whole(4))
    event = target.event()
    assert isinstance(event, TransferFailed)
    assert "expected" in event.reason
    source.transport.cancel(1)
    wait_clean(source, target)


def test_an_id_is_used_once_at_a_time(pair: tuple[Worker, Worker]) -> None:
    _, target = pair
    target.transport.expect(1, whole(9))
    with pytest.raises(ValueError, match="expected already"):
        target.transport.expect(1, whole(10))
    target.transport.cancel(1)


def test_a_transfer_that_is_late_fails_at_both_sides(pair: tuple[Worker, Worker]) -> None:
    source, target = pair
    target.transport.expect(1, whole(9), timeout_ns=SECOND // 10)
    assert isinstance(target.event(), TransferFailed)
    source.transport.send(2, target.transport.address, whole(4), timeout_ns=SECOND // 10)
    assert isinstance(source.event(), TransferFailed)
    wait_clean(source, target)


def test_a_peer_that_is_gone(pair: tuple[Worker, Worker]) -> None:
    source, target = pair
    address = target.transport.address
    target.transport.close()
    source.transport.send(1, address, whole(4))
    event = source.event()
    assert isinstance(event, TransferFailed)
    assert event.side is Side.SOURCE
    wait_clean(source)


def test_more_than_the_staging_holds_is_refused(pair: tuple[Worker, Worker]) -> None:
    source, target = pair
    with pytest.raises(StagingFullError):
        source.area.take(AREA_BYTES + 1)
    taken = source.area.take(AREA_BYTES)
    source.transport.send(1, target.transport.address, whole(4))
    event = source.event()
    assert isinstance(event, TransferFailed)
    assert "do not fit into" in event.reason
    source.area.give_back(taken)


def test_strangers_are_refused() -> None:
    workers = [Worker(LocalReader, i, identity(model=f"m{i}")) for i in range(2)]
    try:
        workers[1].transport.expect(1, whole(3))
        workers[0].transport.send(1, workers[1].transport.address, whole(3))
        event = workers[0].event()
        assert isinstance(event, TransferFailed)
        assert "different model" in event.reason
    finally:
        for worker in workers:
            worker.transport.close()


def test_a_read_that_fails_is_a_failed_transfer() -> None:
    workers = [Worker(LocalReader, i, identity()) for i in range(2)]
    try:
        LocalReader.fails = True
        workers[1].transport.expect(1, whole(3))
        workers[0].transport.send(1, workers[1].transport.address, whole(3))
        assert isinstance(workers[1].event(), TransferFailed)
        let_time_pass(workers[0].transport._sockets, _receipt(1))
        assert isinstance(workers[0].event(), TransferFailed)
        wait_clean(*workers)
    finally:
        LocalReader.fails = False
        for worker in workers:
            worker.transport.close()


def test_bytes_that_the_sender_gave_up_meanwhile_are_not_taken() -> None:
    """The sender gives up between the two reads; its staging may hold others' bytes by then."""
    workers = [Worker(LocalReader, i, identity()) for i in range(2)]
    source, target = workers
    read = target.reader.read

    def read_slowly(*arguments: object) -> None:
        source.transport.cancel(1)
        read(*arguments)  # type: ignore[arg-type]

    target.reader.read = read_slowly  # type: ignore[method-assign, assignment]
    before = target.pool.values.copy()
    try:
        target.transport.expect(1, whole(3))
        source.transport.send(1, target.transport.address, whole(3))
        event = target.event()
        assert isinstance(event, TransferFailed)
        assert "given its bytes up" in event.reason
        np.testing.assert_array_equal(target.pool.values, before)
        wait_clean(*workers)
    finally:
        for worker in workers:
            worker.transport.close()
