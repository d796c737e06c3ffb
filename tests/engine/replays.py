"""A run of real workers again, in the simulation: same arrivals, same durations, virtual time."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvfabric.engine.cluster_settings import ClusterSettings, coordinator_of, schedulers_of
from kvfabric.engine.decision_log import DecisionLog, RecordedStep
from kvfabric.kvcache.block_keys import BlockKeys, block_keys
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.protocol.workload import RequestSpec, Workload
from kvfabric.serving.actions import Action
from kvfabric.serving.commands import AddRequest, Command
from kvfabric.serving.coordinator import Coordinator
from kvfabric.sim.executor import SimExecutor
from kvfabric.sim.phases import MAX_LAYER_GROUPS, Phase
from kvfabric.sim.run_result import RunResult
from kvfabric.sim.simulation import Simulation, SimulationConfig
from kvfabric.sim.worker import SimWorker


class RecordedSteps:
    """Step times in the order they were measured; a step of another shape is a failure."""

    source = Source(SourceKind.MEASURED, "a recorded run")

    def __init__(self, steps: Sequence[RecordedStep]) -> None:
        self.steps = deque(steps)
        self.layers_ns: tuple[int, ...] = ()  # of the step that runs

    def mixed_step_ns(self, shape: StepShape) -> int:
        if not self.steps:
            self.layers_ns = ()
            return 1 << 60  # it was still running when the worker died, or at the end
        step = self.steps.popleft()
        assert shape == step.shape, "another step than in the run"
        self.layers_ns = step.layers_ns
        return step.end_ns - step.start_ns

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        assert num_iterations == 1
        return self.mixed_step_ns(StepShape(num_decodes, context_tokens))

    def iterations_until(self, *_: int) -> int:
        return 1


class RecordedNetwork:
    """Transfers that take as long as they took; those that never arrived never do."""

    def __init__(self, transfers: dict[int, tuple[int, int]]) -> None:
        self.transfers = transfers
        self.moving: dict[int, int] = {}

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        start_ns, end_ns = self.transfers.get(transfer.transfer_id, (0, 1 << 60))
        self.moving[transfer.transfer_id] = now_ns + end_ns - start_ns

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        del now_ns
        del self.moving[transfer_id]

    def next_completion_ns(self) -> int | None:
        return min(self.moving.values(), default=None)

    def advance(self, now_ns: int) -> list[int]:
        done = sorted((end, i) for i, end in self.moving.items() if end <= now_ns)
        for _, transfer_id in done:
            del self.moving[transfer_id]
        return [transfer_id for _, transfer_id in done]


class FailureControl:
    """A control that is told of failed transfers when the run's was: just before its deadlines.

    The simulation has no transfers that fail; it wakes the control at its deadlines.
    """

    def __init__(self, coordinator: Coordinator, broken: Sequence[tuple[int, int]]) -> None:
        self.coordinator = coordinator
        self.broken = deque(broken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coordinator, name)

    def next_deadline_ns(self) -> int | None:
        due = [time_ns for time_ns, _ in list(self.broken)[:1]]
        deadline_ns = self.coordinator.next_deadline_ns()
        return min(due if deadline_ns is None else [deadline_ns, *due], default=None)

    def expire(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        while self.broken and self.broken[0][0] <= now_ns:
            time_ns, transfer_id = self.broken.popleft()
            assert time_ns == now_ns, "a failure was told too late"
            actions += self.coordinator.on_transfer_failed(transfer_id, now_ns)
        return actions + self.coordinator.expire(now_ns)


class Replay(Simulation):
    """A simulation whose layer groups are computed when they were, and whose outputs have hashes.

    The run learned the hashes of its outputs as it went; here they are known from the start. No
    block is remembered by them before it is full, so that makes no difference.
    """

    times: Sequence[RecordedSteps]
    keys: dict[int, BlockKeys]

    def _expect_layers(self, worker: SimWorker) -> None:
        for group, ready_ns in enumerate(self.times[worker.worker_id].layers_ns):
            ident = worker.worker_id * MAX_LAYER_GROUPS + group
            self._push(ready_ns, Phase.LAYERS_READY, ident, worker.version)

    def _send(self, worker_id: int, command: Command) -> None:
        if isinstance(command, AddRequest):
            command = replace(command, keys=self.keys.get(command.request_id, command.keys))
        super()._send(worker_id, command)


def known_keys(settings: ClusterSettings, log: DecisionLog) -> dict[int, BlockKeys]:
    """Return the keys of prompts and outputs where the run had them."""
    size = settings.block_size
    return {
        # the last hash is nobody's: one that ends inside of the output would count as partial
        arrival.request_id: block_keys(
            arrival.request_id,
            (*log.all_hashes[arrival.request_id], 1 << 63),
            num_prompt_tokens=arrival.num_prompt_tokens,
            hash_block_tokens=size,
            block_size=size,
            namespace=arrival.namespace,
        )
        for arrival in log.arrivals
        if arrival.request_id in log.all_hashes
    }


def replay(
    settings: ClusterSettings, log: DecisionLog, block_bytes: int, num_layers: int = 1 << 10
) -> RunResult:
    """Return what the simulation makes of a recorded run."""
    specs = [
        RequestSpec(
            request_id=arrival.request_id,
            arrival_ns=arrival.time_ns,
            num_prompt_tokens=arrival.num_prompt_tokens,
            # where no worker got to the end the true length is unknown: it was not reached
            num_output_tokens=log.num_produced.get(arrival.request_id, arrival.max_tokens + 1),
            max_tokens=arrival.max_tokens,
            block_hashes=arrival.block_hashes,
            namespace=arrival.namespace,
        )
        for arrival in log.arrivals
    ]
    workload = Workload(
        name="recorded",
        requests=tuple(specs),
        hash_block_tokens=settings.block_size,
        num_rows=len(specs),
    )
    lengths = {spec.request_id: spec.num_output_tokens for spec in specs}
    steps: dict[int, list[RecordedStep]] = defaultdict(list)
    for step in log.steps:
        steps[step.worker_id].append(step)
    times = [RecordedSteps(steps[worker]) for worker in range(settings.num_workers)]
    workers = [
        (
            scheduler,
            SimExecutor(
                times[worker],
                lengths,
                samples_first_token=not settings.num_decode or worker >= settings.num_prefill,
                max_iterations=1,
            ),
        )
        for worker, scheduler in enumerate(schedulers_of(settings))
    ]
    coordinator: Any = FailureControl(coordinator_of(settings, block_bytes, num_layers), log.broken)
    network = RecordedNetwork(log.transfers)
    simulation = Replay(SimulationConfig(), workload, coordinator, workers, network)
    simulation.times, simulation.keys = times, known_keys(settings, log)
    for time_ns, request_id in log.cancels:
        simulation.cancel_at(request_id, time_ns)
    for time_ns, worker in log.lost:
        simulation.lose_worker_at(worker, time_ns)
    for time_ns, worker in log.joined:
        simulation.join_worker_at(worker, time_ns)
    return simulation.run()
