"""The driver of real workers: carries commands, steps and transfers between them and the control.

It does in real time what ``sim.simulation`` does in virtual time, with the same control, and like
it decides nothing. It reads no clock and waits for nothing: ``control_loop`` tells it what has
happened and at which instant. Steps are planned one at a time per worker, when the last has ended.

What differs from the simulation: a prompt that is read while a step runs counts as read when that
step ends.
"""

from collections.abc import Callable, Sequence

from kvfabric.engine.block_transfers import BlockTransfers, Moving
from kvfabric.engine.decision_log import NEVER_NS, DecisionLog, RecordedArrival
from kvfabric.engine.events import (
    Arrived,
    Cancelled,
    DeadlinePassed,
    Event,
    GenerateRequest,
    StepEnded,
    TransferLost,
    Transferred,
    WorkerJoined,
    WorkerLost,
    order,
)
from kvfabric.engine.executor_port import NewRequest, StepOutput
from kvfabric.engine.live_worker import LiveWorker
from kvfabric.engine.messages import (
    CancelBlocks,
    ExpectBlocks,
    Hello,
    SendBlocks,
    ToWorker,
)
from kvfabric.engine.token_streams import OutputSink, TokenStreams
from kvfabric.protocol.step import StepPlan, StepResult
from kvfabric.protocol.transfer import KvPiece, TransferPlan
from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    EndRequest,
    IncomingRequest,
    SendCommand,
    StartRead,
    StartTransfer,
)
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Command,
    Finished,
    PrefillStarted,
    ReleaseHeld,
    WorkerEvent,
)
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.request import Goal
from kvfabric.serving.scheduler import Scheduler

Post = Callable[[int, ToWorker], None]
"""Sends a message to a worker by id, in order, without waiting; to a dead one it does nothing."""


