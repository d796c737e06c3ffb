"""What the control asks for, carried out on real workers.

The lower of the two layers of a driver, see ``driver``.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvfabric.engine.block_transfers import BlockTransfers
from kvfabric.engine.decision_log import DecisionLog, RecordedArrival
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import NewRequest
from kvfabric.engine.generated_keys import GeneratedKeys
from kvfabric.engine.live_transfers import LiveTransfers, Post
from kvfabric.engine.live_worker import LiveWorker
from kvfabric.engine.messages import Hello
from kvfabric.engine.token_streams import OutputSink, TokenStreams
from kvfabric.protocol.record import Outcome
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


class DriverActions:
    """Requests, commands and transfers of one running cluster.

    Attributes:
        failures: why requests failed, by id, until they end.
    """

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
        """Join the parts; see ``LiveDriver``."""
        self._coordinator = coordinator
        self._workers = [
            LiveWorker(i, scheduler, address=hello.address)
            for i, (scheduler, hello) in enumerate(zip(schedulers, hellos, strict=True))
        ]
        self._post = post
        self._streams = TokenStreams(sink)
        self._log = log
        self._now_ns = 0
        self._dirty: set[int] = set()  # workers that may plan
        self._changed: set[int] = set()  # since they reported
        self._requests: dict[int, GenerateRequest] = {}
        self._num_groups = coordinator.num_layer_groups
        num_layers = hellos[0].num_layers
        num_parts = max(1, self._num_groups)
        assert num_parts <= num_layers, "more layer groups than layers"
        ends = [num_layers * (group + 1) // num_parts for group in range(num_parts)]
        block_size = schedulers[0].kv.block_size
        self._blocks = BlockTransfers(block_size, hellos[0].block_bytes, ends)
        self._transfers = LiveTransfers(self._workers, self._blocks, post, log)
        self.failures: dict[int, str] = {}

    def _note(self, kind: str, ident: int, other: int = -1) -> None:
        if self._log is not None:
            self._log.note(self._now_ns, kind, ident, other)

    # ------------------------------------------------------------------ clients

    def _arrive(self, request: GenerateRequest) -> None:
        request_id = request.request_id
        self._note("arrival", request_id)
        self._requests[request_id] = request
        self._streams.open(request_id)
        incoming = IncomingRequest(
            request_id,
            len(request.prompt_ids),
            request.sampling.max_tokens,
            request.block_hashes,
            request.namespace,
        )
        if self._log is not None:
            self._log.arrivals.append(
                RecordedArrival(
                    self._now_ns,
                    request_id,
                    incoming.num_prompt_tokens,
                    incoming.max_tokens,
                    incoming.block_hashes,
                    incoming.namespace,
                )
            )
        self._act(self._coordinator.arrive(incoming, self._now_ns), request_id)

    def _cancel(self, request_id: int) -> None:
        self._note("cancel", request_id)
        if self._log is not None:
            self._log.cancels.append((self._now_ns, request_id))
        self._act(self._coordinator.cancel(request_id, self._now_ns), request_id)

    def _end(self, end: EndRequest) -> None:
        record = end.record
        del self._requests[record.request_id]
        self._blocks.forget(record.request_id)
        if self._log is not None:
            self._log.records.append(record)
        if self.failures.pop(record.request_id, None) is not None:
            record = replace(record, outcome=Outcome.FAILED)
        self._streams.end(record)

    # ------------------------------------------------------------------ what the control asks for

    def _act(self, actions: list[Action], request_id: int) -> None:
        """Carry out what the control answered to something about a request."""
        for action in actions:
            match action:
                case SendCommand(worker_id, command):
                    self._send(self._workers[worker_id], command)
                case StartTransfer(transfer):
                    num_tokens = len(self._requests[request_id].prompt_ids)
                    self._transfers.start(transfer, request_id, num_tokens, self._now_ns)
                case CancelTransfer(transfer_id):
                    self._transfers.stop(transfer_id)
                case EndRequest():
                    self._end(action)
                case StartRead():
                    raise AssertionError("no KV pool outside of the workers yet")

    def _send(self, worker: LiveWorker, command: Command) -> None:
        match command:
            case AddRequest():
                command = self._add(worker, command)
            case Cancel(request_id) | ReleaseHeld(request_id):
                worker.forget(request_id)
                if request_id in worker.to_read:
                    worker.to_read.remove(request_id)
        events = worker.scheduler.handle(command, self._now_ns)
        self._changed.add(worker.worker_id)
        if worker.plan is None:
            self._dirty.add(worker.worker_id)
        self._tell(worker, events)

    def _add(self, worker: LiveWorker, command: AddRequest) -> AddRequest:
        """Let a worker know a request; return the command with keys that grow with its output."""
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
        if command.goal is Goal.PREFILL:
            if self._num_groups:
                self._blocks.stream(request_id)
            return command
        self._streams.begin_attempt(request_id)
        if request.hash_key is None:
            return command
        generated = GeneratedKeys(command.keys, request, worker.scheduler.kv.block_size)
        worker.keys[request_id] = generated
        return replace(command, keys=generated.keys)

    def _tell(self, worker: LiveWorker, events: Sequence[WorkerEvent]) -> None:
        for event in events:
            request_id = event.request_id
            self._note(type(event).__name__, worker.worker_id, request_id)
            if isinstance(event, Finished) and self._log is not None:
                self._log.num_produced[request_id] = event.num_outputs
            if isinstance(event, PrefillStarted):
                self._blocks.ready(request_id, event.num_cached_tokens)
            actions = self._coordinator.on_worker_event(worker.worker_id, event, self._now_ns)
            self._act(actions, request_id)
