"""A server on a port of its own, in a thread, for as long as a test needs it."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import uvicorn

from kvfabric.engine.server.app import MAX_BODY_BYTES, build_app
from kvfabric.engine.server.backend import Backend
from kvfabric.engine.server.lifecycle import Lifecycle, Server

PATIENCE_S = 240.0  # only against waiting for ever: a machine may be slow


@dataclass(frozen=True)
class Running:
    """A running server; ``stop`` asks it to end, as a signal would."""

    url: str
    server: Server
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE_S)


def wait_until(is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait for something that happens in the server's thread."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("waited in vain")


@contextlib.contextmanager
def serving(
    backend: Backend,
    *,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    deadline_s: float = 5.0,
    max_open: int | None = None,
) -> Iterator[Running]:
    lifecycle = Lifecycle(max_open)
    app = build_app(backend, lifecycle, api_key=api_key, max_body_bytes=max_body_bytes)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="error", ws="none", lifespan="off")
        server = Server(config, lifecycle, deadline_s)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield Running(url, server, thread)
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the server does not end"
