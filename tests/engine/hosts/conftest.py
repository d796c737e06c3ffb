"""Worker processes that no test leaves behind."""

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from joined_clusters import start_worker

from kvfabric.engine.hosts.joining import Role

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start_one(address: tuple[str, int], role: Role, **options: Any) -> subprocess.Popen[str]:
        started.append(start_worker(address, role, **options))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()
