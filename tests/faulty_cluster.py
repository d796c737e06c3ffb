"""A driver that lets anything happen next: steps, arrivals, cancellations, deaths, late bytes.

Real control, schedulers and executors; the order of events is drawn instead of timed, so that every
race a timed driver could meet comes up, and others besides.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from clusters import LinearModel

from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.step import StepPlan
from kvfabric.protocol.transfer import KvPiece, TransferPlan
from kvfabric.serving.actions import (
    Action,
    CancelTransfer,
    EndRequest,
    IncomingRequest,
    SendCommand,
    StartTransfer,
)
from kvfabric.serving.commands import AddRequest, KvArrived, PrefillStarted, WorkerEvent
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.coordinator import Coordinator
from kvfabric.serving.coordinator_config import CoordinatorConfig
from kvfabric.serving.request import Goal
from kvfabric.serving.router import Router, RoutingPolicy
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor

MAX_MODEL_LEN, HASH_TOKENS, MAX_TOKENS, DEADLINE_NS = 112, 8, 30, 25
RANK_PAIRS = ((0, 0), (0, 1), (1, 1))
SCHEDULER = SchedulerConfig(
    num_blocks=36,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=MAX_MODEL_LEN,
)


def rank_bytes(num_tokens: int) -> tuple[int, ...]:
    return (5 * num_tokens, 3 * min(num_tokens, 40), 7 * num_tokens)


@dataclass
class Worker:
    scheduler: Scheduler
    executor: SimExecutor
    plans: deque[StepPlan] = field(default_factory=deque[StepPlan])  # the first one runs
    computing: set[int] = field(default_factory=set[int])  # prompts that have begun


class FaultyCluster:
    """One run; ``step`` lets one thing happen, ``drain`` lets everything end."""

    def __init__(self, config: CoordinatorConfig, policy: RoutingPolicy, seed: int) -> None:
        self.random = Random(seed)
        self.config = config
        router = Router(
            policy,
            num_prefill=config.num_prefill,
            num_decode=config.num_decode,
            signal_interval_ns=7,
        )
        self.coordinator = Coordinator(config, router)
        self.output_lengths: dict[int, int] = {}
        self.workers: dict[int, Worker] = {}
        self.prompts: dict[int, int] = {}
        self.moving: dict[int, tuple[int, TransferPlan]] = {}
        self.arrived_bytes: dict[int, int] = {}
        self.records: dict[int, RequestRecord] = {}
        self.now_ns = 0
        self.num_deaths = 0
        for worker in range(len(config.worker_gpus)):
            self._start_worker(worker)

    def _start_worker(self, worker: int) -> None:
        samples = worker >= self.config.num_prefill or not self.config.num_decode
        executor = SimExecutor(LinearModel(), self.output_lengths, samples_first_token=samples)
        self.workers[worker] = Worker(Scheduler(SCHEDULER), executor)

    # ------------------------------------------------------------------ what may happen

    def step(self) -> None:
        """Let one thing happen, often at the instant of the one before."""
        self.now_ns += self.random.choice([0, 0, 1, 5])
        (happen,) = self.random.choices(
            [self.arrive, self.cancel, self.plan, self.finish, self.deliver, self.die, self.join],
            [10, 2, 40, 40, 10, 1, 3],
        )
        happen()
        if self.random.random() < 0.3:
            self.expire()

    def arrive(self) -> None:
        request_id = len(self.prompts)
        prompt = self.random.randint(1, 80)
        group = self.random.randint(0, 2)
        self.prompts[request_id] = prompt
        self.output_lengths[request_id] = self.random.randint(1, 20)
        request = IncomingRequest(
            request_id=request_id,
            num_prompt_tokens=prompt,
            max_tokens=MAX_TOKENS,
            block_hashes=tuple(1000 * group + i for i in range(prompt // HASH_TOKENS)),
        )
        self.act(self.coordinator.arrive(request, self.now_ns), request_id)

    def cancel(self) -> None:
        if self.prompts:
            request_id = self.random.randrange(len(self.prompts))
            self.act(self.coordinator.cancel(request_id, self.now_ns), request_id)

    def plan(self) -> None:
        """Let a worker plan a step, at most one ahead of the one that runs."""
        if self.workers:
            self._plan(self.random.choice(sorted(self.workers)))

    def _plan(self, worker_id: int) -> None:
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

    def _tell_started(self, worker_id: int, plan: StepPlan) -> None:
        worker = self.workers[worker_id]
        worker.computing.difference_update(plan.left)
        for chunk in plan.prefill:
            if chunk.request_id not in worker.computing:
                event = PrefillStarted(chunk.request_id, chunk.num_history_tokens)
                self.tell(worker_id, [event])
            worker.computing.add(chunk.request_id)
            if chunk.is_last:
                worker.computing.discard(chunk.request_id)

    def _begin(self, worker: Worker) -> None:
        if worker.plans and not worker.executor.is_running:
            worker.executor.start(worker.plans[0], self.now_ns, 1)

    def finish(self) -> None:
        """Let a worker's step end; layer groups are reported, or some of them forgotten."""
        if self.workers:
            self._finish(self.random.choice(sorted(self.workers)))

    def _finish(self, worker_id: int) -> None:
        worker = self.workers[worker_id]
        if not worker.plans:
            return
        plan = worker.plans.popleft()
        for group in range(self.coordinator.num_layer_groups):
            for chunk in plan.prefill:
                end = chunk.num_history_tokens + chunk.num_tokens
                piece = KvPiece(chunk.num_history_tokens, end, group)
                ready = self.coordinator.on_layers_ready(chunk.request_id, piece, self.now_ns)
                self.act(ready, chunk.request_id)
        events = worker.scheduler.complete(worker.executor.complete(), self.now_ns)
        self._begin(worker)
        self.tell(worker_id, events)
        self.observe(worker_id)

    def deliver(self) -> None:
        """Let the last bytes of some transfers arrive."""
        for _ in range(min(len(self.moving), self.random.randint(1, 6))):
            transfer_id = self.random.choice(sorted(self.moving))
            request_id, transfer = self.moving.pop(transfer_id)
            self.arrived_bytes[request_id] += transfer.num_bytes
            self.act(self.coordinator.on_transferred(transfer_id, self.now_ns), request_id)

    def expire(self) -> None:
        deadline_ns = self.coordinator.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.act(self.coordinator.expire(self.now_ns), -1)

    def die(self) -> None:
        if self.workers:
            worker = self.random.choice(sorted(self.workers))
            del self.workers[worker]
            self.num_deaths += 1
            self.act(self.coordinator.on_worker_lost(worker, self.now_ns), -1)

    def join(self) -> None:
        dead = sorted(set(range(len(self.config.worker_gpus))) - self.workers.keys())
        if dead:
            worker = self.random.choice(dead)
            self._start_worker(worker)
            self.coordinator.on_worker_joined(worker, self.now_ns)

    # ------------------------------------------------------------------ carrying out

    def act(self, actions: list[Action], request_id: int) -> None:
        """Carry out what the control answered to something about a request."""
        for action in actions:
            match action:
                case SendCommand(worker, command):
                    assert worker in self.workers, "a command for a dead worker"
                    if isinstance(command, AddRequest) and command.goal is Goal.DECODE:
                        self.arrived_bytes[command.request_id] = 0
                    if isinstance(command, KvArrived):
                        self._assert_all_arrived(command.request_id)
                    scheduler = self.workers[worker].scheduler
                    self.tell(worker, scheduler.handle(command, self.now_ns))
                    self.observe(worker)
                case StartTransfer(transfer):
                    assert transfer.transfer_id not in self.moving
                    self.moving[transfer.transfer_id] = request_id, transfer
                case CancelTransfer(transfer_id):
                    del self.moving[transfer_id]
                case EndRequest(record):
                    assert record.request_id not in self.records, "a request ended twice"
                    self.records[record.request_id] = record

    def tell(self, worker: int, events: list[WorkerEvent]) -> None:
        for event in events:
            actions = self.coordinator.on_worker_event(worker, event, self.now_ns)
            self.act(actions, event.request_id)

    def observe(self, worker: int) -> None:
        if worker in self.workers:
            signal = self.workers[worker].scheduler.signal(self.now_ns)
            self.coordinator.observe(worker, signal, self.now_ns)

    def _assert_all_arrived(self, request_id: int) -> None:
        """INV-11: a decode worker starts from all bytes of the prompt, no more and no less."""
        assert self.arrived_bytes[request_id] == sum(rank_bytes(self.prompts[request_id]))

    # ------------------------------------------------------------------ checking

    def check(self) -> None:
        self.coordinator.check_invariants()
        for worker in self.workers.values():
            worker.scheduler.check_invariants()

    def drain(self, max_rounds: int = 4000) -> None:
        """Bring all workers back and let everything end; nothing may be left waiting (INV-8)."""
        while len(self.workers) < len(self.config.worker_gpus):
            self.join()
        for _ in range(max_rounds):
            if self.coordinator.is_drained and not any(w.plans for w in self.workers.values()):
                return
            self.now_ns += 1
            for worker in sorted(self.workers):
                self._plan(worker)
                self._finish(worker)
            while self.moving:
                self.deliver()
            self.expire()
        raise AssertionError("requests are stuck")

    @property
    def num_held_blocks(self) -> int:
        return sum(worker.scheduler.kv.pool.num_used for worker in self.workers.values())
