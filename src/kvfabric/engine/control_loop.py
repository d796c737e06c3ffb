"""The wall clock of a running cluster: one thread that hands on what happens, as it happens.

Clients and workers leave messages from any thread. The loop takes all that are there, reads the
clock once, and lets the driver handle them as one instant; so an instant is later than what
happened in it by the time the loop took to come round.
"""

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.driver import LiveDriver
from kvfabric.engine.events import (
    Arrived,
    Cancelled,
    DeadlinePassed,
    Event,
    GenerateRequest,
    LayersReady,
    StepEnded,
    TransferLost,
    Transferred,
    WorkerJoined,
    WorkerLost,
)
from kvfabric.engine.executor_port import StepOutput
from kvfabric.engine.messages import (
    FromWorker,
    Hello,
    LayersComputed,
    Stop,
    ToWorker,
    TransferDone,
    TransferFailed,
    WorkerFailed,
)
from kvfabric.engine.token_streams import OutputSink
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.scheduler import Scheduler


class WorkerLink(Protocol):
    """The way to one worker, as long as it lives."""

    def post(self, message: ToWorker) -> None:
        """Send a message, without waiting; messages keep their order."""
        ...

    def close(self) -> None:
        """Let go of the worker, dead or alive."""
        ...


class _FromLink(NamedTuple):
    worker_id: int
    link: WorkerLink
    message: FromWorker


class _LinkLost(NamedTuple):
    worker_id: int
    link: WorkerLink
    reason: str


class _Close(NamedTuple):
    pass


_Inbound = _FromLink | _LinkLost | _Close | Arrived | Cancelled


