"""Brings back workers that have died, while the rest of the cluster goes on."""

import logging
import threading
from typing import Protocol, Self

from kvfabric.engine.control_loop import ControlLoop
from kvfabric.errors import KvfabricError

_logger = logging.getLogger(__name__)


class Restartable(Protocol):
    """A cluster whose workers can be started again."""

    @property
    def loop(self) -> ControlLoop:
        """Return its loop."""
        ...

    def restart(self, worker_id: int) -> None:
        """Start a dead worker again; wait until it is ready."""
        ...


class Supervisor:
    """Looks every ``period_s`` for dead workers; waits longer after each start that failed."""

    def __init__(
        self, cluster: Restartable, *, period_s: float = 1.0, max_wait_s: float = 60.0
    ) -> None:
        """Watch a cluster from ``__enter__`` to ``__exit__``."""
        self._cluster = cluster
        self._period_s, self._max_wait_s = period_s, max_wait_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        """Start to watch."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to watch; a start under way is waited for."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        wait_s = self._period_s
        while not self._ended.wait(wait_s):
            failed = [worker_id for worker_id in self._lost() if not self._restart(worker_id)]
            wait_s = min(2 * wait_s, self._max_wait_s) if failed else self._period_s

    def _lost(self) -> list[int]:
        loop = self._cluster.loop
        workers = loop.driver.workers
        # Asked in this order, a worker that joins meanwhile is found alive.
        absent = [worker for worker in workers if not loop.is_joining(worker.worker_id)]
        return [worker.worker_id for worker in absent if worker.is_lost]

    def _restart(self, worker_id: int) -> bool:
        _logger.warning("worker_id=%d died, starting it again", worker_id)
        try:
            self._cluster.restart(worker_id)
        except (KvfabricError, OSError) as error:
            _logger.warning("worker_id=%d does not start: %s", worker_id, error)
            return False
        return True
