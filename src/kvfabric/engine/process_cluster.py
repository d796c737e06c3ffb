"""A cluster of worker processes on one host, each behind a socket pair.

KV blocks move by maps of the workers' pools, or another way: ``transport.choose``.
"""

import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from kvfabric.engine.cluster_settings import ClusterSettings, coordinator_of, schedulers_of
from kvfabric.engine.control_loop import ControlLoop
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.executor_spec import ExecutorSpec
from kvfabric.engine.links import SocketLink, WorkerStartError
from kvfabric.engine.loop_thread import LoopThread
from kvfabric.engine.messages import Stop
from kvfabric.engine.token_streams import OutputSink
from kvfabric.engine.transport.choose import AUTO, SHARED, SOCKETS
from kvfabric.engine.worker_main import WorkerProcessSettings

__all__ = ["ProcessCluster", "ProcessLink", "WorkerStartError"]

_EXIT_S = 10.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 30.0


class ProcessLink(SocketLink):
    """The way to a worker process of this host."""

    def __init__(self, settings: WorkerProcessSettings) -> None:
        """Start the process; ``wait_hello`` waits until it is ready."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "kvfabric.engine.worker_main", str(theirs.fileno())]
            self.process = subprocess.Popen(  # noqa: S603 - ourselves
                [*command, settings.to_json()], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        super().__init__(ours)
        self._is_closed = False

    def _why_silent(self) -> str:
        return f"a worker process ended with exit code {self.process.wait(_EXIT_S)}"

    def close(self) -> None:
        """Let the worker end by itself, if it still can; ``join`` sees to it."""
        if not self._is_closed:
            self._is_closed = True
            self.post(Stop())
            self._outbox.put(None)

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self.process.kill()

    def join(self, timeout_s: float = _EXIT_S) -> None:
        """Wait until the process has ended, by force if it takes too long."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.end_threads()


class ProcessCluster:
    """Worker processes, control and loop; a context manager that ends them all.

    Attributes:
        loop: takes requests.
        links: the ways to the workers, by id, for tests that harm them.
        block_bytes: KV bytes of one block.
        limits: of the model.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        executor: ExecutorSpec,
        sink: OutputSink,
        *,
        log: DecisionLog | None = None,
        restarts_lost: bool = False,
        on_error: Callable[[BaseException], None] | None = None,
        check: bool = False,
    ) -> None:
        """Start the workers and wait until all are ready.

        Args:
            settings: of the cluster.
            executor: of every worker.
            sink: who takes tokens and ends.
            log: keeps what happens.
            restarts_lost: bring back workers that are lost, each after a pause that doubles.
            on_error: called by the loop's thread with what ended it; nothing more will come.
            check: assert every invariant after every instant (slow).

        Raises:
            WorkerStartError: a worker could not start, with its reason.
        """
        self._settings, self._executor = settings, executor
        self._transport = _transport_of(settings, executor)
        self._cluster = secrets.token_hex(8)
        self._folder = tempfile.TemporaryDirectory(prefix="kvfabric-")
        self._num_started = 0
        self._closing = threading.Event()
        self._restarts: list[threading.Thread] = []
        self._num_restarts = [0] * settings.num_workers
        self.links: list[ProcessLink] = []
        try:
            self.links += [self._spawn() for _ in range(settings.num_workers)]
            hellos = [link.wait_hello() for link in self.links]
        except BaseException:
            self._end_all(0.0)
            raise
        self.block_bytes = hellos[0].block_bytes
        self.limits = hellos[0].limits
        self.loop = ControlLoop(
            coordinator_of(settings, self.block_bytes, hellos[0].num_layers),
            schedulers_of(settings),
            sink,
            log=log,
            on_lost=self._bring_back if restarts_lost else None,
            check=check,
        )
        self.loop.connect(self.links, hellos)
        for worker_id, link in enumerate(self.links):
            self._read(worker_id, link)
        self._thread = LoopThread(self.loop, on_error)

    def _spawn(self) -> ProcessLink:
        self._num_started += 1
        path = Path(self._folder.name) / f"kv-{self._num_started}"
        process = WorkerProcessSettings(
            executor=self._executor.to_dict(),
            listen_on=f"unix:{path}",
            cluster=self._cluster,
            transfer_timeout_ns=2 * self._settings.handoff_deadline_ns,
            transport=self._transport,
        )
        return ProcessLink(process)

    def _read(self, worker_id: int, link: ProcessLink) -> None:
        link.start_reading(
            lambda message: self.loop.receive(worker_id, link, message),
            lambda reason: self.loop.lose(worker_id, link, reason),
        )

    def restart(self, worker_id: int) -> None:
        """Bring a worker back that has died, empty; waits until it is ready.

        What is left of the old process ends first: its memory is needed.

        Raises:
            WorkerStartError: it could not start.
        """
        old = self.links[worker_id]
        old.kill()
        old.join()
        link = self.links[worker_id] = self._spawn()
        hello = link.wait_hello()
        self._read(worker_id, link)
        self.loop.receive(worker_id, link, hello)

    def _bring_back(self, worker_id: int) -> None:
        """Restart a worker beside the loop, which must not wait for it."""
        pause_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** self._num_restarts[worker_id])
        self._num_restarts[worker_id] += 1

        def bring_back() -> None:
            while not self._closing.wait(pause_s):
                try:
                    self.restart(worker_id)
                except WorkerStartError as error:
                    self.loop.failures.append(f"worker {worker_id}: {error}")
                    continue
                return

        thread = threading.Thread(target=bring_back, name="restart", daemon=True)
        self._restarts.append(thread)
        thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the loop runs."""
        return self._thread.is_alive

    def raise_if_failed(self) -> None:
        """Raise what ended the loop, if anything did."""
        self._thread.raise_if_failed()

    def __enter__(self) -> Self:
        """Start the loop."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the loop and all workers.

        Raises:
            Exception: the loop ended by one.
        """
        try:
            self._thread.end()
        finally:
            self._end_all(_EXIT_S)

    def _end_all(self, timeout_s: float) -> None:
        self._closing.set()
        for thread in self._restarts:
            thread.join()
        end_s = time.monotonic() + timeout_s
        for link in self.links:
            link.join(max(0.0, end_s - time.monotonic()))
        self._folder.cleanup()


def _transport_of(settings: ClusterSettings, executor: ExecutorSpec) -> str:
    """Return how KV blocks move: by maps of the peers' pools only where there are some."""
    wanted, is_on_cpu = settings.kv_transport, executor.device == "cpu"
    if wanted == AUTO:
        return SHARED if is_on_cpu and settings.num_decode else SOCKETS
    if wanted == SHARED and not is_on_cpu:
        sys.stderr.write(
            f"kvfabric: KV cache on {executor.device} cannot be shared between processes; "
            "it moves over sockets\n"
        )
        return SOCKETS
    return wanted
