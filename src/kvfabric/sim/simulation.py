"""The virtual-time driver: carries commands, plans and transfers between control, GPUs and network.

It decides nothing. Events of one instant are applied in the order of ``Phase``, ties by id; then
every worker that something happened to is asked for its next step if it is time to plan one: when
it is idle, and with asynchronous scheduling also when the last iteration of a step begins.
"""

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from kvfabric.kvcache.tier_links import TierLinks
from kvfabric.protocol.ports import Network
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.step import StepPlan
from kvfabric.protocol.transfer import KvPiece, RankTransfer, TransferPlan
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.serving.commands import AddRequest, WorkerEvent
from kvfabric.serving.coordinator import (
    Action,
    CancelTransfer,
    Coordinator,
    EndRequest,
    IncomingRequest,
    SendCommand,
    StartRead,
    StartTransfer,
)
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.worker import SimWorker, TrafficOf


class Phase(IntEnum):
    """Order of events at the same instant; steps are planned and started after all of them."""

    STEP_DONE = 0
    TRANSFER_DONE = 1
    READ_DONE = 2
    WORKER_LOST = 3
    WORKER_JOINED = 4
    LAYERS_READY = 5
    TRANSFER_START = 6
    CANCEL = 7
    DEADLINE = 8
    ARRIVAL = 9
    PLAN_AHEAD = 10


_STEP_DONE = int(Phase.STEP_DONE)
MAX_LAYER_GROUPS = 1 << 10
FIRST_STEP_TRANSFER = 1 << 40
"""Ids of what steps exchange, out of the way of hand-offs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """Delays that belong to the world rather than to a decision.

    Attributes:
        transfer_setup_ns: from the decision to move bytes until the first byte moves.
        max_tokens: most output tokens a client asks for where its request does not say (the true
            length stays unknown to control).
        async_scheduling: plan the next step while one runs, as vLLM does by default.
        lockstep: groups of worker ids whose steps begin and end together, as data-parallel ranks
            that share experts do: the longest step counts, a rank without work waits. They run
            step by step.
    """

    transfer_setup_ns: int = 0
    max_tokens: int = 1 << 31
    async_scheduling: bool = False
    lockstep: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run gave: records by request id, and totals for checks and reports."""

    records: tuple[RequestRecord, ...]
    end_ns: int
    num_events: int
    num_iterations: int
    num_preemptions: int
    log_digest: str = field(default="")


