"""Which requests run in the next step of one worker: vLLM V1's rules as a state machine.

The caller alternates ``schedule`` and ``complete`` and may call ``handle`` at any time. Requests of
the running decode batch are not touched while nothing disturbs them; see ``decode_batch``.

Rules (vLLM V1, 0.19): running requests first, one token budget per step, chunked prefill with at
most one partial prompt, first come first served, a waiting request is admitted only when all its
tokens fit, the youngest is preempted by recompute and later hits its own cached prefix, nothing is
admitted in a step that preempted. Asynchronous scheduling is not modelled here.
"""

from collections import deque
from dataclasses import dataclass

from kvfabric.kvcache.manager import KVManager
from kvfabric.protocol.step import DecodeJoin, PrefillChunk, StepPlan, StepResult
from kvfabric.serving.commands import (
    AddRequest,
    Cancel,
    Cancelled,
    Command,
    Finished,
    FirstToken,
    KvArrived,
    Prefilled,
    ReleaseHeld,
    WorkerEvent,
    WorkerSignal,
)
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.decode_batch import DecodeBatch
from kvfabric.serving.request import Goal, Request, RequestState


@dataclass(frozen=True, slots=True)
class Decision:
    """What ``schedule`` decided: a step to run, if any, and decode blocks newly reserved."""

    plan: StepPlan | None
    reserved: tuple[int, ...] = ()


