"""A cluster inside one process: every worker is a thread."""

from collections.abc import Callable, Sequence
from typing import Self

from kvfabric.engine.admission import Limits
from kvfabric.engine.cluster_settings import ClusterSettings, coordinator_of, schedulers_of
from kvfabric.engine.control_loop import ControlLoop
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.executor_port import Executor
from kvfabric.engine.local_mover import LocalFabric, LocalMover
from kvfabric.engine.loop_thread import LoopThread
from kvfabric.engine.messages import FromWorker, Hello, ToWorker
from kvfabric.engine.token_streams import OutputSink
from kvfabric.engine.worker import Worker


class LocalLink:
    """The way to a worker of the same process."""

    def __init__(
        self, loop: ControlLoop, worker_id: int, executor: Executor, fabric: LocalFabric
    ) -> None:
        """Start a worker."""
        self._loop, self._worker_id = loop, worker_id
        self._worker = Worker(executor, LocalMover(fabric, executor, self._tell), self._tell)

    def _tell(self, message: FromWorker) -> None:
        self._loop.receive(self._worker_id, self, message)

    def post(self, message: ToWorker) -> None:
        """Let the worker handle a message."""
        self._worker.handle(message)

    def close(self) -> None:
        """Stop the worker once its step is over."""
        self._worker.stop()

    def join(self) -> None:
        """Wait until the worker's thread has ended."""
        self._worker.join()


class LocalCluster:
    """Workers, control and loop; a context manager that ends them all.

    Attributes:
        loop: takes requests.
        block_bytes: KV bytes of one block.
        limits: of the model.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        executors: Sequence[Executor],
        sink: OutputSink,
        *,
        block_bytes: int,
        num_layers: int,
        limits: Limits | None = None,
        log: DecisionLog | None = None,
        on_error: Callable[[BaseException], None] | None = None,
        check: bool = False,
    ) -> None:
        """Make the cluster; it runs from ``__enter__`` on.

        Args:
            settings: of the cluster.
            executors: one per worker, by id, all of the same model.
            sink: who takes tokens and ends.
            block_bytes: KV bytes of one block.
            num_layers: of the KV cache.
            limits: of the model; None if there are none that matter.
            log: keeps what happens.
            on_error: called by the loop's thread with what ended it; nothing more will come.
            check: assert every invariant after every instant (slow).
        """
        self._hello = Hello("local", settings.num_blocks, block_bytes, "", limits, num_layers)
        self.block_bytes, self.limits = block_bytes, limits
        self._fabric = LocalFabric()
        self.loop = ControlLoop(
            coordinator_of(settings, block_bytes, num_layers),
            schedulers_of(settings),
            sink,
            log=log,
            check=check,
        )
        self._links = [
            LocalLink(self.loop, i, executor, self._fabric) for i, executor in enumerate(executors)
        ]
        self.loop.connect(self._links, [self._hello] * len(executors))
        self._thread = LoopThread(self.loop, on_error)

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
            for link in self._links:
                link.close()
                link.join()
            self._fabric.close()

    @property
    def is_alive(self) -> bool:
        """Return whether the loop runs."""
        return self._thread.is_alive

    def raise_if_failed(self) -> None:
        """Raise what ended the loop, if anything did."""
        self._thread.raise_if_failed()

    def kill(self, worker_id: int, reason: str = "killed") -> None:
        """Let a worker die with all it holds."""
        self.loop.lose(worker_id, self._links[worker_id], reason)

    def restart(self, worker_id: int, executor: Executor) -> None:
        """Bring a worker back, empty."""
        link = LocalLink(self.loop, worker_id, executor, self._fabric)
        self._links[worker_id] = link
        self.loop.receive(worker_id, link, self._hello)