class Simulation:
    """One cluster, one workload, one run."""

    def __init__(
        self,
        config: SimulationConfig,
        workload: Workload,
        coordinator: Coordinator,
        workers: Sequence[tuple[Scheduler, SimExecutor]],
        network: Network,
        *,
        traffic: Sequence[TrafficOf | None] = (),
        tier_links: TierLinks | None = None,
    ) -> None:
        """Join the parts.

        Args:
            config: delays of the world.
            workload: what clients ask for.
            coordinator: the control.
            workers: in the coordinator's order of worker ids.
            network: moves hand-offs and what steps exchange.
            traffic: per worker, what its prefill steps exchange over the fabric; () for nothing.
            tier_links: host memories and storage of the control's KV pool, if it has one.
        """
        self._config = config
        self._coordinator = coordinator
        self._network = network
        self._network_ns: int | None = None  # of its next completion
        self._workers = [SimWorker(scheduler, executor) for scheduler, executor in workers]
        for worker, traffic_of in zip(self._workers, traffic, strict=False):
            worker.traffic_of = traffic_of
        for group in config.lockstep:
            for worker_id in group:
                self._workers[worker_id].lockstep = group
        self._heap: list[tuple[int, int, int, int]] = []  # (time, phase, id, version)
        self._specs = {spec.request_id: spec for spec in workload.requests}
        self._followers: dict[int, list[RequestSpec]] = {}
        for spec in workload.requests:
            if spec.after_request_id is not None:
                self._followers.setdefault(spec.after_request_id, []).append(spec)
        self._transfers: dict[int, TransferPlan] = {}  # not started yet
        self._worker_of_transfer: dict[int, int] = {}  # of those that a step waits for
        self._next_step_transfer = FIRST_STEP_TRANSFER
        self._tier_links = tier_links
        self._reads: set[int] = set()  # under way
        self._awaiting: dict[int, int] = {}  # fetches to the request whose first step awaits them
        self._records: list[RequestRecord] = []
        self._dirty: set[int] = set()
        self._now_ns = 0
        self._end_ns = 0
        self._num_events = 0
        self._num_iterations = 0
        self._num_preemptions = 0  # of workers that died
        self._num_layer_groups = coordinator.num_layer_groups
        assert self._num_layer_groups <= MAX_LAYER_GROUPS, "too many layer groups"
        self._watched_ns: int | None = None
        self._log = hashlib.sha256()
        for spec in workload.requests:
            if spec.after_request_id is None:
                self._push(spec.arrival_ns, Phase.ARRIVAL, spec.request_id)

    def cancel_at(self, request_id: int, time_ns: int) -> None:
        """Let the client of a request give up at an instant; too late or too early is harmless."""
        self._push(time_ns, Phase.CANCEL, request_id)

    def lose_worker_at(self, worker_id: int, time_ns: int) -> None:
        """Let a worker die at an instant with all it holds; one that is dead already stays so."""
        self._push(time_ns, Phase.WORKER_LOST, worker_id)

    def join_worker_at(self, worker_id: int, time_ns: int) -> None:
        """Let a dead worker come back empty; one that lives is left alone."""
        self._push(time_ns, Phase.WORKER_JOINED, worker_id)

    def run(
        self, on_progress: Callable[[int], None] | None = None, *, check: bool = False
    ) -> RunResult:
        """Run until nothing is left to happen.

        Args:
            on_progress: called with the number of requests that have ended.
            check: assert every invariant after every instant (slow).
        """
        while (now_ns := self._next_instant_ns()) is not None:
            assert now_ns >= self._now_ns, "time never decreases (INV-3)"
            self._now_ns = now_ns
            num_ended = len(self._records)
            self._apply_instant()
            if check:
                self.check_invariants()
            if on_progress is not None and len(self._records) > num_ended:
                on_progress(len(self._records))
        records = self._records + self._coordinator.unfinished()
        records.sort(key=lambda record: record.request_id)
        return RunResult(
            records=tuple(records),
            end_ns=self._end_ns,
            num_events=self._num_events,
            num_iterations=self._num_iterations,
            num_preemptions=self._num_preemptions
            + sum(worker.scheduler.num_preemptions for worker in self._workers),
            log_digest=self._log.hexdigest(),
        )

    @property
    def num_held_blocks(self) -> int:
        """Return the KV blocks in use over all workers; zero once every request has ended."""
        return sum(worker.scheduler.kv.pool.num_used for worker in self._workers)

    def check_invariants(self) -> None:
        """Assert the invariants of every part; callable between two instants."""
        self._coordinator.check_invariants()
        for worker in self._workers:
            worker.scheduler.check_invariants()

    # ------------------------------------------------------------------ time

    def _push(self, time_ns: int, phase: Phase, ident: int, version: int = 0) -> None:
        heapq.heappush(self._heap, (time_ns, phase, ident, version))

    def _next_instant_ns(self) -> int | None:
        network_ns = self._network_ns
        heap_ns = self._heap[0][0] if self._heap else None
        if network_ns is None or heap_ns is None:
            return heap_ns if network_ns is None else network_ns
        return min(network_ns, heap_ns)

    def _apply_instant(self) -> None:
        """Apply all events of this instant, then let workers plan, until nothing is left."""
        heap, now_ns, network = self._heap, self._now_ns, self._network
        while True:
            while heap and heap[0][0] == now_ns and heap[0][1] == _STEP_DONE:
                self._num_events += 1
                _, _, worker_id, version = heapq.heappop(heap)
                self._step_done(worker_id, version)
            if self._network_ns is not None and self._network_ns <= now_ns:
                done = network.advance(now_ns)
                self._network_ns = network.next_completion_ns()
                for transfer_id in done:
                    self._transfer_done(transfer_id)
            if heap and heap[0][0] == now_ns:
                self._apply(heapq.heappop(heap))
                continue
            if not self._dirty:
                return
            dirty = sorted(self._dirty)
            self._dirty.clear()
            for worker_id in dirty:
                self._schedule(worker_id)

    def _apply(self, event: tuple[int, int, int, int]) -> None:
        _, phase, ident, version = event
        self._num_events += 1
        if phase == _STEP_DONE:
            self._step_done(ident, version)
        elif phase == Phase.PLAN_AHEAD:
            self._reach_last_iteration(ident, version)
        elif phase == Phase.TRANSFER_START:
            transfer = self._transfers.pop(ident, None)
            if transfer is not None:  # not cancelled meanwhile
                self._start_transfer(transfer)
        elif phase == Phase.ARRIVAL:
            self._arrive(self._specs[ident])
        elif phase == Phase.LAYERS_READY:
            worker_id, group = divmod(ident, MAX_LAYER_GROUPS)
            if version == self._workers[worker_id].version:
                self._layers_ready(worker_id, group)
        else:
            self._apply_rare(Phase(phase), ident)

    def _apply_rare(self, phase: Phase, ident: int) -> None:
        match phase:
            case Phase.CANCEL:
                self._note("cancel", ident)
                self._act(self._coordinator.cancel(ident, self._now_ns))
            case Phase.DEADLINE:
                self._watched_ns = None
                self._act(self._coordinator.expire(self._now_ns))
            case Phase.READ_DONE:
                if ident in self._reads:  # not cancelled meanwhile
                    self._reads.remove(ident)
                    self._fetched(ident)
            case Phase.WORKER_LOST:
                self._lose(ident)
            case Phase.WORKER_JOINED:
                self._join(ident)
            case _:
                raise AssertionError(phase)

    def _note(self, kind: str, ident: int, other: int = -1) -> None:
        """Add a line to the digest of everything that happened (INV-7)."""
        self._log.update(b"%d %b %d %d\n" % (self._now_ns, kind.encode(), ident, other))

    # ------------------------------------------------------------------ world to control

    def _arrive(self, spec: RequestSpec) -> None:
        self._note("arrival", spec.request_id)
        request = IncomingRequest(
            request_id=spec.request_id,
            num_prompt_tokens=spec.num_prompt_tokens,
            max_tokens=self._config.max_tokens if spec.max_tokens is None else spec.max_tokens,
            block_hashes=spec.block_hashes,
            namespace=spec.namespace,
        )
        self._act(self._coordinator.arrive(request, self._now_ns))

    def _step_done(self, worker_id: int, version: int) -> None:
        worker = self._workers[worker_id]
        if version != worker.version:
            return  # the run was cut short meanwhile
        worker.is_computed = True
        self._end_step(worker_id)

    def _end_step(self, worker_id: int) -> None:
        """Complete a step that is computed, once all bytes it waits for have arrived."""
        worker = self._workers[worker_id]
        if worker.awaited:
            return
        if worker.exposed:
            parts, worker.exposed = worker.exposed, ()
            self._exchange(worker_id, parts)
            return
        worker.is_computed = False
        if self._num_layer_groups and worker.executor.plan.prefill:
            self._layers_ready(worker_id, self._num_layer_groups - 1)
        result = worker.executor.complete()
        self._num_iterations += result.num_iterations
        events = worker.scheduler.complete(result, self._now_ns)
        self._dirty.add(worker_id)
        self._tell(worker_id, events)

    def _layers_ready(self, worker_id: int, group: int) -> None:
        """Report that a layer group of the chunks in the step that runs is computed."""
        for chunk in self._workers[worker_id].executor.plan.prefill:
            end_token = chunk.num_history_tokens + chunk.num_tokens
            piece = KvPiece(chunk.num_history_tokens, end_token, group)
            self._act(self._coordinator.on_layers_ready(chunk.request_id, piece, self._now_ns))

    def _tell(self, worker_id: int, events: Sequence[WorkerEvent]) -> None:
        for event in events:
            self._note(type(event).__name__, worker_id, event.request_id)
            self._act(self._coordinator.on_worker_event(worker_id, event, self._now_ns))

    def _transfer_done(self, transfer_id: int) -> None:
        self._num_events += 1
        if transfer_id in self._worker_of_transfer and transfer_id >= FIRST_STEP_TRANSFER:
            self._await_no_more(transfer_id)
        else:
            self._fetched(transfer_id)

    def _fetched(self, transfer_id: int) -> None:
        """Report a transfer or read; a step that waits for it may end then."""
        self._note("transferred", transfer_id)
        self._act(self._coordinator.on_transferred(transfer_id, self._now_ns))
        if self._awaiting:
            self._awaiting.pop(transfer_id, None)
            self._await_no_more(transfer_id)

    def _await_no_more(self, transfer_id: int) -> None:
        worker_id = self._worker_of_transfer.pop(transfer_id, None)
        if worker_id is None:
            return
        worker = self._workers[worker_id]
        worker.awaited.discard(transfer_id)
        if worker.is_computed:
            self._end_step(worker_id)

    def _await_fetches(self, worker_id: int, plan: StepPlan) -> None:
        """Let a step wait for the prefixes of the prompts it computes that are under way."""
        requests = {chunk.request_id for chunk in plan.prefill}
        for transfer_id, request_id in self._awaiting.items():
            if request_id in requests:
                self._worker_of_transfer[transfer_id] = worker_id
                self._workers[worker_id].awaited.add(transfer_id)

    # ------------------------------------------------------------------ control to world

    def _reach_last_iteration(self, worker_id: int, version: int) -> None:
        worker = self._workers[worker_id]
        if version != worker.version:
            return
        worker.scheduler.extend(worker.executor.num_iterations)
        worker.may_plan = True
        self._dirty.add(worker_id)

    def _schedule(self, worker_id: int) -> None:
        """Let a worker plan and start its next step where it is time to; make its state known."""
        worker = self._workers[worker_id]
        if worker.is_lost:
            return
        if worker.lockstep:
            self._begin_together(worker.lockstep)
        elif not worker.executor.is_running:
            if worker.planned is None:
                worker.planned = self._plan(worker_id)
            if worker.planned is not None:
                self._begin(worker_id, worker.planned)
        if worker.may_plan:
            worker.may_plan = False
            worker.planned = self._plan(worker_id)
        signal = worker.scheduler.signal(self._now_ns)
        if signal is not worker.signal:
            worker.signal = signal
            self._coordinator.observe(worker_id, signal, self._now_ns)

    def _plan(self, worker_id: int) -> StepPlan | None:
        decision = self._workers[worker_id].scheduler.schedule(self._now_ns)
        for request_id in decision.reserved:
            self._note("reserved", worker_id, request_id)
            num_cached = self._num_cached_tokens(worker_id, request_id)
            self._act(self._coordinator.on_reserved(request_id, self._now_ns, num_cached))
        if self._num_layer_groups:
            self._tell(worker_id, decision.started)
        return decision.plan

    def _num_cached_tokens(self, worker_id: int, request_id: int) -> int:
        """Return the tokens of newly reserved blocks that were found in HBM: those with a key."""
        if self._tier_links is None:
            return 0
        kv = self._workers[worker_id].scheduler.kv
        cached = kv.pool.prefix_cache.key_by_block
        table = kv.tables[request_id]
        num_hits = next((i for i, block in enumerate(table) if block not in cached), len(table))
        return num_hits * kv.block_size

    def _begin_together(self, group: tuple[int, ...]) -> None:
        """Start the steps of a lockstep group, once all of them have ended their last."""
        members = {i: self._workers[i] for i in group if not self._workers[i].is_lost}
        if any(worker.executor.is_running for worker in members.values()):
            return
        for worker_id, worker in members.items():
            if worker.planned is None:
                worker.planned = self._plan(worker_id)
        started = {i: worker for i, worker in members.items() if worker.planned is not None}
        for worker in started.values():
            assert worker.planned is not None
            worker.executor.start(worker.planned, self._now_ns)
            worker.planned = None
        end_ns = max((worker.executor.end_ns for worker in started.values()), default=0)
        for worker_id, worker in started.items():
            worker.executor.end_ns = end_ns
            self._expect_end(worker_id)
            self._dirty.add(worker_id)
            if self._awaiting:
                self._await_fetches(worker_id, worker.executor.plan)

    def _begin(self, worker_id: int, plan: StepPlan) -> None:
        worker = self._workers[worker_id]
        worker.planned = None
        worker.executor.start(plan, self._now_ns, worker.scheduler.run_length())
        self._expect_end(worker_id)
        if plan.prefill:
            if self._awaiting:
                self._await_fetches(worker_id, plan)
            if self._num_layer_groups:
                self._expect_layers(worker_id)
            if worker.traffic_of is not None:
                traffic = worker.traffic_of(plan)
                worker.exposed = traffic.exposed
                if traffic.overlapped:
                    self._exchange(worker_id, traffic.overlapped)

    def _expect_layers(self, worker_id: int) -> None:
        """Await the end of every layer group but the last, which ends with the step."""
        worker, num_groups = self._workers[worker_id], self._num_layer_groups
        start_ns = worker.executor.start_ns
        duration_ns = worker.executor.end_ns - start_ns
        for group in range(num_groups - 1):
            ready_ns = start_ns + duration_ns * (group + 1) // num_groups
            ident = worker_id * MAX_LAYER_GROUPS + group
            self._push(ready_ns, Phase.LAYERS_READY, ident, worker.version)

    def _exchange(self, worker_id: int, parts: tuple[RankTransfer, ...]) -> None:
        """Move what the GPUs of a worker exchange; its step waits for it."""
        transfer_id = self._next_step_transfer
        self._next_step_transfer += 1
        self._worker_of_transfer[transfer_id] = worker_id
        self._workers[worker_id].awaited.add(transfer_id)
        self._start_transfer(TransferPlan(transfer_id, parts))

    def _expect_end(self, worker_id: int) -> None:
        """Await the end of the step that runs and, where the next is planned ahead, that moment."""
        worker, executor = self._workers[worker_id], self._workers[worker_id].executor
        worker.version += 1
        self._push(executor.end_ns, Phase.STEP_DONE, worker_id, worker.version)
        if self._config.async_scheduling:
            if executor.num_iterations == 1:
                worker.may_plan = True
            else:
                plan_ns = executor.last_iteration_ns
                self._push(plan_ns, Phase.PLAN_AHEAD, worker_id, worker.version)

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendCommand():
                    self._send(action)
                case StartTransfer(transfer, awaited_by):
                    if awaited_by is not None:
                        self._awaiting[transfer.transfer_id] = awaited_by
                    self._transfers[transfer.transfer_id] = transfer
                    start_ns = self._now_ns + self._config.transfer_setup_ns
                    self._push(start_ns, Phase.TRANSFER_START, transfer.transfer_id)
                case StartRead():
                    self._read(action)
                case CancelTransfer(transfer_id):
                    self._stop(transfer_id)
                case EndRequest(record):
                    self._end(record)
        self._watch_deadline()

    def _read(self, action: StartRead) -> None:
        assert self._tier_links is not None, "a KV pool without links to its tiers"
        if action.awaited_by is not None:
            self._awaiting[action.transfer_id] = action.awaited_by
        self._reads.add(action.transfer_id)
        end_ns = self._tier_links.read(action.place, action.num_bytes, self._now_ns)
        self._push(end_ns, Phase.READ_DONE, action.transfer_id)

    def _stop(self, transfer_id: int) -> None:
        """Stop a transfer or read; a step that waits for it waits no more."""
        if transfer_id in self._reads:
            self._reads.remove(transfer_id)
        elif self._transfers.pop(transfer_id, None) is None:
            self._cancel_transfer(transfer_id)
        if self._awaiting.pop(transfer_id, None) is None:
            return
        worker_id = self._worker_of_transfer.pop(transfer_id, None)
        if worker_id is not None:
            worker = self._workers[worker_id]
            worker.awaited.discard(transfer_id)
            if worker.is_computed and not worker.awaited:  # it ends after what is done right now
                self._push(self._now_ns, Phase.STEP_DONE, worker_id, worker.version)

    def _watch_deadline(self) -> None:
        """Wake up at the control's next deadline, if that is not planned already."""
        deadline_ns = self._coordinator.next_deadline_ns()
        if deadline_ns is None:
            return
        if self._watched_ns is None or deadline_ns < self._watched_ns:
            self._watched_ns = deadline_ns
            self._push(deadline_ns, Phase.DEADLINE, 0)

    def _send(self, action: SendCommand) -> None:
        worker = self._workers[action.worker]
        if isinstance(action.command, AddRequest):
            worker.executor.forget(action.command.request_id)
            read_ns = self._iteration_end_ns(worker)
            self._coordinator.on_queued(action.command.request_id, action.worker, read_ns)
        events = worker.scheduler.handle(action.command, self._now_ns)
        self._dirty.add(action.worker)
        if worker.executor.num_iterations > 1 and worker.executor.is_running:
            self._make_room(action.worker)
        self._tell(action.worker, events)

    def _iteration_end_ns(self, worker: SimWorker) -> int:
        """Return when the iteration under way ends, now if none is."""
        for member in worker.lockstep:
            if self._workers[member].executor.is_running:
                return max(self._now_ns, self._workers[member].executor.end_ns)
        if worker.is_computed or not worker.executor.is_running:
            return self._now_ns  # or later, where the step still waits for bytes
        return worker.executor.iteration_end_ns(self._now_ns)

    def _make_room(self, worker_id: int) -> None:
        """Cut a run short where something new may change the next step."""
        worker = self._workers[worker_id]
        num_ahead = 1 if self._config.async_scheduling else 0
        if worker.scheduler.should_interrupt() and worker.executor.interrupt(
            self._now_ns, num_ahead=num_ahead
        ):
            self._expect_end(worker_id)

    def _start_transfer(self, transfer: TransferPlan) -> None:
        self._network.start(transfer, self._now_ns)
        self._network_ns = self._network.next_completion_ns()

    def _cancel_transfer(self, transfer_id: int) -> None:
        self._network.cancel(transfer_id, self._now_ns)
        self._network_ns = self._network.next_completion_ns()

    def _lose(self, worker_id: int) -> None:
        worker = self._workers[worker_id]
        if worker.is_lost:
            return
        self._note("lost", worker_id)
        for transfer_id in sorted(worker.awaited):
            del self._worker_of_transfer[transfer_id]
            if transfer_id >= FIRST_STEP_TRANSFER:  # fetches are cancelled by the control
                self._cancel_transfer(transfer_id)
        self._num_preemptions += worker.scheduler.num_preemptions
        worker.reset()
        worker.is_lost = True
        self._act(self._coordinator.on_worker_lost(worker_id, self._now_ns))

    def _join(self, worker_id: int) -> None:
        worker = self._workers[worker_id]
        if not worker.is_lost:
            return
        self._note("joined", worker_id)
        worker.is_lost = False
        self._coordinator.on_worker_joined(worker_id, self._now_ns)

    def _end(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._end_ns = self._now_ns
        for follower in self._followers.get(record.request_id, ()):
            self._push(self._now_ns + follower.think_ns, Phase.ARRIVAL, follower.request_id)
