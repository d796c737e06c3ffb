"""The driver of real workers: carries commands, steps and transfers between them and the control.

It does in real time what ``sim.simulation`` does in virtual time, with the same control, and like
it decides nothing. It reads no clock and waits for nothing: ``control_loop`` tells it what has
happened and at which instant. Steps are planned one at a time per worker, when the last has ended.

It comes in two layers: ``driver_actions`` (what the control asks for), and this one: time, steps,
and workers that come and go.

What differs from the simulation: a prompt that is read while a step runs counts as read when that
step ends. What a step reports before its end comes at an instant of its own before that end.
"""

from collections.abc import Sequence

from kvfabric.engine.decision_log import NEVER_NS, DecisionLog
from kvfabric.engine.driver_actions import DriverActions
from kvfabric.engine.events import (
    Arrived,
    Cancelled,
    DeadlinePassed,
    Event,
    LayersReady,
    StepEnded,
    TransferLost,
    Transferred,
    WorkerJoined,
    WorkerLost,
    order,
)
from kvfabric.engine.executor_port import FailedRequest, SampledToken, StepOutput
from kvfabric.engine.live_transfers import Post
from kvfabric.engine.live_worker import LiveWorker
from kvfabric.engine.messages import Hello
from kvfabric.engine.token_streams import OutputSink
from kvfabric.protocol.step import StepPlan, StepResult
from kvfabric.protocol.transfer import KvPiece
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.scheduler import Scheduler


