"""What workers reported, as old as a router sees it."""

from kvfabric.serving.commands import WorkerSignal


class SignalBoard:
    """The latest report of every worker as of the last multiple of an interval.

    A worker's state at that instant is the one before its first change after it, so it is enough to
    be told of changes: no periodic event is needed.

    What is seen is the same throughout an interval, so that it is brought up to date once, for the
    workers that changed.
    """

    __slots__ = (
        "_before",
        "_changed",
        "_changed_in",
        "_latest",
        "_prompts",
        "_queued",
        "_seen_in",
        "interval_ns",
    )

    def __init__(self, num_workers: int, interval_ns: int) -> None:
        """Start with all workers idle."""
        assert interval_ns >= 1
        self.interval_ns = interval_ns
        self._latest = [WorkerSignal()] * num_workers
        self._before = [WorkerSignal()] * num_workers
        self._changed_in = [-1] * num_workers  # the interval of the latest change
        self._changed: set[int] = set()  # since they were brought up to date
        self._queued = [0] * num_workers  # as seen in the interval below
        self._prompts = [0] * num_workers
        self._seen_in = -1

    def put(self, worker: int, signal: WorkerSignal, now_ns: int) -> None:
        """Take in the state of a worker after a change."""
        interval = now_ns // self.interval_ns
        if interval > self._changed_in[worker]:
            self._before[worker] = self._latest[worker]
            self._changed_in[worker] = interval
            self._changed.add(worker)
        self._latest[worker] = signal

    def reset(self, worker: int) -> None:
        """Forget what a worker was; it is idle."""
        self._latest[worker] = self._before[worker] = WorkerSignal()
        self._changed_in[worker] = -1
        self._changed.discard(worker)
        self._queued[worker] = self._prompts[worker] = 0

    def interval_of(self, now_ns: int) -> int:
        """Return the number of the interval an instant lies in."""
        return now_ns // self.interval_ns

    def queued_tokens(self, now_ns: int) -> list[int]:
        """Return the queued tokens of all workers as seen at an instant; not to be changed."""
        self._see(now_ns // self.interval_ns)
        return self._queued

    def prompt_tokens(self, now_ns: int) -> list[int]:
        """Return the prompt tokens of all workers as seen at an instant; not to be changed."""
        self._see(now_ns // self.interval_ns)
        return self._prompts

    def _see(self, interval: int) -> None:
        if interval == self._seen_in:
            return
        self._seen_in = interval
        for worker in tuple(self._changed):
            signal = self._before[worker]
            if self._changed_in[worker] < interval:
                signal = self._latest[worker]
                self._changed.remove(worker)
            self._queued[worker] = signal.num_queued_tokens
            self._prompts[worker] = signal.num_prompt_tokens
