"""Workers that exchange blocks in tests: a pool of known bytes, a transport, what it reported."""

import gc
import queue
import threading
import time  # noqa: TID251
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.transport.block_memory import CopiedBlocks, PooledBlocks
from kvfabric.engine.transport.connection import now_ns
from kvfabric.engine.transport.handshake import Identity
from kvfabric.engine.transport.pool_shape import pool_shape_of
from kvfabric.engine.transport.port import (
    BlockMemory,
    Deadlines,
    PeerRefused,
    Piece,
    TransferDone,
    TransferFailed,
    TransportEvent,
)
from kvfabric.engine.transport.shared_pool import SharedPool, make_shared_pool
from kvfabric.engine.transport.socket_transport import SocketTransport

LAYOUT = KvLayout(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, kv_dtype="float32")
NUM_BLOCKS = 32
SECOND = 1_000_000_000
PATIENCE_S = 240.0  # of a busy machine, not of the transport
PATIENT = Deadlines(  # a test shortens what it is about: no pause of a busy machine is that long
    connect_ns=240 * SECOND,
    handshake_ns=240 * SECOND,
    transfer_ns=240 * SECOND,
    stall_ns=240 * SECOND,
    early_ns=240 * SECOND,
)


def identity(model: str = "m", layout: KvLayout = LAYOUT, cluster: str = "c") -> Identity:
    """Return an identity that differs in what is given."""
    return Identity(model=model, layout=layout, cluster=cluster)


class Pool:
    """KV blocks ``[layers, 2, blocks, bytes]`` of random bytes; both kinds of block memory.

    With ``in_shared_memory`` a pool lies where peers of this host may map it, until ``close``.
    """

    in_shared_memory = False

    def __init__(self, seed: int, layout: KvLayout = LAYOUT, num_blocks: int = NUM_BLOCKS) -> None:
        """Fill a pool from a seed."""
        self.layout, self.num_blocks = layout, num_blocks
        shape = layout.num_layers, 2, num_blocks, layout.block_bytes_per_layer // 2
        self.values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        self.shared: SharedPool | None = None
        if self.in_shared_memory:
            self.shared = make_shared_pool(pool_shape_of(layout, num_blocks))
            assert self.shared is not None, "this system has no memory that can be sealed"
            (array,) = self.shared.arrays
            array[:] = self.values
            self.values = array

    def read_blocks(self, block_ids: object, first_layer: int, end_layer: int) -> memoryview:
        """Return a copy of blocks in wire order."""
        ids = np.asarray(block_ids, dtype=np.int64)
        return memoryview(self.values[first_layer:end_layer][:, :, ids].tobytes())

    def write_blocks(
        self, block_ids: object, first_layer: int, end_layer: int, data: memoryview
    ) -> None:
        """Store blocks."""
        ids = np.asarray(block_ids, dtype=np.int64)
        part = self.values[first_layer:end_layer]
        shape = part.shape[0], 2, len(ids), part.shape[3]
        part[:, :, ids] = np.frombuffer(data, np.uint8).reshape(shape)

    def pooled(self) -> BlockMemory:
        """Return the pool as memory that sockets use directly."""
        shape = pool_shape_of(self.layout, self.num_blocks)
        return PooledBlocks(self.values.data.cast("B"), shape)

    def copied(self) -> BlockMemory:
        """Return the pool behind copies."""
        return CopiedBlocks(self, self.layout)

    def close(self) -> None:
        """Pass it to nobody any more, and keep its bytes for what a test still looks at."""
        if self.shared is not None:
            self.values = self.values.copy()
            self.shared.close()
            self.shared = None


