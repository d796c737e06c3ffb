"""What the control asks for, carried out: commands, transfers, reads, ends of requests.

The middle of the three layers of a simulation, see ``simulation``.
"""

from collections.abc import Sequence

from kvfabric.kvcache.tier_links import TierLinks
from kvfabric.protocol.ports import Network
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    EndRequest,
    SendCommand,
    StartRead,
    StartTransfer,
)
from kvfabric.serving.commands import AddRequest, Command, Prefilled, WorkerEvent
from kvfabric.serving.coordinator import Coordinator
from kvfabric.sim.phases import Phase
from kvfabric.sim.simulation_config import SimulationConfig
from kvfabric.sim.steps import StepDriver
from kvfabric.sim.worker import SimWorker


class ActionRunner(StepDriver):
    """Carries out actions in their order, and passes on what workers say because of them."""

    def __init__(
        self,
        config: SimulationConfig,
        workload: Workload,
        coordinator: Coordinator,
        workers: Sequence[SimWorker],
        network: Network,
        tier_links: TierLinks | None,
    ) -> None:
        """Join control and world; see ``Simulation``."""
        super().__init__(config, workers, network, coordinator.num_layer_groups)
        self._coordinator = coordinator
        self._changed: set[int] = set()  # workers that something happened to since they reported
        self._report_ns = coordinator.signal_interval_ns  # the first instant with new reports
        self._followers: dict[int, list[RequestSpec]] = {}
        for spec in workload.requests:
            if spec.after_request_id is not None:
                self._followers.setdefault(spec.after_request_id, []).append(spec)
        self._transfers: dict[int, TransferPlan] = {}  # not started yet
        self._tier_links = tier_links
        self._reads: set[int] = set()  # under way
        self._records: list[RequestRecord] = []
        self._end_ns = 0
        self._watched_ns: int | None = None
        self._least_deadline_ns = coordinator.least_deadline_ns

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendCommand(worker_id, command):
                    self._send(worker_id, command)
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

    def _send(self, worker_id: int, command: Command) -> None:
        worker = self._workers[worker_id]
        executor = worker.executor
        if isinstance(command, AddRequest):
            executor.forget(command.request_id)
            if self._coordinator.awaits_queued(command.request_id, worker_id):
                read_ns = self._iteration_end_ns(worker)
                self._coordinator.on_queued(command.request_id, read_ns)
        events = worker.scheduler.handle(command, self._now_ns)
        self._changed.add(worker_id)
        if executor.is_running and executor.num_iterations > 1:
            self._make_room(worker)
        if worker.may_plan or not executor.is_running:
            self._dirty.add(worker_id)
        if events:
            self._tell(worker_id, events)

    def _tell(self, worker_id: int, events: Sequence[WorkerEvent]) -> None:
        for event in events:
            self._note(type(event).__name__, worker_id, event.request_id)
            actions = self._coordinator.on_worker_event(worker_id, event, self._now_ns)
            if actions:
                self._act(actions)
            if isinstance(event, Prefilled):
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
        """Wake up at the control's next deadline, if that is not planned already.

        A sooner one begins with a prefill that has ended or blocks that are reserved, no other way.
        """
        watched_ns = self._watched_ns
        if watched_ns is not None and watched_ns <= self._now_ns + self._least_deadline_ns:
            return
        deadline_ns = self._coordinator.next_deadline_ns()
        if deadline_ns is None:
            return
        if watched_ns is None or deadline_ns < watched_ns:
            self._watched_ns = deadline_ns
            self._push(deadline_ns, Phase.DEADLINE, 0)

    def _end(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._end_ns = self._now_ns
        for follower in self._followers.get(record.request_id, ()):
            self._push(self._now_ns + follower.think_ns, Phase.ARRIVAL, follower.request_id)
