"""KV blocks between workers of one process: copied by a thread, without a connection."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvfabric.engine.executor_port import Executor
from kvfabric.engine.messages import TransferDone
from kvfabric.engine.transport.port import Piece
from kvfabric.engine.worker import Tell


@dataclass(slots=True)
class _Half:
    """One side of a transfer."""

    executor: Executor
    pieces: tuple[Piece, ...]
    tell: Tell
    owner: "LocalMover"


class LocalFabric:
    """Joins the two sides of every transfer; whoever comes first waits."""

    def __init__(self) -> None:
        """Start with nothing under way."""
        self._lock = threading.Lock()
        self._sources: dict[int, _Half] = {}
        self._destinations: dict[int, _Half] = {}
        self._pool = ThreadPoolExecutor(1, "kv-copy")

    @property
    def num_waiting(self) -> int:
        """Return the sides of transfers that wait for the other or for their turn."""
        return len(self._sources) + len(self._destinations)

    def add_source(self, transfer_id: int, half: _Half) -> None:
        """Take in who sends."""
        with self._lock:
            self._sources[transfer_id] = half
            if transfer_id in self._destinations:
                self._pool.submit(self._copy, transfer_id)

    def add_destination(self, transfer_id: int, half: _Half) -> None:
        """Take in who receives."""
        with self._lock:
            self._destinations[transfer_id] = half
            if transfer_id in self._sources:
                self._pool.submit(self._copy, transfer_id)

    def cancel(self, transfer_id: int) -> None:
        """Forget a transfer, after the bytes that are being copied."""
        with self._lock:
            self._sources.pop(transfer_id, None)
            self._destinations.pop(transfer_id, None)

    def drop(self, owner: "LocalMover") -> None:
        """Forget the sides of a worker that ends."""
        with self._lock:
            for halves in (self._sources, self._destinations):
                for transfer_id in [i for i, half in halves.items() if half.owner is owner]:
                    del halves[transfer_id]

    def _copy(self, transfer_id: int) -> None:
        with self._lock:
            source = self._sources.pop(transfer_id, None)
            destination = self._destinations.pop(transfer_id, None)
            if source is None or destination is None:
                return  # cancelled
            for read, written in zip(source.pieces, destination.pieces, strict=True):
                data = source.executor.read_blocks(*read)
                destination.executor.write_blocks(*written, data)
        destination.tell(TransferDone(transfer_id))

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(cancel_futures=True)


class LocalMover:
    """One worker's side of a ``LocalFabric``; its address means nothing."""

    def __init__(self, fabric: LocalFabric, executor: Executor, tell: Tell) -> None:
        """Join a worker to the others."""
        self._fabric = fabric
        self._executor = executor
        self._tell = tell

    def send(self, transfer_id: int, peer: str, pieces: Sequence[Piece]) -> None:
        """Begin to send blocks."""
        del peer
        self._fabric.add_source(transfer_id, self._half(pieces))

    def expect(self, transfer_id: int, pieces: Sequence[Piece]) -> None:
        """Let a transfer write to blocks."""
        self._fabric.add_destination(transfer_id, self._half(pieces))

    def _half(self, pieces: Sequence[Piece]) -> _Half:
        return _Half(self._executor, tuple(pieces), self._tell, self)

    def cancel(self, transfer_id: int) -> None:
        """Stop a transfer."""
        self._fabric.cancel(transfer_id)

    def close(self) -> None:
        """Stop the transfers of this worker."""
        self._fabric.drop(self)
