"""The driver that lets anything happen next, with a KV pool whose bytes arrive in any order."""

from faulty_cluster import FaultyCluster

from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    SendCommand,
    StartRead,
    StartTransfer,
)
from kvfabric.serving.commands import KvArrived
from kvfabric.serving.coordinator_config import CoordinatorConfig
from kvfabric.serving.kv_pool_config import FetchMode
from kvfabric.serving.prefix_fetch import FIRST_FETCH_TRANSFER
from kvfabric.serving.router import RoutingPolicy


class PooledFaultyCluster(FaultyCluster):
    """One run. A step whose prompt awaits a prefix does not end before that is there."""

    def __init__(self, config: CoordinatorConfig, seed: int) -> None:
        assert config.pool is not None
        super().__init__(config, RoutingPolicy.ROUND_ROBIN, seed)
        self.fetch_mode = config.pool.fetch_mode
        self.fetching: dict[int, tuple[int, int, bool]] = {}  # (request, bytes, is awaited)
        self.fetched_bytes = 0
        self.num_cancelled = 0
        self.is_draining = False

    def _plan(self, worker_id: int) -> None:
        if self.is_draining:
            self.deliver_fetches(len(self.fetching))
        worker = self.workers[worker_id]
        if len(worker.plans) == 2:
            return
        decision = worker.scheduler.schedule(self.now_ns)
        for one in decision.reserved:
            actions = self.coordinator.on_reserved(
                one.request_id, self.now_ns, one.num_cached_tokens
            )
            self.act(actions, one.request_id)
        if decision.plan is not None:
            worker.plans.append(decision.plan)
            self._begin(worker)
            self._tell_started(worker_id, decision.plan)
        self.observe(worker_id)

    def _finish(self, worker_id: int) -> None:
        plans = self.workers[worker_id].plans
        awaited = {request_id for request_id, _, is_awaited in self.fetching.values() if is_awaited}
        if plans and any(chunk.request_id in awaited for chunk in plans[0].prefill):
            return
        super()._finish(worker_id)

    def deliver(self) -> None:
        super().deliver()
        self.deliver_fetches(self.random.randint(0, 3))

    def deliver_fetches(self, count: int) -> None:
        for _ in range(min(count, len(self.fetching))):
            transfer_id = self.random.choice(sorted(self.fetching))
            request_id, num_bytes, _ = self.fetching.pop(transfer_id)
            self.fetched_bytes += num_bytes
            self.act(self.coordinator.on_transferred(transfer_id, self.now_ns), request_id)

    def act(self, actions: list[Action], request_id: int) -> None:
        for action in actions:
            match action:
                case StartRead(transfer_id, _, num_bytes, awaited_by):
                    self._start(transfer_id, request_id, num_bytes, awaited_by)
                case StartTransfer(transfer, awaited_by) if (
                    transfer.transfer_id >= FIRST_FETCH_TRANSFER
                ):
                    self._start(transfer.transfer_id, request_id, transfer.num_bytes, awaited_by)
                case CancelTransfer(transfer_id) if transfer_id >= FIRST_FETCH_TRANSFER:
                    del self.fetching[transfer_id]
                    self.num_cancelled += 1
                case SendCommand(worker, KvArrived()) if worker < self.config.num_prefill:
                    events = self.workers[worker].scheduler.handle(action.command, self.now_ns)
                    self.tell(worker, events)
                    self.observe(worker)
                case _:
                    super().act([action], request_id)

    def _start(
        self, transfer_id: int, request_id: int, num_bytes: int, awaited_by: int | None
    ) -> None:
        assert transfer_id not in self.fetching
        assert num_bytes > 0
        is_awaited = self.fetch_mode is FetchMode.LAYER_WISE
        assert awaited_by == (request_id if is_awaited else None)
        self.fetching[transfer_id] = request_id, num_bytes, is_awaited

    def drain(self, max_rounds: int = 4000) -> None:
        self.is_draining = True
        super().drain(max_rounds)
