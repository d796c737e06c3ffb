"""What workers reported, as old as a router sees it."""

from kvfabric.serving.commands import WorkerSignal


class SignalBoard:
    """The latest report of every worker as of the last multiple of an interval.

    A worker's state at that instant is the one before its first change after it, so it is enough to
    be told of changes: no periodic event is needed.
    """

    __slots__ = ("_before", "_changed_in", "_interval_ns", "_latest")

    def __init__(self, num_workers: int, interval_ns: int) -> None:
        """Start with all workers idle."""
        assert interval_ns >= 1
        self._interval_ns = interval_ns
        self._latest = [WorkerSignal()] * num_workers
        self._before = [WorkerSignal()] * num_workers
        self._changed_in = [-1] * num_workers  # the interval of the latest change

    def put(self, worker: int, signal: WorkerSignal, now_ns: int) -> None:
        """Take in the state of a worker after a change."""
        interval = now_ns // self._interval_ns
        if interval > self._changed_in[worker]:
            self._before[worker] = self._latest[worker]
            self._changed_in[worker] = interval
        self._latest[worker] = signal

    def reset(self, worker: int) -> None:
        """Forget what a worker was; it is idle."""
        self._latest[worker] = self._before[worker] = WorkerSignal()
        self._changed_in[worker] = -1

    def interval_of(self, now_ns: int) -> int:
        """Return the number of the interval an instant lies in."""
        return now_ns // self._interval_ns

    def seen(self, now_ns: int) -> list[WorkerSignal]:
        """Return the reports that a router sees at an instant: those of its interval's start."""
        interval = now_ns // self._interval_ns
        return [
            self._latest[worker] if changed < interval else self._before[worker]
            for worker, changed in enumerate(self._changed_in)
        ]
