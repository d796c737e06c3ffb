"""The virtual-time driver: carries commands, plans and transfers between control, GPUs and network.

It decides nothing. Events of one instant are applied in the order of ``Phase``, ties by id; then
every worker that something happened to is asked for its next step if it is time to plan one: when
it is idle, and with asynchronous scheduling also when the last iteration of a step begins.

It comes in three layers: ``steps`` (steps of workers and what they wait for), ``action_runner``
(what the control asks for), and this one: time, and what happens in the world.
"""

import gc
import heapq
from collections.abc import Callable, Sequence

from kvfabric.kvcache.tier_links import TierLinks
from kvfabric.protocol.ports import Network
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.step import StepPlan
from kvfabric.protocol.transfer import KvPiece
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.serving.actions import IncomingRequest
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.scheduler import Scheduler
from kvfabric.serving.step_draft import Reserved
from kvfabric.sim.action_runner import ActionRunner
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.phases import FIRST_STEP_TRANSFER, MAX_LAYER_GROUPS, NEVER, Phase
from kvfabric.sim.run_result import RunResult
from kvfabric.sim.simulation_config import SimulationConfig
from kvfabric.sim.worker import SimWorker, TrafficOf

__all__ = ["Phase", "RunResult", "Simulation", "SimulationConfig"]

# plain integers, which compare faster
_STEP_DONE, _TRANSFER_DONE = int(Phase.STEP_DONE), int(Phase.TRANSFER_DONE)
_TRANSFER_START, _ARRIVAL = int(Phase.TRANSFER_START), int(Phase.ARRIVAL)
_PLAN_AHEAD = int(Phase.PLAN_AHEAD)


