"""Workers that are closed at the end of a test, and a check that nothing of them is left."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from transport_workers import (
    MakeWorker,
    Pool,
    Worker,
    collect_garbage,
    kv_threads,
    mapped_pools,
    open_fds,
    wait_until,
)


@pytest.fixture(params=["unix", "shared", "tcp"])
def make_worker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeWorker]:
    """Yield a function that makes workers; afterwards no thread, socket, file or mapping is left.

    ``shared``: on a Unix socket, with pools that peers map.
    """
    monkeypatch.setattr(Pool, "in_shared_memory", request.param == "shared")
    collect_garbage()
    before = open_fds(), mapped_pools()
    workers: list[Worker] = []
    numbers = count()
    with TemporaryDirectory() as folder:  # short: a socket's path has few bytes

        def make(**options: object) -> Worker:
            unix = f"unix:{folder}/{next(numbers)}"
            listen_on = "tcp:127.0.0.1:0" if request.param == "tcp" else unix
            workers.append(Worker(listen_on, **options))  # type: ignore[arg-type]
            return workers[-1]

        yield make
        while workers:
            workers.pop().close()
        collect_garbage()  # a pool's mapping ends with what holds a view of it
        wait_until(lambda: kv_threads() == [])  # a receiver's is forgotten just before its end
        assert (open_fds(), mapped_pools()) == before
        assert list(Path(folder).iterdir()) == []