class Worker:
    """A transport over a pool, with its events by transfer id."""

    def __init__(
        self,
        listen_on: str,
        *,
        seed: int = 0,
        pool: Pool | None = None,
        memory: BlockMemory | None = None,
        who: Identity | None = None,
        deadlines: Deadlines = PATIENT,
    ) -> None:
        """Start listening."""
        self.pool = pool or Pool(seed)
        self.events: queue.SimpleQueue[TransportEvent] = queue.SimpleQueue()
        self.transport = SocketTransport(
            who or identity(),
            memory or self.pool.pooled(),
            self.events.put,
            listen_on=listen_on,
            deadlines=deadlines,
            pool=None if isinstance(memory, CopiedBlocks) else self.pool.shared,
        )
        self.seen: list[TransportEvent] = []

    @property
    def address(self) -> str:
        """Return where it listens."""
        return self.transport.address

    def close(self) -> None:
        """Stop, pass the pool to nobody any more, and hold no view of it."""
        self.transport.close()
        self.pool.close()
        del self.transport

    def event_of(self, transfer_id: int) -> TransferDone | TransferFailed:
        """Wait for the event of a transfer."""
        end = time.monotonic() + PATIENCE_S
        while True:
            for event in self.seen:
                if not isinstance(event, PeerRefused) and event.transfer_id == transfer_id:
                    return event
            self._next(end)

    def refusal(self) -> PeerRefused:
        """Wait for a connection that was not let in."""
        end = time.monotonic() + PATIENCE_S
        while True:
            for event in self.seen:
                if isinstance(event, PeerRefused):
                    return event
            self._next(end)

    def _next(self, end: float) -> None:
        self.seen.append(self.events.get(timeout=max(0.001, end - time.monotonic())))

    def drain(self) -> list[TransportEvent]:
        """Return all events so far."""
        while not self.events.empty():
            self.seen.append(self.events.get())
        return self.seen


def done(event: TransferDone | TransferFailed) -> TransferDone:
    """Return an event that must say that a transfer is done."""
    assert isinstance(event, TransferDone), event
    return event


def failed(event: TransferDone | TransferFailed) -> str:
    """Return the reason of an event that must say that a transfer failed."""
    assert isinstance(event, TransferFailed), event
    return event.reason


def whole(*block_ids: int) -> list[Piece]:
    """Return blocks of all layers as one piece."""
    return [Piece(block_ids, 0, LAYOUT.num_layers)]


def by_layer(*block_ids: int) -> list[Piece]:
    """Return blocks layer by layer."""
    return [Piece(block_ids, layer, layer + 1) for layer in range(LAYOUT.num_layers)]


def collect_garbage() -> None:
    """Collect garbage; what is left is not looked at again: all of it takes seconds."""
    gc.collect()
    gc.freeze()


def open_fds() -> int:
    """Return how many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def kv_threads() -> list[str]:
    """Return the names of the transport's threads."""
    return [t.name for t in threading.enumerate() if t.name.startswith("kv-")]


def mapped_pools() -> int:
    """Return how many mappings of KV pools this process has."""
    return Path("/proc/self/maps").read_text().count("memfd:kvfabric-pool")


def shared_pool(worker: Worker) -> SharedPool:
    """Return the pool that a worker lets peers map."""
    assert worker.pool.shared is not None
    return worker.pool.shared


def let_time_pass(transport: SocketTransport, transfer_id: int) -> None:
    """Leave a transfer that is under way little of its time, at this side of it."""
    left_ns = now_ns() + SECOND // 5
    for sender in transport._senders.values():
        with sender._lock:
            outgoing = sender._transfers.get(transfer_id)
            if outgoing is not None:
                outgoing.start_ns -= outgoing.deadline_ns - left_ns
                outgoing.deadline_ns = left_ns
                sender._connection.wake()
                return
    with transport._expected._lock:
        incoming = transport._expected._expected[transfer_id]
        incoming.asked_ns -= incoming.deadline_ns - left_ns
        incoming.deadline_ns = left_ns
    transport._set_timer(left_ns)


def has_sent(worker: Worker, transfer_id: int) -> bool:
    """Return whether all of a transfer that has not ended is in the sender's socket."""
    for sender in worker.transport._senders.values():
        with sender._lock:
            outgoing = sender._transfers.get(transfer_id)
            if outgoing is not None:
                return outgoing.is_sent and not sender._connection.is_sending
    return False


def has_said_all(worker: Worker) -> bool:
    """Return whether nothing that a worker has to say to receivers is left."""
    for sender in worker.transport._senders.values():
        with sender._lock:
            if sender._connection.is_sending:
                return False
    return True


def wait_until(is_true: object) -> None:
    """Poll a condition with patience."""
    assert callable(is_true)
    end = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


MakeWorker = Callable[..., Worker]
