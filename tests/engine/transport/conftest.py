"""Workers that are closed at the end of a test, and a check that nothing of them is left."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from transport_workers import MakeWorker, Worker, kv_threads, open_fds


@pytest.fixture(params=["unix", "tcp"])
def make_worker(request: pytest.FixtureRequest) -> Iterator[MakeWorker]:
    """Yield a function that makes workers; afterwards no thread, socket or file is left."""
    before = open_fds()
    workers: list[Worker] = []
    numbers = count()
    with TemporaryDirectory() as folder:  # short: a socket's path has few bytes

        def make(**options: object) -> Worker:
            unix = f"unix:{folder}/{next(numbers)}"
            listen_on = unix if request.param == "unix" else "tcp:127.0.0.1:0"
            workers.append(Worker(listen_on, **options))  # type: ignore[arg-type]
            return workers[-1]

        yield make
        for worker in workers:
            worker.transport.close()
        assert kv_threads() == []
        assert open_fds() == before
        assert list(Path(folder).iterdir()) == []
