"""A worker: runs the steps it is told to run, in order, and moves KV blocks beside them."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from kvfabric.engine.executor_port import EngineStep, Executor
from kvfabric.engine.isolation import run_isolated
from kvfabric.engine.messages import (
    CancelBlocks,
    ExpectBlocks,
    FromWorker,
    LayersComputed,
    Refused,
    SendBlocks,
    Stop,
    ToWorker,
    WorkerFailed,
)
from kvfabric.engine.transport.port import Piece

Tell = Callable[[FromWorker], None]
"""Passes a message to the control; may be called by any thread."""


class BlockMover(Protocol):
    """Moves KV blocks between this worker and others, and tells the control how that went."""

    def send(self, transfer_id: int, peer: str, pieces: Sequence[Piece]) -> None:
        """Begin to send blocks to a peer, by its address."""
        ...

    def expect(self, transfer_id: int, pieces: Sequence[Piece]) -> None:
        """Let a transfer write to blocks."""
        ...

    def cancel(self, transfer_id: int) -> None:
        """Stop a transfer; nothing of it is written after the return."""
        ...

    def close(self) -> None:
        """Stop all transfers."""
        ...


class Worker:
    """Handles messages in the order in which the control sent them.

    Steps run in a thread of their own, so that a transfer can be started or cancelled while one
    runs. A step is put into its queue after every cancellation before it has been carried out: no
    late byte can reach a block that the step uses.
    """

    def __init__(self, executor: Executor, mover: BlockMover, tell: Tell) -> None:
        """Start idle."""
        self._executor = executor
        self._mover = mover
        self._tell = tell
        self._steps: SimpleQueue[EngineStep | None] = SimpleQueue()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run_steps, name="steps", daemon=True)
        self._thread.start()

    def handle(self, message: ToWorker) -> None:
        """Carry out a message, or put it in the queue of steps."""
        match message:
            case EngineStep():
                self._steps.put(message)
            case SendBlocks(transfer_id, peer, pieces):
                self._mover.send(transfer_id, peer, pieces)
            case ExpectBlocks(transfer_id, pieces):
                self._mover.expect(transfer_id, pieces)
            case CancelBlocks(transfer_id):
                self._mover.cancel(transfer_id)
            case Stop() | Refused():
                self.stop()

    def stop(self) -> None:
        """End once the step that runs is over."""
        self._steps.put(None)
        self._mover.close()

    def join(self, timeout_s: float = 10.0) -> bool:
        """Wait until the last step has run; return whether it has, and none failed."""
        self._thread.join(timeout_s)
        return not (self._thread.is_alive() or self._has_failed)

    def _run_steps(self) -> None:
        while (step := self._steps.get()) is not None:
            try:
                output = run_isolated(self._executor, step, self._reached)
            except Exception as error:  # noqa: BLE001 - whatever it is, the control must know
                self._has_failed = True
                self._tell(WorkerFailed(f"a step failed: {error!r}"))
                return
            self._tell(output)

    def _reached(self, num_layers: int) -> None:
        self._tell(LayersComputed(num_layers))