class LiveDriver(DriverActions):
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
        super().__init__(coordinator, schedulers, hellos, post, sink, log=log)
        self._report_ns = coordinator.signal_interval_ns
        self._later: list[StepEnded] = []  # of the next instant

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
        return not (self._requests or self._blocks.num_moving or any(w.plan for w in self._workers))

    @property
    def num_held_blocks(self) -> int:
        """Return the KV blocks in use over all workers; zero once every request has ended."""
        return sum(worker.scheduler.kv.pool.num_used for worker in self._workers)

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of all hand-offs that were started."""
        return self._blocks.moved_bytes

    @property
    def transfer_ns(self) -> int:
        """Return how long all transfers took that arrived."""
        return self._blocks.transfer_ns

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
        happening: list[Event] = list(self._later)
        self._later = []
        for event in events:
            happening += self._before_end(event) if isinstance(event, StepEnded) else [event]
        happening += [Transferred(i) for i in self._blocks.take_empty()]
        for event in sorted(happening, key=order):
            self._apply(event)
        while self._dirty:
            self._schedule_dirty()
        return self._blocks.has_empty or bool(self._later)

    def _before_end(self, end: StepEnded) -> list[Event]:
        """Return what comes before the end of a step that brought more than its end, or the end."""
        worker = self._workers[end.worker_id]
        missing = self._layer_ends(worker.plan)[len(worker.layers_ns) :]
        before: list[Event] = [LayersReady(end.worker_id, num_layers) for num_layers in missing]
        before += self._spoil(worker, end.output.failed)
        if not before:
            return [end]
        self._later.append(end)
        return before

    def _apply(self, event: Event) -> None:
        match event:
            case StepEnded(worker_id, output):
                self._end_step(self._workers[worker_id], output)
            case LayersReady(worker_id, num_layers):
                self._layers_ready(self._workers[worker_id], num_layers)
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
        for one in decision.reserved:
            self._note("reserved", worker.worker_id, one.request_id)
            actions = self._coordinator.on_reserved(
                one.request_id, self._now_ns, one.num_cached_tokens
            )
            self._act(actions, one.request_id)
        if self._num_groups:
            self._tell(worker, decision.started)
        if step is not None:
            worker.plan, worker.start_ns = plan, self._now_ns
            worker.layers_ns.clear()
            layer_ends = self._layer_ends(plan)
            self._post(worker.worker_id, step._replace(layer_ends=layer_ends))

    def _end_step(self, worker: LiveWorker, output: StepOutput) -> None:
        if worker.plan is None:
            return  # its worker was lost between the last layers and the end
        plan, worker.plan = worker.plan, None
        if self._log is not None:
            self._log.add_step(
                worker.worker_id, plan, worker.start_ns, self._now_ns, worker.layers_ns
            )
        for request_id in worker.to_read:
            if self._coordinator.awaits_queued(request_id, worker.worker_id):
                self._coordinator.on_queued(request_id, self._now_ns)
        worker.to_read.clear()
        if self._num_groups:
            self._chunks_ready(plan, self._num_groups - 1)
        finished = [token.request_id for token in output.tokens if self._sampled(worker, token)]
        result = StepResult(1, tuple(sorted(finished)))
        events = worker.scheduler.complete(result, self._now_ns)
        worker.scheduler.kv.pool.prefix_cache.forget(worker.spoiled)
        worker.spoiled.clear()
        self._dirty.add(worker.worker_id)
        self._changed.add(worker.worker_id)
        self._tell(worker, events)

    def _sampled(self, worker: LiveWorker, token: SampledToken) -> bool:
        """Pass a token on, unless its request was cancelled; return whether its output ends."""
        if worker.builder.knows(token.request_id):
            self._streams.sampled(token)
            keys = worker.keys.get(token.request_id)
            if keys is not None:
                keys.extend((token.token_id,))
                if self._log is not None:
                    self._log.keep_hashes(token.request_id, keys.all_hashes)
        if token.finish is not None:
            worker.forget(token.request_id)
        return token.finish is not None

    # ------------------------------------------------------------------ parts of a step

    def _layer_ends(self, plan: StepPlan | None) -> tuple[int, ...]:
        """Return after which layers a step is to be reported before its end."""
        if self._num_groups < 2 or plan is None:
            return ()
        is_streamed = any(self._blocks.is_streamed(chunk.request_id) for chunk in plan.prefill)
        return self._blocks.layer_ends[:-1] if is_streamed else ()

    def _layers_ready(self, worker: LiveWorker, num_layers: int) -> None:
        """Report a layer group of the step that runs, unless that was done."""
        group = len(worker.layers_ns)
        if worker.plan is None or self._blocks.layer_ends[group] != num_layers:
            return
        worker.layers_ns.append(self._now_ns)
        self._chunks_ready(worker.plan, group)

    def _chunks_ready(self, plan: StepPlan, group: int) -> None:
        """Report a layer group of the chunks of a step."""
        for chunk in plan.prefill:
            end_token = chunk.num_history_tokens + chunk.num_tokens
            self._blocks.ready(chunk.request_id, end_token, group)
            piece = KvPiece(chunk.num_history_tokens, end_token, group)
            actions = self._coordinator.on_layers_ready(chunk.request_id, piece, self._now_ns)
            self._act(actions, chunk.request_id)

    def _spoil(self, worker: LiveWorker, failed: Sequence[FailedRequest]) -> list[Cancelled]:
        """Take in that a step did not compute its part of requests, which end for that.

        So do those of the same step that found blocks of theirs. The blocks that the step should
        have written must not be found by others.
        """
        tables = worker.scheduler.kv.tables
        reasons = {one.request_id: one.reason for one in failed}
        spoiled: set[int] = set()
        new = [request_id for request_id in reasons if request_id in tables]
        while new:
            for request_id in new:
                spoiled.update(tables[request_id][self._first_written(worker, request_id) :])
            new = [i for i in tables if i not in reasons and not spoiled.isdisjoint(tables[i])]
            reasons.update(dict.fromkeys(new, "it found blocks of a request that failed"))
        worker.spoiled += spoiled
        self.failures.update({i: text for i, text in reasons.items() if i in self._requests})
        return [Cancelled(request_id) for request_id in reasons]

    @staticmethod
    def _first_written(worker: LiveWorker, request_id: int) -> int:
        """Return from which block of a table on the step writes; a decode's is the last."""
        assert worker.plan is not None, "a step that nobody runs"
        for chunk in worker.plan.prefill:
            if chunk.request_id == request_id:
                return chunk.num_history_tokens // worker.scheduler.kv.block_size
        return -1

    # ------------------------------------------------------------------ transfers

    def _transferred(self, transfer_id: int) -> None:
        moving = self._transfers.arrived(transfer_id, self._now_ns)
        if moving is None:
            return  # cancelled meanwhile
        self._note("transferred", transfer_id)
        actions = self._coordinator.on_transferred(transfer_id, self._now_ns)
        self._act(actions, moving.request_id)

    def _transfer_lost(self, transfer_id: int) -> None:
        if self._transfers.is_lost(transfer_id, self._now_ns):
            actions = self._coordinator.on_transfer_failed(transfer_id, self._now_ns)
            self._act(actions, -1)

    # ------------------------------------------------------------------ workers that come and go

    def _lose(self, worker: LiveWorker) -> None:
        if worker.is_lost:
            return
        self._note("lost", worker.worker_id)
        if self._log is not None:
            self._log.lost.append((self._now_ns, worker.worker_id))
            if worker.plan is not None:
                self._log.add_step(
                    worker.worker_id, worker.plan, worker.start_ns, NEVER_NS, worker.layers_ns
                )
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
