"""The way to a worker behind a socket, as the control process has it."""

import contextlib
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue

from kvfabric.engine.messages import FromWorker, Hello, ToWorker, WorkerFailed
from kvfabric.engine.wire import MessageSocket, WireError, decode_from_worker
from kvfabric.errors import KvfabricError


class WorkerStartError(KvfabricError):
    """A worker ended before it was ready."""


class SocketLink:
    """A control connection: a thread writes what is sent, another reads."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over the control's end."""
        self._socket = MessageSocket(sock)
        self._outbox: SimpleQueue[ToWorker | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="to-worker", daemon=True)
        self._reader: threading.Thread | None = None
        self._writer.start()

    def wait_hello(self) -> Hello:
        """Wait until the worker is ready.

        Raises:
            WorkerStartError: it failed.
        """
        try:
            body = self._socket.read()
            message = None if body is None else decode_from_worker(body)
        except WireError as error:
            raise WorkerStartError(f"a worker says {error}") from None
        match message:
            case Hello():
                return message
            case WorkerFailed(reason):
                raise WorkerStartError(reason)
            case _:
                raise WorkerStartError(self._why_silent())

    def _why_silent(self) -> str:
        return "a worker's connection ended before it was ready"

    def start_reading(
        self, receive: Callable[[FromWorker], None], lose: Callable[[str], None]
    ) -> None:
        """Hand on what the worker says, and that it has gone."""

        def read_all() -> None:
            try:
                while (body := self._socket.read()) is not None:
                    receive(decode_from_worker(body))
            except WireError as error:
                lose(f"it says {error}")
                return
            lose("its connection has ended")

        self._reader = threading.Thread(target=read_all, name="from-worker", daemon=True)
        self._reader.start()

    def post(self, message: ToWorker) -> None:
        """Put a message in the queue."""
        self._outbox.put(message)

    def _write_all(self) -> None:
        with contextlib.suppress(OSError):  # the reader notices that the worker has gone
            while (message := self._outbox.get()) is not None:
                self._socket.send(message)

    def end_threads(self) -> None:
        """Cut the connection and wait for both threads."""
        self._outbox.put(None)
        self._socket.shutdown()
        self._writer.join()
        if self._reader is not None:
            self._reader.join()
        self._socket.close()