class ControlLoop:
    """Runs a cluster until it is closed; ``run`` is for a thread of its own."""

    def __init__(
        self,
        coordinator: Coordinator,
        schedulers: Sequence[Scheduler],
        sink: OutputSink,
        *,
        log: DecisionLog | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        step_deadline_ns: int = 120_000_000_000,
        on_lost: Callable[[int], None] | None = None,
        check: bool = False,
    ) -> None:
        """Make the loop of workers that still have to be connected.

        Args:
            coordinator: the control.
            schedulers: of the workers, by id.
            sink: who takes tokens and ends; called by the loop's thread.
            log: keeps what happens.
            clock: monotonic, in ns.
            step_deadline_ns: a worker whose step takes longer is taken for dead.
            on_lost: called by the loop's thread with the id of a worker that is lost.
            check: assert every invariant after every instant (slow).
        """
        self._coordinator, self._schedulers = coordinator, schedulers
        self._sink, self._log = sink, log
        self._clock = clock
        self._start_ns = clock()
        self._step_deadline_ns = step_deadline_ns
        self._on_lost = on_lost
        self._check = check
        self._inbox: SimpleQueue[_Inbound] = SimpleQueue()
        self._links: list[WorkerLink | None] = [None] * len(schedulers)
        self._joining: set[tuple[int, WorkerLink]] = set()
        self._model = ""
        self._driver: LiveDriver | None = None
        self.failures: list[str] = []  # of transfers and workers, as they were told

    # ------------------------------------------------------------------ from any thread

    def submit(self, request: GenerateRequest) -> None:
        """Let a client ask."""
        assert request.prompt_ids, "a prompt has a token"
        assert request.sampling.max_tokens > 0, "an output has a token"
        self._inbox.put(Arrived(request))

    def cancel(self, request_id: int) -> None:
        """Let a client give up; too late or too early is harmless."""
        self._inbox.put(Cancelled(request_id))

    def receive(self, worker_id: int, link: WorkerLink, message: FromWorker) -> None:
        """Take what a worker says; a ``Hello`` brings back one that was lost."""
        if isinstance(message, Hello):
            self._joining.add((worker_id, link))
        self._inbox.put(_FromLink(worker_id, link, message))

    def is_joining(self, worker_id: int) -> bool:
        """Return whether a worker has come back that still counts as lost."""
        return any(joining == worker_id for joining, _ in tuple(self._joining))

    def lose(self, worker_id: int, link: WorkerLink, reason: str) -> None:
        """Take in that the connection to a worker has ended."""
        self._inbox.put(_LinkLost(worker_id, link, reason))

    def close(self) -> None:
        """Stop the workers and let ``run`` return; requests in flight stay unfinished."""
        self._inbox.put(_Close())

    # ------------------------------------------------------------------ the loop's thread

    @property
    def driver(self) -> LiveDriver:
        """Return the driver; only the loop's thread may change it."""
        assert self._driver is not None, "not connected yet"
        return self._driver

    def connect(self, links: Sequence[WorkerLink], hellos: Sequence[Hello]) -> None:
        """Take over workers, all of the same model, before ``run``."""
        self._links[:] = links
        self._model = hellos[0].model
        assert all(hello.model == self._model for hello in hellos), "workers of different models"
        self._driver = LiveDriver(
            self._coordinator, self._schedulers, hellos, self._post, self._sink, log=self._log
        )

    def run(self) -> None:
        """Handle what happens until ``close``."""
        try:
            while self._round():
                pass
        finally:
            for link in self._links:
                if link is not None:
                    link.post(Stop())
                    link.close()

    def _round(self) -> bool:
        """Wait for something, handle all that is there; return False to end."""
        inbound = self._take()
        events: list[Event] = []
        is_open = True
        for message in inbound:
            if isinstance(message, _Close):
                is_open = False
            elif isinstance(message, _FromLink) and isinstance(message.message, Hello):
                self._handle(events)  # what is sent because of these is not for the new worker
                events = []
                self._rejoin(message.worker_id, message.link, message.message, events)
                self._handle(events)
                self._joining.discard((message.worker_id, message.link))
                events = []
            else:
                self._translate(message, events)
        self._handle(events)
        return is_open

    def _take(self) -> list[_Inbound]:
        inbound: list[_Inbound] = []
        try:
            inbound.append(self._inbox.get(timeout=self._wait_s()))
            while True:
                inbound.append(self._inbox.get_nowait())
        except Empty:
            return inbound

    def _wait_s(self) -> float | None:
        """Return for how long nothing is due."""
        due = [w.start_ns + self._step_deadline_ns for w in self.driver.workers if w.plan]
        deadline_ns = self.driver.next_deadline_ns()
        if deadline_ns is not None:
            due.append(deadline_ns)
        if not due:
            return None
        return max(0, min(due) - (self._clock() - self._start_ns)) / 1e9

    def _translate(
        self, inbound: _FromLink | _LinkLost | Arrived | Cancelled, events: list[Event]
    ) -> None:
        match inbound:
            case _FromLink(worker_id, link, message):
                if self._links[worker_id] is link:
                    self._said(worker_id, message, events)
            case _LinkLost(worker_id, link, reason):
                if self._links[worker_id] is link:
                    self._drop(worker_id, reason, events)
            case _:
                events.append(inbound)

    def _said(self, worker_id: int, message: FromWorker, events: list[Event]) -> None:
        match message:
            case StepOutput():
                self.failures += [f"request {i}: {reason}" for i, reason in message.failed]
                events.append(StepEnded(worker_id, message))
            case LayersComputed(num_layers):
                events.append(LayersReady(worker_id, num_layers))
            case TransferDone(transfer_id):
                events.append(Transferred(transfer_id))
            case TransferFailed(transfer_id, reason):
                self.failures.append(f"worker {worker_id}, transfer {transfer_id}: {reason}")
                events.append(TransferLost(transfer_id))
            case WorkerFailed(reason):
                self._drop(worker_id, reason, events)
            case Hello():
                raise AssertionError("handled before")

    def _rejoin(self, worker_id: int, link: WorkerLink, hello: Hello, events: list[Event]) -> None:
        if hello.model != self._model:
            self.failures.append(f"worker {worker_id}: another model, dtype or KV layout")
            link.close()
            return
        if self._links[worker_id] is not None:
            self._drop(worker_id, "another one came in its place", events)
            self._handle(events)
            events.clear()
        self._links[worker_id] = link
        events.append(WorkerJoined(worker_id, hello))

    def _drop(self, worker_id: int, reason: str, events: list[Event]) -> None:
        link, self._links[worker_id] = self._links[worker_id], None
        assert link is not None
        link.close()
        self.failures.append(f"worker {worker_id}: {reason}")
        events.append(WorkerLost(worker_id, reason))
        if self._on_lost is not None:
            self._on_lost(worker_id)

    def _post(self, worker_id: int, message: ToWorker) -> None:
        link = self._links[worker_id]
        if link is not None:
            link.post(message)

    def _handle(self, events: list[Event]) -> None:
        """Handle deadlines at their own instants, then everything else now."""
        driver = self.driver
        now_ns = self._clock() - self._start_ns
        for worker in driver.workers:
            is_late = worker.plan and now_ns >= worker.start_ns + self._step_deadline_ns
            if is_late and self._links[worker.worker_id] is not None:
                self._drop(worker.worker_id, "its step takes too long", events)
        while (due_ns := driver.next_deadline_ns()) is not None and due_ns <= now_ns:
            self._advance(max(due_ns, driver.now_ns + 1), [DeadlinePassed()])
        if events:
            self._advance(max(self._clock() - self._start_ns, driver.now_ns + 1), events)

    def _advance(self, now_ns: int, events: list[Event]) -> None:
        has_more = self.driver.advance(now_ns, events)
        if self._check:
            self.driver.check_invariants()
        while has_more:
            has_more = self.driver.advance(self.driver.now_ns + 1, [])
