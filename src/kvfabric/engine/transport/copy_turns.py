"""What a receiver has heard and not yet copied: transfers take turns, frame by frame.

A sender names blocks much faster than they are copied. So frames are heard first: a short transfer
does not wait for a long one, and a cancelled one is dropped at once.
"""

from collections import deque

from kvfabric.engine.transport.connection import Heard
from kvfabric.engine.transport.frames import Kind

MAX_QUEUED = 1024  # frames; no more are heard then


class CopyTurns:
    """Frames BLOCKS, and END behind them, in the order of each transfer."""

    def __init__(self) -> None:
        """Have nothing to copy."""
        self._queues: dict[int, deque[Heard]] = {}  # by transfer, in the order of their turns
        self._num_queued = 0

    def __contains__(self, transfer_id: object) -> bool:
        """Return whether something of a transfer is left."""
        return transfer_id in self._queues

    def __bool__(self) -> bool:
        """Return whether anything is left."""
        return bool(self._queues)

    @property
    def is_full(self) -> bool:
        """Return whether as much is left as may be."""
        return self._num_queued >= MAX_QUEUED

    def add(self, heard: Heard) -> None:
        """Put a frame behind those of its transfer."""
        self._queues.setdefault(heard.frame.transfer_id, deque()).append(heard)
        self._num_queued += 1

    def take(self) -> Heard:
        """Return the next frame of the transfer whose turn it is; others have theirs first then."""
        transfer_id = next(iter(self._queues))
        queue = self._queues.pop(transfer_id)
        if len(queue) > 1:
            self._queues[transfer_id] = queue
        self._num_queued -= 1
        return queue.popleft()

    def take_end(self, transfer_id: int) -> Heard | None:
        """Return a transfer's END if nothing else of it is left: it needs no turn of its own."""
        queue = self._queues.get(transfer_id)
        if queue is None or queue[0].frame.kind is not Kind.END:
            return None
        del self._queues[transfer_id]
        self._num_queued -= len(queue)
        return queue[0]

    def drop(self, transfer_id: int) -> None:
        """Forget what is left of a transfer."""
        self._num_queued -= len(self._queues.pop(transfer_id, ()))
