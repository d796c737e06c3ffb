"""Steps of workers in virtual time: begin, cut short, and what they wait for.

The lowest of the three layers of a simulation, see ``simulation``. It never asks the control.
"""

import hashlib
import heapq
from collections.abc import Sequence

from kvfabric.protocol.ports import Network
from kvfabric.protocol.step import StepPlan
from kvfabric.protocol.transfer import RankTransfer, TransferPlan
from kvfabric.sim.phases import FIRST_STEP_TRANSFER, MAX_LAYER_GROUPS, NEVER, Phase
from kvfabric.sim.simulation_config import SimulationConfig
from kvfabric.sim.worker import SimWorker

Event = tuple[int, int, int, int]
"""Instant, phase, id, and for steps the version of the worker: events happen in this order."""

_STEP_DONE, _TRANSFER_DONE = int(Phase.STEP_DONE), int(Phase.TRANSFER_DONE)
NOTHING: Event = (NEVER, _TRANSFER_DONE, 0, 0)
"""Stands at the end of all events, and for the next completion where none is expected."""


_MANY_LINES = 1024


class StepDriver:
    """Workers, the network and the instants at which something will happen to them."""

    def __init__(
        self,
        config: SimulationConfig,
        workers: Sequence[SimWorker],
        network: Network,
        num_layer_groups: int,
    ) -> None:
        """Start at time 0 with nothing to happen.

        Args:
            config: delays of the world.
            workers: in the order of their ids.
            network: moves hand-offs and what steps exchange.
            num_layer_groups: in how many parts a prefill step is reported; 0 if in none.
        """
        assert num_layer_groups <= MAX_LAYER_GROUPS, "too many layer groups"
        self._config = config
        self._workers = workers
        for group in config.lockstep:
            for worker_id in group:
                self._workers[worker_id].lockstep = group
        self._network = network
        self._network_event = NOTHING  # the next completion
        self._num_layer_groups = num_layer_groups
        self._heap = [NOTHING]
        self._now_ns = 0
        self._num_events = 0
        self._log = hashlib.sha256()
        self._lines: list[bytes] = []  # noted and not digested yet
        self._dirty: set[int] = set()  # workers that may plan
        self._worker_of_transfer: dict[int, int] = {}  # of those that a step waits for
        self._next_step_transfer = FIRST_STEP_TRANSFER
        self._awaiting: dict[int, int] = {}  # fetches to the request whose first step awaits them

    # ------------------------------------------------------------------ time

    def _push(self, time_ns: int, phase: Phase, ident: int, version: int = 0) -> None:
        heapq.heappush(self._heap, (time_ns, phase, ident, version))

    def _note(self, kind: str, ident: int, other: int = -1) -> None:
        """Add a line to the digest of everything that happened (INV-7)."""
        self._lines.append(b"%d %b %d %d\n" % (self._now_ns, kind.encode(), ident, other))
        if len(self._lines) >= _MANY_LINES:
            self._digest_lines()

    def _digest_lines(self) -> None:
        self._log.update(b"".join(self._lines))
        self._lines.clear()

    # ------------------------------------------------------------------ network

    def _watch_network(self) -> None:
        time_ns = self._network.next_completion_ns()
        self._network_event = NOTHING if time_ns is None else (time_ns, _TRANSFER_DONE, 0, 0)

    def _start_transfer(self, transfer: TransferPlan) -> None:
        self._network.start(transfer, self._now_ns)
        self._watch_network()

    def _cancel_transfer(self, transfer_id: int) -> None:
        self._network.cancel(transfer_id, self._now_ns)
        self._watch_network()

    # ------------------------------------------------------------------ begin

    def _begin(self, worker: SimWorker, plan: StepPlan) -> None:
        worker.planned = None
        # Planned ahead, a step is followed by one that is planned before its first tokens are out.
        may_run_on = not (plan.joined and self._config.async_scheduling)
        max_iterations = worker.scheduler.run_length() if may_run_on else 1
        worker.executor.start(plan, self._now_ns, max_iterations)
        self._expect_end(worker)
        if plan.joined and worker.executor.num_iterations > 1:
            self._look_after(worker, 1)
        if plan.prefill:
            if self._awaiting:
                self._await_fetches(worker, plan)
            if self._num_layer_groups:
                self._expect_layers(worker)
            if worker.traffic_of is not None:
                traffic = worker.traffic_of(plan)
                worker.exposed = traffic.exposed
                if traffic.overlapped:
                    self._exchange(worker, traffic.overlapped)

    def _start_together(self, started: Sequence[SimWorker]) -> None:
        """Start the planned steps of a lockstep group; all end with the longest."""
        for worker in started:
            assert worker.planned is not None
            worker.executor.start(worker.planned, self._now_ns)
            worker.planned = None
        end_ns = max((worker.executor.end_ns for worker in started), default=0)
        for worker in started:
            worker.executor.end_ns = end_ns
            self._expect_end(worker)
            self._dirty.add(worker.worker_id)
            if self._awaiting:
                self._await_fetches(worker, worker.executor.plan)

    def _expect_layers(self, worker: SimWorker) -> None:
        """Await the end of every layer group but the last, which ends with the step."""
        num_groups = self._num_layer_groups
        start_ns = worker.executor.start_ns
        duration_ns = worker.executor.end_ns - start_ns
        for group in range(num_groups - 1):
            ready_ns = start_ns + duration_ns * (group + 1) // num_groups
            ident = worker.worker_id * MAX_LAYER_GROUPS + group
            self._push(ready_ns, Phase.LAYERS_READY, ident, worker.version)

    def _exchange(self, worker: SimWorker, parts: tuple[RankTransfer, ...]) -> None:
        """Move what the GPUs of a worker exchange; its step waits for it."""
        transfer_id = self._next_step_transfer
        self._next_step_transfer += 1
        self._worker_of_transfer[transfer_id] = worker.worker_id
        worker.awaited.add(transfer_id)
        self._start_transfer(TransferPlan(transfer_id, parts))

    def _expect_end(self, worker: SimWorker) -> None:
        """Await the end of the step that runs and, where the next is planned ahead, that moment."""
        executor = worker.executor
        worker.version = version = worker.version + 1
        worker.look_after = 0
        event = executor.end_ns, _STEP_DONE, worker.worker_id, version
        heapq.heappush(self._heap, event)
        if self._config.async_scheduling:
            if executor.num_iterations == 1:
                worker.may_plan = True
            else:
                plan_ns = executor.last_iteration_ns
                self._push(plan_ns, Phase.PLAN_AHEAD, worker.worker_id, version)

    # ------------------------------------------------------------------ wait

    def _await_fetches(self, worker: SimWorker, plan: StepPlan) -> None:
        """Let a step wait for the prefixes of the prompts it computes that are under way."""
        requests = {chunk.request_id for chunk in plan.prefill}
        for transfer_id, request_id in self._awaiting.items():
            if request_id in requests:
                self._worker_of_transfer[transfer_id] = worker.worker_id
                worker.awaited.add(transfer_id)

    # ------------------------------------------------------------------ cut short

    def _iteration_end_ns(self, worker: SimWorker) -> int:
        """Return when the iteration under way ends, now if none is."""
        for member in worker.lockstep:
            if self._workers[member].executor.is_running:
                return max(self._now_ns, self._workers[member].executor.end_ns)
        if worker.is_computed or not worker.executor.is_running:
            return self._now_ns  # or later, where the step still waits for bytes
        return worker.executor.iteration_end_ns(self._now_ns)

    def _make_room(self, worker: SimWorker) -> None:
        """Look into a run, or cut it short, where something new may change the next step."""
        scheduler, executor = worker.scheduler, worker.executor
        if not scheduler.should_interrupt():
            return
        if scheduler.may_only_reserve and not self._config.async_scheduling:
            if not worker.look_after:
                num_iterations = executor.iterations_until(self._now_ns)
                if num_iterations < executor.num_iterations:
                    self._look_after(worker, num_iterations)
        elif executor.interrupt(self._now_ns, num_ahead=int(self._config.async_scheduling)):
            self._expect_end(worker)

    def _look_after(self, worker: SimWorker, num_iterations: int) -> None:
        """Await the end of iterations in the middle of a run, without ending it there."""
        worker.look_after = num_iterations
        event = worker.executor.end_of(num_iterations), _STEP_DONE, worker.worker_id, worker.version
        heapq.heappush(self._heap, event)
