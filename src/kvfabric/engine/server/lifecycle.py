"""From start to a graceful end: what runs is finished, or told that it failed, by a deadline."""

import asyncio
import contextlib
import math
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn

from kvfabric.engine.server.errors import ApiError, server_error, too_many
from kvfabric.engine.server.outputs import RequestOutputs

_LAST_WORDS_S = 2  # for error bodies to reach clients after the deadline


def _shutting_down() -> ApiError:
    return server_error("The server is shutting down.", status=503, code="shutting_down")


class Lifecycle:
    """Knows the requests that run, and whether new ones are taken."""

    def __init__(self, max_open: int | None = None) -> None:
        """Take requests, while less than ``max_open`` outputs run or wait."""
        self._running: set[RequestOutputs] = set()
        self._max_open = max_open
        self._num_open = 0
        self.is_draining = False

    def admit(self) -> None:
        """Raise an ``ApiError`` if no more requests are taken."""
        if self.is_draining:
            raise _shutting_down()

    @contextlib.contextmanager
    def running(self, outputs: RequestOutputs) -> Iterator[None]:
        """Count a request as running while in this context; refuse it when draining or full.

        A request of more outputs than may be open is taken when nothing else is.
        """
        self.admit()
        num_open = self._num_open + outputs.num_outputs
        if self._max_open is not None and self._num_open and num_open > self._max_open:
            raise too_many(self._num_open)
        self._num_open = num_open
        self._running.add(outputs)
        try:
            yield
        finally:
            self._running.discard(outputs)
            self._num_open -= outputs.num_outputs

    async def drain(self, deadline_s: float) -> None:
        """Take no more requests; fail those that still run after ``deadline_s``."""
        self.is_draining = True
        step_s = 0.02
        while self._running and deadline_s > 0:
            await asyncio.sleep(step_s)
            deadline_s -= step_s
        for outputs in self._running:
            outputs.fail(_shutting_down())


class Server(uvicorn.Server):
    """A uvicorn server whose end is graceful."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, deadline_s: float) -> None:
        """Serve until a signal, then finish what runs within ``deadline_s``."""
        config.timeout_graceful_shutdown = math.ceil(deadline_s) + _LAST_WORDS_S
        super().__init__(config)
        self._lifecycle, self._deadline_s = lifecycle, deadline_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen, drain, close what is left."""
        drain = asyncio.create_task(self._lifecycle.drain(self._deadline_s))
        await super().shutdown(sockets)
        drain.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drain

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGINT and SIGTERM, in good order and once: what stands after may clean up."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