class Simulation(ActionRunner):
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
            traffic: of each of the first workers, what its prefill steps exchange over the fabric;
                the others exchange nothing.
            tier_links: host memories and storage of the control's KV pool, if it has one.
        """
        self._config = config
        sims = [
            SimWorker(i, scheduler, executor) for i, (scheduler, executor) in enumerate(workers)
        ]
        assert len(traffic) <= len(sims), "traffic of more workers than there are"
        for worker, traffic_of in zip(sims, traffic, strict=False):
            worker.traffic_of = traffic_of
        super().__init__(config, workload, coordinator, sims, network, tier_links)
        self._specs = {spec.request_id: spec for spec in workload.requests}
        self._num_preemptions = 0  # of workers that died
        timed = [spec for spec in workload.requests if spec.after_request_id is None]
        timed.sort(key=lambda spec: (spec.arrival_ns, spec.request_id), reverse=True)
        self._timed = timed  # those that come by the clock and are not expected yet, next one last
        self._expect_arrival()

    def _expect_arrival(self) -> None:
        """Await the next request that comes by the clock; the heap holds one of them at a time."""
        if self._timed:
            spec = self._timed.pop()
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

    @property
    def ended_records(self) -> Sequence[RequestRecord]:
        """Return the requests that have ended, in order of their ends."""
        return self._records

    def run(
        self, on_progress: Callable[[int], None] | None = None, *, check: bool = False
    ) -> RunResult:
        """Run until nothing is left to happen.

        Args:
            on_progress: called with the number of requests that have ended.
            check: assert every invariant after every instant (slow).
        """
        # A run makes many objects and no cycles: looking for some costs 15 % and finds none.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            self._run(self._observer(on_progress, check=check))
        finally:
            if is_collecting:
                gc.enable()
        self._digest_lines()
        records = self._records + self._coordinator.unfinished()
        records.sort(key=lambda record: record.request_id)
        return RunResult(
            records=tuple(records),
            end_ns=self._end_ns,
            num_events=self._num_events,
            num_iterations=sum(worker.executor.num_completed for worker in self._workers),
            num_preemptions=self._num_preemptions
            + sum(worker.scheduler.num_preemptions for worker in self._workers),
            log_digest=self._log.hexdigest(),
        )

    def _observer(
        self, on_progress: Callable[[int], None] | None, *, check: bool
    ) -> Callable[[], None] | None:
        """Return what is to be called after every instant, if anything is."""
        if on_progress is None:
            return self.check_invariants if check else None
        num_ended = 0

        def observe() -> None:
            nonlocal num_ended
            if check:
                self.check_invariants()
            if len(self._records) > num_ended:
                num_ended = len(self._records)
                on_progress(num_ended)

        return observe

    def _run(self, observe: Callable[[], None] | None) -> None:
        """Apply the next event, or once an instant has no more of them let workers plan."""
        heap, dirty, workers = self._heap, self._dirty, self._workers
        now_ns = self._now_ns
        while True:
            time_ns, phase, ident, version = min(heap[0], self._network_event)
            if time_ns > now_ns:
                if dirty:
                    self._schedule_dirty()
                    continue
                if observe is not None:
                    observe()
                if time_ns == NEVER:
                    return
                if time_ns >= self._report_ns:
                    self._report(time_ns)
                self._now_ns = now_ns = time_ns  # the only place where time moves (INV-3)
            if phase == _TRANSFER_DONE:
                self._complete_transfers()
                continue
            heapq.heappop(heap)
            self._num_events += 1
            if phase != _STEP_DONE:
                self._apply(phase, ident, version)
                continue
            worker = workers[ident]
            if version == worker.version:  # else the run was cut short meanwhile
                self._end_step(worker)

    @property
    def num_held_blocks(self) -> int:
        """Return the KV blocks in use over all workers; zero once every request has ended."""
        return sum(worker.scheduler.kv.pool.num_used for worker in self._workers)

    def check_invariants(self) -> None:
        """Assert the invariants of every part; callable between two instants."""
        self._coordinator.check_invariants()
        for worker in self._workers:
            worker.scheduler.check_invariants()

    # ------------------------------------------------------------------ what happens

    def _complete_transfers(self) -> None:
        done = self._network.advance(self._now_ns)
        self._watch_network()
        for transfer_id in done:
            self._transfer_done(transfer_id)

    def _apply(self, phase: int, ident: int, version: int) -> None:
        if phase == _ARRIVAL:
            spec = self._specs[ident]
            if spec.after_request_id is None:
                self._expect_arrival()
            self._arrive(spec)
        elif phase == _TRANSFER_START:
            transfer = self._transfers.pop(ident, None)
            if transfer is not None:  # not cancelled meanwhile
                self._start_transfer(transfer)
        elif phase == _PLAN_AHEAD:
            self._reach_last_iteration(ident, version)
        elif phase == Phase.LAYERS_READY:
            worker_id, group = divmod(ident, MAX_LAYER_GROUPS)
            if version == self._workers[worker_id].version:
                self._layers_ready(self._workers[worker_id], group)
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
                self._watch_deadline()
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

    # ------------------------------------------------------------------ requests and transfers

    def _arrive(self, spec: RequestSpec) -> None:
        self._note("arrival", spec.request_id)
        request = IncomingRequest(
            spec.request_id,
            spec.num_prompt_tokens,
            self._config.max_tokens if spec.max_tokens is None else spec.max_tokens,
            spec.block_hashes,
            spec.namespace,
        )
        self._act(self._coordinator.arrive(request, self._now_ns))

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
            self._end_step(worker)

    # ------------------------------------------------------------------ steps

    def _reach_last_iteration(self, worker_id: int, version: int) -> None:
        worker = self._workers[worker_id]
        if version != worker.version:
            return
        worker.scheduler.extend(worker.executor.num_iterations)
        worker.may_plan = True
        self._dirty.add(worker_id)

    def _schedule_dirty(self) -> None:
        """Let the workers that something happened to plan and start their next steps, by id."""
        dirty = sorted(self._dirty)
        self._dirty.clear()
        for worker_id in dirty:
            worker = self._workers[worker_id]
            if worker.is_lost:
                continue
            if worker.lockstep:
                self._begin_together(worker.lockstep)
            else:
                if worker.is_looked_at:
                    self._go_on(worker)
                if not worker.executor.is_running:
                    plan = self._plan(worker) if worker.planned is None else worker.planned
                    if plan is not None:
                        self._begin(worker, plan)
            if worker.may_plan:
                worker.may_plan = False
                worker.planned = self._plan(worker)

    def _plan(self, worker: SimWorker) -> StepPlan | None:
        decision = worker.scheduler.schedule(self._now_ns)
        if decision.reserved:
            self._tell_reserved(worker.worker_id, decision.reserved)
        if self._num_layer_groups:
            self._tell(worker.worker_id, decision.started)
        return decision.plan

    def _tell_reserved(self, worker_id: int, reserved: Sequence[Reserved]) -> None:
        for one in reserved:
            self._note("reserved", worker_id, one.request_id)
            self._act(
                self._coordinator.on_reserved(one.request_id, self._now_ns, one.num_cached_tokens)
            )
        self._watch_deadline()

    def _look_into(self, worker: SimWorker) -> None:
        """Report what some iterations of a run gave; whether it goes on is decided afterwards."""
        events = worker.scheduler.tell_first_tokens()
        worker.is_looked_at = True
        self._dirty.add(worker.worker_id)
        self._changed.add(worker.worker_id)
        if events:
            self._tell(worker.worker_id, events)

    def _go_on(self, worker: SimWorker) -> None:
        """Let a run go on, with blocks reserved for who waits for them, or end it right here."""
        scheduler, executor = worker.scheduler, worker.executor
        num_iterations, worker.look_after = worker.look_after, 0
        worker.is_looked_at = False
        if not scheduler.should_interrupt():
            executor.go_on(num_iterations)
        elif scheduler.may_only_reserve:
            executor.go_on(num_iterations)
            reserved = scheduler.reserve_in_run(num_iterations + 1, self._now_ns)
            if executor.shorten(scheduler.run_length()):
                self._expect_end(worker)
            if reserved:
                self._tell_reserved(worker.worker_id, reserved)
        else:
            executor.shorten(num_iterations)
            self._end_step(worker)
            self._dirty.discard(worker.worker_id)

    def _begin_together(self, group: tuple[int, ...]) -> None:
        """Start the steps of a lockstep group, once all of them have ended their last."""
        members = [self._workers[i] for i in group if not self._workers[i].is_lost]
        if any(worker.executor.is_running for worker in members):
            return
        for worker in members:
            if worker.planned is None:
                worker.planned = self._plan(worker)
        self._start_together([worker for worker in members if worker.planned is not None])

    def _end_step(self, worker: SimWorker) -> None:
        """Complete a step that is computed, once all bytes it waits for have arrived.

        Or look into a run whose end has not come.
        """
        if worker.look_after:
            self._look_into(worker)
            return
        if worker.awaited or worker.exposed:
            worker.is_computed = True
            if not worker.awaited:
                parts, worker.exposed = worker.exposed, ()
                self._exchange(worker, parts)
            return
        worker.is_computed = worker.is_looked_at = False
        if self._num_layer_groups and worker.executor.plan.prefill:
            self._layers_ready(worker, self._num_layer_groups - 1)
        result = worker.executor.complete()
        events = worker.scheduler.complete(result, self._now_ns)
        self._dirty.add(worker.worker_id)
        self._changed.add(worker.worker_id)
        if events:
            self._tell(worker.worker_id, events)

    def _layers_ready(self, worker: SimWorker, group: int) -> None:
        """Report that a layer group of the chunks in the step that runs is computed."""
        for chunk in worker.executor.plan.prefill:
            end_token = chunk.num_history_tokens + chunk.num_tokens
            piece = KvPiece(chunk.num_history_tokens, end_token, group)
            self._act(self._coordinator.on_layers_ready(chunk.request_id, piece, self._now_ns))

    def _report(self, now_ns: int) -> None:
        """Report, before the first instant of a new interval, what changed in the one before.

        A router sees nothing younger, see ``SignalBoard``.
        """
        for worker_id in self._changed:
            signal = self._workers[worker_id].scheduler.signal(self._now_ns)
            self._coordinator.observe(worker_id, signal, self._now_ns)
        self._changed.clear()
        interval_ns = self._coordinator.signal_interval_ns
        self._report_ns = (now_ns // interval_ns + 1) * interval_ns

    # ------------------------------------------------------------------ workers that come and go

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
        self._changed.discard(worker_id)
        self._act(self._coordinator.on_worker_lost(worker_id, self._now_ns))

    def _join(self, worker_id: int) -> None:
        worker = self._workers[worker_id]
        if not worker.is_lost:
            return
        self._note("joined", worker_id)
        worker.is_lost = False
        self._coordinator.on_worker_joined(worker_id, self._now_ns)