class LiveDriver:
    """One running cluster, from one instant to the next."""

    def __init__(
        self,
        coordinator: Coordinator,
        schedulers: Sequence[Scheduler],
        hellos: Sequence[Hello],
        post: Post,
        sink: OutputSink,
        *,
        log: DecisionLog | None = None,
    ) -> None:
        """Join the parts at instant 0.

        Args:
            coordinator: the control, of workers with one GPU each, whose index is the worker's id.
            schedulers: in the coordinator's order of worker ids.
            hellos: of the workers, which are all there.
            post: how messages reach workers.
            sink: who takes tokens and ends.
            log: takes what happens; None keeps nothing.
        """
        assert coordinator.num_layer_groups <= 1, "layers are not reported one by one"
        self._coordinator = coordinator
        self._workers = [
            LiveWorker(i, scheduler, address=hello.address)
            for i, (scheduler, hello) in enumerate(zip(schedulers, hellos, strict=True))
        ]
        self._post = post
        self._streams = TokenStreams(sink)
        self._log = log
        self._is_streaming = coordinator.num_layer_groups > 0
        self._now_ns = 0
        self._dirty: set[int] = set()  # workers that may plan
        self._changed: set[int] = set()  # since they reported
        self._report_ns = coordinator.signal_interval_ns
        self._requests: dict[int, GenerateRequest] = {}
        kv = schedulers[0].kv
        self._transfers = BlockTransfers(kv.block_size, hellos[0].block_bytes)

    # ------------------------------------------------------------------ what others may ask

    @property
    def now_ns(self) -> int:
        """Return the instant handled last."""
        return self._now_ns

    @property
    def num_in_flight(self) -> int:
        """Return the requests that have arrived and not ended."""
        return len(self._requests)

    @property
    def workers(self) -> Sequence[LiveWorker]:
        """Return the workers by id, for reading."""
        return self._workers

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing runs, moves or waits."""
        return not (
            self._requests or self._transfers.num_moving or any(w.plan for w in self._workers)
        )

    @property
    def num_held_blocks(self) -> int:
        """Return the KV blocks in use over all workers; zero once every request has ended."""
        return sum(worker.scheduler.kv.pool.num_used for worker in self._workers)

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of all hand-offs that were started."""
        return self._transfers.moved_bytes

    @property
    def transfer_ns(self) -> int:
        """Return how long all transfers took that arrived."""
        return self._transfers.transfer_ns

    def next_deadline_ns(self) -> int | None:
        """Return when ``DeadlinePassed`` is due."""
        return self._coordinator.next_deadline_ns()

    def check_invariants(self) -> None:
        """Assert the invariants of every part; callable between two instants."""
        self._coordinator.check_invariants()
        for worker in self._workers:
            worker.scheduler.check_invariants()

    # ------------------------------------------------------------------ one instant

    def advance(self, now_ns: int, events: Sequence[Event]) -> bool:
        """Handle what happened until ``now_ns``; return whether something happens right after.

        Args:
            now_ns: later than the instant before.
            events: in any order; of workers and transfers that still exist.
        """
        assert now_ns > self._now_ns, "instants ascend"
        if now_ns >= self._report_ns:
            self._report(now_ns)
        self._now_ns = now_ns
        at_once = [Transferred(i) for i in self._transfers.take_empty()]
        for event in sorted([*events, *at_once], key=order):
            self._apply(event)
        while self._dirty:
            self._schedule_dirty()
        return self._transfers.has_empty

    def _apply(self, event: Event) -> None:
        match event:
            case StepEnded(worker_id, output):
                self._end_step(self._workers[worker_id], output)
            case Transferred(transfer_id):
                self._transferred(transfer_id)
            case WorkerLost(worker_id):
                self._lose(self._workers[worker_id])
            case WorkerJoined(worker_id, hello):
                self._join(self._workers[worker_id], hello)
            case Cancelled(request_id):
                self._cancel(request_id)
            case TransferLost(transfer_id):
                self._transfer_lost(transfer_id)
            case DeadlinePassed():
                self._act(self._coordinator.expire(self._now_ns), -1)
            case Arrived(request):
                self._arrive(request)

    def _report(self, now_ns: int) -> None:
        """Report, before the first instant of a new interval, what changed in the one before."""
        for worker_id in self._changed:
            signal = self._workers[worker_id].scheduler.signal(self._now_ns)
            self._coordinator.observe(worker_id, signal, self._now_ns)
        self._changed.clear()
        interval_ns = self._coordinator.signal_interval_ns
        self._report_ns = (now_ns // interval_ns + 1) * interval_ns

    def _note(self, kind: str, ident: int, other: int = -1) -> None:
        if self._log is not None:
            self._log.note(self._now_ns, kind, ident, other)

    # ------------------------------------------------------------------ clients

    def _arrive(self, request: GenerateRequest) -> None:
        request_id, prompt_ids, sampling, block_hashes, namespace = request
        self._note("arrival", request_id)
        self._requests[request_id] = request
        self._streams.open(request_id)
        incoming = IncomingRequest(
            request_id, len(prompt_ids), sampling.max_tokens, block_hashes, namespace
        )
        if self._log is not None:
            self._log.arrivals.append(RecordedArrival(self._now_ns, *incoming))
        self._act(self._coordinator.arrive(incoming, self._now_ns), request_id)

    def _cancel(self, request_id: int) -> None:
        self._note("cancel", request_id)
        if self._log is not None:
            self._log.cancels.append((self._now_ns, request_id))
        self._act(self._coordinator.cancel(request_id, self._now_ns), request_id)

    def _end(self, end: EndRequest) -> None:
        record = end.record
        del self._requests[record.request_id]
        self._transfers.forget(record.request_id)
        if self._log is not None:
            self._log.records.append(record)
        self._streams.end(record)

    # ------------------------------------------------------------------ what the control asks for

    def _act(self, actions: list[Action], request_id: int) -> None:
        """Carry out what the control answered to something about a request."""
        for action in actions:
            match action:
                case SendCommand(worker_id, command):
                    self._send(self._workers[worker_id], command)
                case StartTransfer(transfer):
                    self._start_transfer(transfer, request_id)
                case CancelTransfer(transfer_id):
                    self._stop_transfer(transfer_id)
                case EndRequest():
                    self._end(action)
                case StartRead():
                    raise AssertionError("no KV pool outside of the workers yet")

    def _send(self, worker: LiveWorker, command: Command) -> None:
        match command:
            case AddRequest():
                self._add(worker, command)
            case Cancel(request_id) | ReleaseHeld(request_id):
                worker.builder.drop(request_id)
                if request_id in worker.to_read:
                    worker.to_read.remove(request_id)
        events = worker.scheduler.handle(command, self._now_ns)
        self._changed.add(worker.worker_id)
        if worker.plan is None:
            self._dirty.add(worker.worker_id)
        self._tell(worker, events)

    def _add(self, worker: LiveWorker, command: AddRequest) -> None:
        request_id = command.request_id
        if self._coordinator.awaits_queued(request_id, worker.worker_id):
            if worker.plan is None:
                self._coordinator.on_queued(request_id, self._now_ns)
            else:
                worker.to_read.append(request_id)
        request = self._requests[request_id]
        sampling = request.sampling._replace(max_tokens=command.max_tokens)
        new = NewRequest(request_id, request.prompt_ids, sampling)
        worker.builder.add(new, decodes=command.goal is not Goal.PREFILL)
        if command.goal is not Goal.PREFILL:
            self._streams.begin_attempt(request_id)
        elif self._is_streaming:
            self._transfers.stream(request_id)

    def _tell(self, worker: LiveWorker, events: Sequence[WorkerEvent]) -> None:
        for event in events:
            request_id = event.request_id
            self._note(type(event).__name__, worker.worker_id, request_id)
            if isinstance(event, Finished) and self._log is not None:
                self._log.num_produced[request_id] = event.num_outputs
            if isinstance(event, PrefillStarted):
                self._transfers.ready(request_id, event.num_cached_tokens)
            actions = self._coordinator.on_worker_event(worker.worker_id, event, self._now_ns)
            self._act(actions, request_id)

    # ------------------------------------------------------------------ steps

    def _schedule_dirty(self) -> None:
        """Let the workers that something happened to plan and start their next steps, by id."""
        dirty = sorted(self._dirty)
        self._dirty.clear()
        for worker_id in dirty:
            worker = self._workers[worker_id]
            if worker.is_lost or worker.plan is not None:
                continue
            self._plan(worker)

    def _plan(self, worker: LiveWorker) -> None:
        """Let a worker plan and start its next step."""
        decision = worker.scheduler.schedule(self._now_ns)
        plan = decision.plan
        # before the control hears of it and may take a request back
        step = None if plan is None else worker.builder.build(plan, worker.scheduler.kv.tables)
        for request_id, num_cached_tokens in decision.reserved:
            self._note("reserved", worker.worker_id, request_id)
            actions = self._coordinator.on_reserved(request_id, self._now_ns, num_cached_tokens)
            self._act(actions, request_id)
        if self._is_streaming:
            self._tell(worker, decision.started)
        if step is not None:
            worker.plan, worker.start_ns = plan, self._now_ns
            self._post(worker.worker_id, step)

    def _end_step(self, worker: LiveWorker, output: StepOutput) -> None:
        plan, worker.plan = worker.plan, None
        assert plan is not None, "a step ended that was not started"
        if self._log is not None:
            self._log.add_step(worker.worker_id, plan, worker.start_ns, self._now_ns)
        for request_id in worker.to_read:
            if self._coordinator.awaits_queued(request_id, worker.worker_id):
                self._coordinator.on_queued(request_id, self._now_ns)
        worker.to_read.clear()
        if self._is_streaming:
            self._chunks_ready(plan)
        finished: list[int] = []
        for token in output.tokens:
            if worker.builder.knows(token.request_id):  # not cancelled meanwhile
                self._streams.sampled(token)
            if token.finish is not None:
                finished.append(token.request_id)
                worker.builder.drop(token.request_id)
        result = StepResult(1, tuple(sorted(finished)))
        events = worker.scheduler.complete(result, self._now_ns)
        self._dirty.add(worker.worker_id)
        self._changed.add(worker.worker_id)
        self._tell(worker, events)

    def _chunks_ready(self, plan: StepPlan) -> None:
        """Report the chunks of a step that has ended, all layers at once."""
        for chunk in plan.prefill:
            end_token = chunk.num_history_tokens + chunk.num_tokens
            self._transfers.ready(chunk.request_id, end_token)
            piece = KvPiece(chunk.num_history_tokens, end_token, 0)
            actions = self._coordinator.on_layers_ready(chunk.request_id, piece, self._now_ns)
            self._act(actions, chunk.request_id)

    # ------------------------------------------------------------------ transfers

    def _start_transfer(self, transfer: TransferPlan, request_id: int) -> None:
        (part,) = transfer.parts
        source, destination = self._workers[part.src_gpu], self._workers[part.dst_gpu]
        num_prompt_tokens = len(self._requests[request_id].prompt_ids)
        blocks = self._transfers.next_blocks(request_id, num_prompt_tokens)
        moving = Moving(request_id, source.worker_id, destination.worker_id, self._now_ns)
        self._transfers.begin(transfer.transfer_id, moving, len(blocks))
        if not blocks:
            return
        to_fill = destination.scheduler.kv.tables[request_id][blocks.start : blocks.stop]
        to_read = source.scheduler.kv.tables[request_id][blocks.start : blocks.stop]
        expect = ExpectBlocks(transfer.transfer_id, tuple(to_fill))
        send = SendBlocks(transfer.transfer_id, destination.address, tuple(to_read))
        self._post(destination.worker_id, expect)
        self._post(source.worker_id, send)

    def _transferred(self, transfer_id: int) -> None:
        moving = self._transfers.end(transfer_id, self._now_ns)
        if moving is None:
            return  # cancelled meanwhile
        if self._log is not None:
            self._log.transfers[transfer_id] = moving.start_ns, self._now_ns
        self._note("transferred", transfer_id)
        actions = self._coordinator.on_transferred(transfer_id, self._now_ns)
        self._act(actions, moving.request_id)

    def _transfer_lost(self, transfer_id: int) -> None:
        if not self._transfers.is_moving(transfer_id):
            return  # it has ended meanwhile, or the other side has told
        if self._log is not None:
            self._log.broken.append((self._now_ns, transfer_id))
        self._act(self._coordinator.on_transfer_failed(transfer_id, self._now_ns), -1)

    def _stop_transfer(self, transfer_id: int) -> None:
        """Stop both sides before another step can use the blocks: messages keep their order."""
        moving = self._transfers.end(transfer_id, None)
        assert moving is not None, "a transfer stopped that is not under way"
        for worker_id in (moving.source, moving.destination):
            self._post(worker_id, CancelBlocks(transfer_id))

    # ------------------------------------------------------------------ workers that come and go

    def _lose(self, worker: LiveWorker) -> None:
        if worker.is_lost:
            return
        self._note("lost", worker.worker_id)
        if self._log is not None:
            self._log.lost.append((self._now_ns, worker.worker_id))
            if worker.plan is not None:
                self._log.add_step(worker.worker_id, worker.plan, worker.start_ns, NEVER_NS)
        worker.reset()
        worker.is_lost = True
        self._changed.discard(worker.worker_id)
        self._act(self._coordinator.on_worker_lost(worker.worker_id, self._now_ns), -1)

    def _join(self, worker: LiveWorker, hello: Hello) -> None:
        if not worker.is_lost:
            return
        self._note("joined", worker.worker_id)
        if self._log is not None:
            self._log.joined.append((self._now_ns, worker.worker_id))
        worker.is_lost = False
        worker.address = hello.address
        self._coordinator.on_worker_joined(worker.worker_id, self._now_ns)