class Scheduler:
    """Waiting, running and held requests of one worker.

    Invariants:
        I1. scheduled tokens never exceed the budget, running requests never ``max_num_seqs``.
        I2. a request that is not waiting and not gone has a block table; the others have none.
        I3. every known request is in exactly one state, and its container agrees with it.
    """

    __slots__ = (
        "_batch",
        "_config",
        "_doomed",
        "_first_decodes",
        "_left",
        "_loaded",
        "_num_prompt_tokens",
        "_num_queued_tokens",
        "_partial",
        "_plan",
        "_requests",
        "_running",
        "_waiting",
        "kv",
        "num_preemptions",
    )

    def __init__(self, config: SchedulerConfig) -> None:
        """Make an idle worker."""
        self._config = config
        self.kv = KVManager(
            config.num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._batch = DecodeBatch(config.block_size)
        self._requests: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._loaded: deque[Request] = deque()
        self._running: dict[int, Request] = {}  # oldest first
        self._partial: Request | None = None  # the one prompt that is computed in part
        self._first_decodes: list[Request] = []  # in the step that is out
        self._left: list[int] = []  # gone since the last plan, for the executor
        self._doomed: dict[int, Request] = {}  # cancelled while their step is out
        self._plan: StepPlan | None = None
        self._num_queued_tokens = 0
        self._num_prompt_tokens = 0
        self.num_preemptions = 0

    # ------------------------------------------------------------------ what others may ask

    @property
    def is_drained(self) -> bool:
        """Return whether no request is known."""
        return not self._requests

    @property
    def is_stepping(self) -> bool:
        """Return whether a plan is out."""
        return self._plan is not None

    @property
    def num_running(self) -> int:
        """Return the requests that hold a place in the batch."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return the requests that wait for blocks or a place."""
        return len(self._waiting)

    def next_deadline_ns(self) -> int | None:
        """Return None: a worker has no deadlines of its own."""
        return None

    def signal(self, now_ns: int) -> WorkerSignal:
        """Return what the worker reports to the router."""
        return WorkerSignal(
            now_ns, self._num_queued_tokens, len(self._requests), self._num_prompt_tokens
        )

    def should_interrupt(self) -> bool:
        """Return whether a run of decode iterations should end after the current one.

        True when something that arrived meanwhile may change the next step. Ending a run early
        never changes a decision, it only costs another call.
        """
        if self._plan is None or self._plan.max_iterations == 1:
            return False
        if self._doomed:
            return True
        has_place = len(self._running) < self._config.max_num_seqs
        return has_place and bool(self._loaded or self._waiting)

    # ------------------------------------------------------------------ commands

    def handle(self, command: Command, now_ns: int) -> list[WorkerEvent]:
        """Apply a command and return what became of requests because of it."""
        del now_ns
        match command:
            case AddRequest():
                self._add(command)
            case KvArrived(request_id):
                self._kv_arrived(request_id)
            case ReleaseHeld(request_id):
                self._release_held(request_id)
            case Cancel(request_id):
                return self._cancel(request_id)
        return []

    def _add(self, command: AddRequest) -> None:
        assert command.request_id not in self._requests, "request ids are unique in a worker"
        total = command.num_prompt_tokens + command.max_tokens
        assert 1 <= command.num_prompt_tokens < total <= self._config.max_model_len
        request = Request(
            command.request_id,
            command.num_prompt_tokens,
            command.max_tokens,
            command.goal,
            command.keys,
        )
        self._requests[request.request_id] = request
        self._num_prompt_tokens += request.num_prompt_tokens
        self._enqueue(request)

    def _enqueue(self, request: Request, *, front: bool = False) -> None:
        request.state = RequestState.WAITING
        if front:
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)
        self._num_queued_tokens += request.num_tokens

    def _dequeue(self) -> Request:
        request = self._waiting.popleft()
        self._num_queued_tokens -= request.num_tokens
        return request

    def _kv_arrived(self, request_id: int) -> None:
        request = self._requests[request_id]
        assert request.state is RequestState.AWAITING_KV, "KV arrived for a request without blocks"
        request.state = RequestState.LOADED
        self._loaded.append(request)

    def _release_held(self, request_id: int) -> None:
        request = self._requests[request_id]
        assert request.state is RequestState.HELD, "released a request that holds nothing"
        self._drop(request)

    def _cancel(self, request_id: int) -> list[WorkerEvent]:
        request = self._requests.get(request_id)
        if request is None:
            return []
        if request_id in self._running and self._plan is not None:
            self._doomed[request_id] = request  # its blocks are in use until the step ends
            return []
        self._remove(request)
        return [Cancelled(request_id)]

    def _remove(self, request: Request) -> None:
        """Take a request out of whatever holds it and give its blocks back."""
        match request.state:
            case RequestState.WAITING:
                self._waiting.remove(request)
                self._num_queued_tokens -= request.num_tokens
            case RequestState.LOADED:
                self._loaded.remove(request)
            case RequestState.PREFILLING | RequestState.DECODING:
                self._stop_running(request)
            case _:
                pass
        self._drop(request)

    def _stop_running(self, request: Request) -> None:
        del self._running[request.request_id]
        self._left.append(request.request_id)
        if request.in_batch:
            self._batch.leave(request)
        if self._partial is request:
            self._partial = None
            self._num_queued_tokens -= request.num_tokens - request.num_computed

    def _drop(self, request: Request) -> None:
        request.state = RequestState.GONE
        del self._requests[request.request_id]
        self._num_prompt_tokens -= request.num_prompt_tokens
        if request.request_id in self.kv.tables:
            self.kv.release(request.request_id)

    # ------------------------------------------------------------------ deciding a step

    def schedule(self, now_ns: int) -> Decision:
        """Decide the next step; nothing may be out. Idle workers get ``Decision(None)``."""
        assert self._plan is None, "schedule before the last step was completed"
        has_preempted = self._make_room_for_growth()
        chunks: list[PrefillChunk] = []
        budget = self._config.max_num_batched_tokens - self._batch.size
        if self._partial is not None:
            has_preempted |= self._continue_partial(chunks, budget)
            budget -= sum(chunk.num_tokens for chunk in chunks)
        reserved: list[int] = []
        if not has_preempted or not (self._batch.size or chunks):
            self._admit(chunks, reserved, budget, now_ns)
        self._plan = self._make_plan(tuple(chunks), has_preempted=has_preempted)
        return Decision(self._plan, tuple(reserved))

    def _make_room_for_growth(self) -> bool:
        """Give every decoding request its next block, preempting the youngest until it fits."""
        has_preempted = False
        while self._batch.num_growing > self.kv.num_free:
            self._preempt_youngest()
            has_preempted = True
        for request in self._batch.growing():
            self.kv.append_block(request.request_id)
        return has_preempted

    def _preempt_youngest(self) -> Request:
        request = self._running[next(reversed(self._running))]
        self._stop_running(request)
        self.kv.remember(request.request_id, request.keys, 0, request.num_computed)
        self.kv.release(request.request_id)
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        if request.goal is Goal.DECODE:
            request.goal = Goal.GENERATE  # what it received is gone; recompute it here
        self._enqueue(request, front=True)
        return request

    def _continue_partial(self, chunks: list[PrefillChunk], budget: int) -> bool:
        """Compute the next chunk of the partial prompt; return whether somebody was preempted."""
        request = self._partial
        assert request is not None
        num_tokens = min(request.num_tokens - request.num_computed, budget)
        if num_tokens <= 0:
            return False
        has_preempted = False
        while not self.kv.grow(request.request_id, request.num_computed + num_tokens):
            has_preempted = True
            if self._preempt_youngest() is request:
                return True
        chunks.append(self._chunk(request, num_tokens))
        return has_preempted

    def _chunk(self, request: Request, num_tokens: int) -> PrefillChunk:
        """Schedule the next tokens of a prompt; its full blocks can be hit from now on."""
        history = request.num_computed
        end = history + num_tokens
        request.num_computed = end
        is_last = end == request.num_tokens
        if self._partial is request:
            self._num_queued_tokens -= num_tokens
        elif not is_last:
            self._num_queued_tokens += request.num_tokens - end
        self._partial = None if is_last else request
        self._remember_known(request, history // self.kv.block_size, end)
        return PrefillChunk(request.request_id, num_tokens, history, is_last)

    def _remember_known(self, request: Request, first_block: int, num_tokens: int) -> None:
        """Make the blocks findable that other requests can name; the rest only on preemption."""
        known_tokens = request.keys.num_known * self.kv.block_size
        self.kv.remember(
            request.request_id, request.keys, first_block, min(num_tokens, known_tokens)
        )

    def _admit(
        self, chunks: list[PrefillChunk], reserved: list[int], budget: int, now_ns: int
    ) -> None:
        """Admit received requests, then waiting ones in order until one does not fit."""
        max_num_seqs = self._config.max_num_seqs
        while self._loaded and budget > 0 and len(self._running) < max_num_seqs:
            request = self._loaded.popleft()
            self._run(request, RequestState.DECODING, now_ns)
            self._first_decodes.append(request)
            budget -= 1
        while self._waiting and budget > 0 and len(self._running) < max_num_seqs:
            request = self._waiting[0]
            if request.goal is Goal.DECODE:
                if not self._reserve(request):
                    return
                reserved.append(request.request_id)
                continue
            hits = self.kv.find_prefix(request.keys, request.num_tokens)
            if not self.kv.fits(request.num_tokens, hits):
                return
            chunk = self._start_prefill(request, hits, budget, now_ns)
            chunks.append(chunk)
            budget -= chunk.num_tokens

    def _reserve(self, request: Request) -> bool:
        """Reserve the blocks of the whole prompt, or return False and change nothing."""
        if not self.kv.admit(request.request_id, [], request.num_prompt_tokens):
            return False
        self._dequeue()
        request.state = RequestState.AWAITING_KV
        return True

    def _start_prefill(
        self, request: Request, hits: list[int], budget: int, now_ns: int
    ) -> PrefillChunk:
        num_cached = len(hits) * self.kv.block_size
        num_tokens = min(request.num_tokens - num_cached, budget)
        is_admitted = self.kv.admit(request.request_id, hits, num_cached + num_tokens)
        assert is_admitted, "a request that fits whole fits in part"
        self._dequeue()
        request.num_computed = num_cached
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached
        self._run(request, RequestState.PREFILLING, now_ns)
        return self._chunk(request, num_tokens)

    def _run(self, request: Request, state: RequestState, now_ns: int) -> None:
        request.state = state
        self._running[request.request_id] = request
        if request.first_scheduled_ns is None:
            request.first_scheduled_ns = now_ns

    def _make_plan(
        self, chunks: tuple[PrefillChunk, ...], *, has_preempted: bool
    ) -> StepPlan | None:
        batch, first = self._batch, self._first_decodes
        num_decodes = batch.size + len(first)
        if not num_decodes and not chunks:
            return None
        joined = tuple(DecodeJoin(r.request_id, r.num_prompt_tokens - 1) for r in first)
        left, self._left = tuple(self._left), []
        return StepPlan(
            num_decodes=num_decodes,
            context_tokens=batch.context_tokens + sum(j.num_context_tokens for j in joined),
            prefill=chunks,
            max_iterations=1 if chunks or joined or has_preempted else self._run_length(),
            joined=joined,
            left=left,
        )

    def _run_length(self) -> int:
        """Return how many identical iterations blocks and token limits allow."""
        by_blocks = 1 + self._batch.iterations_within(self.kv.num_free)
        return min(by_blocks, self._batch.iterations_to_limit())

    # ------------------------------------------------------------------ applying a step

    def complete(self, result: StepResult, now_ns: int) -> list[WorkerEvent]:
        """Apply what ran and return what became of requests, in a fixed order."""
        del now_ns
        plan, self._plan = self._plan, None
        assert plan is not None, "completed a step that was not scheduled"
        assert 1 <= result.num_iterations <= plan.max_iterations, "ran more than was planned"
        self._advance_batch(result.num_iterations)
        reported = frozenset(result.finished)
        events: list[WorkerEvent] = [
            self._finish(request, reported) for request in self._decodes_finished(result.finished)
        ]
        for request in self._first_decodes:
            events.append(FirstToken(request.request_id))
            self._after_token(request, reported, events)
        self._first_decodes = []
        for chunk in plan.prefill:
            if chunk.is_last:
                self._after_prompt(self._requests[chunk.request_id], reported, events)
        events.extend(self._bury())
        return events

    def _advance_batch(self, num_iterations: int) -> None:
        for request in self._batch.growing(1, num_iterations):
            self.kv.append_block(request.request_id)
        self._batch.advance(num_iterations)

    def _decodes_finished(self, reported: tuple[int, ...]) -> list[Request]:
        """Return the batch's finished requests: those reported and those at their limit."""
        done = {r.request_id: r for r in self._batch.pop_at_limit()}
        for request_id in reported:
            request = self._requests[request_id]
            if request.in_batch:
                done[request_id] = request
        return [done[request_id] for request_id in sorted(done)]

    def _after_prompt(
        self, request: Request, reported: frozenset[int], events: list[WorkerEvent]
    ) -> None:
        started_ns = request.first_scheduled_ns
        assert started_ns is not None
        if request.num_outputs == 0:
            events.append(Prefilled(request.request_id, started_ns, request.num_cached_tokens))
        if request.goal is Goal.PREFILL:
            del self._running[request.request_id]
            request.state = RequestState.HELD
            return
        self._after_token(request, reported, events)

    def _after_token(
        self, request: Request, reported: frozenset[int], events: list[WorkerEvent]
    ) -> None:
        """Count a token sampled outside the batch, then finish the request or let it decode."""
        request.num_outputs += 1
        if request.request_id in reported or request.num_outputs >= request.max_tokens:
            events.append(self._finish(request, reported))
            return
        self._batch.join(request, request.num_tokens - 1)

    def _finish(self, request: Request, reported: frozenset[int]) -> Finished:
        if request.request_id not in reported:
            self._left.append(request.request_id)  # ended by its limit: the executor cannot know
        if request.in_batch:
            self._batch.leave(request)
            if request.goal is Goal.GENERATE:  # the prompt's blocks are known since its prefill
                prompt_blocks = request.num_prompt_tokens // self.kv.block_size
                self._remember_known(request, prompt_blocks, request.num_computed)
        del self._running[request.request_id]
        self._drop(request)
        return Finished(request.request_id, request.num_outputs, request.num_preemptions)

    def _bury(self) -> list[WorkerEvent]:
        """Remove what was cancelled while the step ran."""
        gone: list[WorkerEvent] = []
        for request_id, request in self._doomed.items():
            if request_id in self._requests:
                self._remove(request)
                gone.append(Cancelled(request_id))
        self._doomed = {}
        return gone

    # ------------------------------------------------------------------ checking

    def check_invariants(self) -> None:
        """Assert I1 to I3 and those of the parts."""
        self.kv.check_invariants()
        self._batch.check_invariants()
        assert len(self._running) <= self._config.max_num_seqs, "I1"
        tables = set(self.kv.tables)
        for request in self._requests.values():
            is_waiting = request.state is RequestState.WAITING
            assert (request.request_id in tables) != is_waiting, "I2"
            runs = request.state in {RequestState.PREFILLING, RequestState.DECODING}
            assert (request.request_id in self._running) == runs, "I3"
        assert tables <= self._requests.keys(), "I2"
        waiting = sum(request.num_tokens for request in self._waiting)
        rest = 0 if self._partial is None else self._partial.num_tokens - self._partial.num_computed
        assert self._num_queued_tokens == waiting + rest, "queued tokens"
