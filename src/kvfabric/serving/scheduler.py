"""Which requests run in the next step of one worker: vLLM V1's rules as a state machine.

``schedule`` plans a step and counts its tokens as there; ``complete`` ends the oldest step that is
out. A driver that alternates the two schedules synchronously. One that plans step m + 1 while m
runs schedules asynchronously, as vLLM does by default; the rules here are the same. ``handle`` may
be called at any time. Requests of the running decode batch are not touched while nothing disturbs
them; see ``decode_batch``.

Rules (vLLM V1, 0.19): running requests first, one token budget per step, chunked prefill with at
most one partial prompt, first come first served, a waiting request is admitted only when all its
tokens fit, the youngest is preempted by recompute and later hits its own cached prefix, nothing is
admitted in a step that preempted. A request at its token limit is in no later step, but keeps its
blocks and its place until its last step is complete; one that ends before its limit may be in the
next step already, whose token for it is dropped.
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
    PrefillStarted,
    ReleaseHeld,
    WorkerEvent,
    WorkerSignal,
)
from kvfabric.serving.config import SchedulerConfig
from kvfabric.serving.decode_batch import DecodeBatch
from kvfabric.serving.request import Goal, Request, RequestState
from kvfabric.serving.step_out import StepOut
from kvfabric.serving.waiting_queue import WaitingQueue

MAX_STEPS_OUT = 2


@dataclass(frozen=True, slots=True)
class Decision:
    """What ``schedule`` decided.

    Attributes:
        plan: a step to run, if any.
        reserved: requests whose blocks for received KV are newly reserved.
        started: prompts that only prefill here and whose first chunk is in the plan.
    """

    plan: StepPlan | None
    reserved: tuple[int, ...] = ()
    started: tuple[PrefillStarted, ...] = ()


NO_STEP = Decision(None)


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
        "_left",
        "_loaded",
        "_may_admit",
        "_num_prompt_tokens",
        "_out",
        "_partial",
        "_prompts",
        "_received",
        "_requests",
        "_running",
        "_started",
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
        self._waiting = WaitingQueue()
        self._loaded: deque[Request] = deque()
        self._running: dict[int, Request] = {}  # oldest first
        self._partial: Request | None = None  # the one prompt that is computed in part
        self._out: deque[StepOut] = deque()  # planned and not completed, oldest first
        self._received: list[Request] = []  # of the step being planned, see StepOut
        self._prompts: list[tuple[Request, bool]] = []  # likewise
        self._started: list[PrefillStarted] = []  # likewise
        self._left: list[int] = []  # gone since the last plan, for the executor
        self._doomed: dict[int, int] = {}  # cancelled: steps to complete until blocks are free
        self._may_admit = False  # something changed since the last look at who may come in
        self._num_prompt_tokens = 0
        self.num_preemptions = 0

    def empty_twin(self) -> "Scheduler":
        """Return an idle scheduler of the same settings, in the place of one that died."""
        return Scheduler(self._config)

    # ------------------------------------------------------------------ what others may ask

    @property
    def is_drained(self) -> bool:
        """Return whether no request is known."""
        return not self._requests

    @property
    def is_stepping(self) -> bool:
        """Return whether a step is out."""
        return bool(self._out)

    @property
    def num_running(self) -> int:
        """Return the requests that hold a place in the batch."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return the requests that wait for blocks or a place."""
        return len(self._waiting.requests)

    def next_deadline_ns(self) -> int | None:
        """Return None: a worker has no deadlines of its own."""
        return None

    def signal(self, now_ns: int) -> WorkerSignal:
        """Return what the worker reports to the router."""
        partial = self._partial
        rest = 0 if partial is None else partial.num_tokens - partial.num_computed
        num_queued_tokens = self._waiting.num_tokens + rest
        return WorkerSignal(now_ns, num_queued_tokens, len(self._requests), self._num_prompt_tokens)

    def should_interrupt(self) -> bool:
        """Return whether a run of decode iterations should make room for planning.

        True when something that arrived meanwhile may change the next step. Planning sooner never
        changes a decision, it only costs another call.
        """
        return bool(self._doomed) or self._may_let_in()

    def _may_let_in(self) -> bool:
        """Return whether somebody might get in who could not at the last look."""
        if not self._may_admit or len(self._running) >= self._config.max_num_seqs:
            return False
        return bool(self._loaded or self._waiting.requests)

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
        external = command.num_external_tokens
        assert 0 <= external < command.num_prompt_tokens, "something is left to compute"
        assert external % self.kv.block_size == 0, "KV cache comes in whole blocks"
        request = Request(
            command.request_id,
            command.num_prompt_tokens,
            command.max_tokens,
            command.goal,
            command.keys,
            num_external_tokens=external,
        )
        self._requests[request.request_id] = request
        self._num_prompt_tokens += request.num_prompt_tokens
        self._may_admit |= not self._waiting.requests
        self._waiting.append(request)

    def _kv_arrived(self, request_id: int) -> None:
        request = self._requests[request_id]
        assert request.state is RequestState.AWAITING_KV, "KV arrived for a request without blocks"
        request.state = RequestState.LOADED
        self._loaded.append(request)
        self._may_admit = True

    def _release_held(self, request_id: int) -> None:
        request = self._requests[request_id]
        assert request.state is RequestState.HELD, "released a request that holds nothing"
        self._drop(request)

    def _cancel(self, request_id: int) -> list[WorkerEvent]:
        request = self._requests.get(request_id)
        if request is None:
            return []
        if request_id in self._doomed:
            return []
        if request_id in self._running and self._out:
            self._doomed[request_id] = len(self._out)  # a step uses its blocks
            return []
        self._remove(request)
        return [Cancelled(request_id)]

    def _remove(self, request: Request) -> None:
        """Take a request out of whatever holds it and give its blocks back."""
        if request.state is RequestState.WAITING:
            self._waiting.remove(request)
        elif request.state is RequestState.LOADED:
            self._loaded.remove(request)
        elif request.request_id in self._running:
            self._stop_running(request)
        self._drop(request)

    def _stop_running(self, request: Request) -> None:
        del self._running[request.request_id]
        self._left.append(request.request_id)
        if request.in_batch:
            self._batch.leave(request)
        if self._partial is request:
            self._partial = None

    def _drop(self, request: Request) -> None:
        request.state = RequestState.GONE
        self._may_admit = True
        del self._requests[request.request_id]
        self._num_prompt_tokens -= request.num_prompt_tokens
        if request.request_id in self.kv.tables:
            self.kv.release(request.request_id)

    # ------------------------------------------------------------------ deciding a step

    def schedule(self, now_ns: int) -> Decision:
        """Plan the next step; at most one may be out. Returns ``Decision(None)`` for no step."""
        assert len(self._out) < MAX_STEPS_OUT, "two steps are out already"
        if not (self._waiting.requests or self._loaded or self._partial or self._doomed):
            batch = self._batch
            if not batch.size:
                return NO_STEP
            if batch.num_growing <= self.kv.pool.num_free:
                return self._continue_batch()
        if self._doomed:
            self._stop_doomed()
        has_preempted = self._make_room_for_growth()
        chunks: list[PrefillChunk] = []
        budget = self._config.max_num_batched_tokens - self._batch.size
        if self._partial is not None:
            has_preempted |= self._continue_partial(chunks, budget)
            if chunks:
                budget -= chunks[0].num_tokens
        reserved: list[int] = []
        self._may_admit = has_preempted
        if (self._waiting.requests or self._loaded) and (
            not has_preempted or not (self._batch.size or chunks or self._out)
        ):
            self._admit(chunks, reserved, budget, now_ns)
        plan = self._make_plan(tuple(chunks))
        if plan is not None:
            self._out.append(self._plan_ahead(plan, has_preempted=has_preempted))
        if not reserved and not self._started:
            return Decision(plan)
        started, self._started = tuple(self._started), []
        return Decision(plan, tuple(reserved), started)

    def _continue_batch(self) -> Decision:
        """Plan a step of the decode batch alone: nobody waits and its blocks are there."""
        batch = self._batch
        if batch.num_growing:
            self.kv.append_blocks(batch.growing())
        self._may_admit = False
        left, self._left = tuple(self._left), []
        plan = StepPlan(batch.size, batch.context_tokens, (), (), left)
        out = StepOut(plan, 0, may_repeat=True)
        batch.advance(1)
        self._end_at_limit(out)
        out.batch_version = batch.version
        self._out.append(out)
        return Decision(plan)

    def _stop_doomed(self) -> None:
        """Keep cancelled requests out of what is planned from now on."""
        for request_id in self._doomed:
            if request_id in self._running:
                request = self._running[request_id]
                self._stop_running(request)
                request.state = RequestState.LEAVING

    def _make_room_for_growth(self) -> bool:
        """Give every decoding request its next block, preempting the youngest until it fits."""
        has_preempted = False
        num_growing = self._batch.num_growing
        while num_growing > self.kv.pool.num_free:
            self._preempt_youngest()
            has_preempted = True
            num_growing = self._batch.num_growing
        if num_growing:
            self.kv.append_blocks(self._batch.growing())
        return has_preempted

    def _preempt_youngest(self) -> Request:
        request = self._running[next(reversed(self._running))]
        has_token_out = bool(self._out) and request.state is not RequestState.PREFILLING
        self._stop_running(request)
        known_tokens = request.num_computed - has_token_out
        self.kv.remember(request.request_id, request.keys, 0, known_tokens)
        self.kv.release(request.request_id)
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        if request.goal is Goal.DECODE:
            request.goal = Goal.GENERATE  # what it received is gone; recompute it here
        self._waiting.put_first(request)
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
        self._partial = None if is_last else request
        if is_last:
            self._prompts.append((request, request.num_outputs == 0))
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
            if request.goal is Goal.DECODE:
                self._run(request, RequestState.DECODING, now_ns)
                self._received.append(request)
                budget -= 1
            else:
                chunk = self._start_received(request, budget, now_ns)
                chunks.append(chunk)
                budget -= chunk.num_tokens
        while self._waiting.requests and budget > 0 and len(self._running) < max_num_seqs:
            request = self._waiting.requests[0]
            if request.needs_kv:
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
        hits: list[int] = []
        if request.num_external_tokens:
            hits = self.kv.find_prefix(request.keys, request.num_prompt_tokens)
        if not self.kv.admit(request.request_id, hits, request.num_prompt_tokens):
            return False
        self._waiting.pop()
        request.state = RequestState.AWAITING_KV
        request.num_computed = len(hits) * self.kv.block_size
        return True

    def _start_received(self, request: Request, budget: int, now_ns: int) -> PrefillChunk:
        """Compute what follows the prefix that was brought here, or found here if longer."""
        request.num_computed = max(request.num_computed, request.num_external_tokens)
        request.num_cached_tokens = request.num_computed
        request.num_external_tokens = 0  # after a preemption it is computed, or found again
        self._remember_known(request, 0, request.num_computed)
        return self._start_prompt(request, budget, now_ns)

    def _start_prefill(
        self, request: Request, hits: list[int], budget: int, now_ns: int
    ) -> PrefillChunk:
        num_cached = len(hits) * self.kv.block_size
        num_tokens = min(request.num_tokens - num_cached, budget)
        is_admitted = self.kv.admit(request.request_id, hits, num_cached + num_tokens)
        assert is_admitted, "a request that fits whole fits in part"
        self._waiting.pop()
        request.num_computed = num_cached
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached
        return self._start_prompt(request, budget, now_ns)

    def _start_prompt(self, request: Request, budget: int, now_ns: int) -> PrefillChunk:
        """Schedule the first chunk of a prompt that has a table."""
        num_cached = request.num_computed
        self._run(request, RequestState.PREFILLING, now_ns)
        if request.goal is Goal.PREFILL:
            self._started.append(PrefillStarted(request.request_id, num_cached))
        return self._chunk(request, min(request.num_tokens - num_cached, budget))

    def _run(self, request: Request, state: RequestState, now_ns: int) -> None:
        request.state = state
        self._running[request.request_id] = request
        if request.first_scheduled_ns is None:
            request.first_scheduled_ns = now_ns

    def _make_plan(self, chunks: tuple[PrefillChunk, ...]) -> StepPlan | None:
        batch, received = self._batch, self._received
        num_decodes = batch.size + len(received)
        if not num_decodes and not chunks:
            return None
        context_tokens = batch.context_tokens
        joined: list[DecodeJoin] = []
        for request in received:
            join = DecodeJoin(request.request_id, request.num_prompt_tokens - 1)
            context_tokens += join.num_context_tokens
            joined.append(join)
        left, self._left = tuple(self._left), []
        return StepPlan(
            num_decodes=num_decodes,
            context_tokens=context_tokens,
            prefill=chunks,
            joined=tuple(joined),
            left=left,
        )

    # ------------------------------------------------------------------ planning ahead

    def _plan_ahead(self, plan: StepPlan, *, has_preempted: bool) -> StepOut:
        """Count a step's tokens as there, so that the next one can be planned."""
        may_repeat = not (plan.prefill or plan.joined or has_preempted)
        out = StepOut(plan, 0, may_repeat, 1, self._received, self._prompts)
        self._received, self._prompts = [], []
        self._batch.advance(1)
        self._end_at_limit(out)
        if out.received or out.prompts:
            for request in out.received:
                self._expect_token(request, out)
            for request, _ in out.prompts:
                if request.goal is not Goal.PREFILL:
                    self._expect_token(request, out)
        out.batch_version = self._batch.version
        return out

    def _end_at_limit(self, out: StepOut) -> None:
        """Take the requests that reach their token limit out of the batch."""
        batch = self._batch
        if batch.next_limit_tick <= batch.tick:
            for request in batch.pop_at_limit():
                batch.leave(request)
                self._expect_end(request, out)

    def _expect_token(self, request: Request, out: StepOut) -> None:
        """Count a token sampled outside the batch; the request decodes from the next step on."""
        request.num_outputs += 1
        if request.num_outputs >= request.max_tokens:
            self._expect_end(request, out)
        else:
            self._batch.join(request, request.num_tokens - 1)

    def _expect_end(self, request: Request, out: StepOut) -> None:
        request.state = RequestState.FINISHING
        out.ending.append(request)
        self._left.append(request.request_id)  # the executor cannot know

    def run_length(self) -> int:
        """Return how many iterations the one step that is out may run before planning the next.

        Asked when the step starts; all of them have the same batch. Bounded by free blocks and
        token limits.
        """
        (out,) = self._out
        is_same = out.may_repeat and not out.ending and out.batch_version == self._batch.version
        if not is_same or not self._batch.size or self._partial is not None:
            return 1
        if self._doomed or self._may_let_in():
            return 1
        by_blocks = self._batch.iterations_within(self.kv.pool.num_free)
        return 1 + min(by_blocks, self._batch.iterations_to_limit())

    def extend(self, num_iterations: int) -> None:
        """Count the step that is out as one of ``num_iterations`` iterations in total."""
        self._extend(self._out[0], num_iterations)

    def _extend(self, out: StepOut, num_iterations: int) -> None:
        more = num_iterations - out.num_iterations
        if not more:
            return
        may_run = out.may_repeat and not out.ending and more <= self._batch.iterations_to_limit()
        assert more > 0, "ran less than was counted"
        assert may_run, "ran more than was planned"
        out.num_iterations = num_iterations
        self.kv.append_blocks(self._batch.growing(0, more))
        self._batch.advance(more)
        self._end_at_limit(out)

    # ------------------------------------------------------------------ applying a step

    def complete(self, result: StepResult, now_ns: int) -> list[WorkerEvent]:
        """Apply what the oldest step did; return what became of requests, in a fixed order."""
        del now_ns
        assert self._out, "completed a step that was not planned"
        out = self._out[0]
        self._extend(out, result.num_iterations)
        self._out.popleft()
        events: list[WorkerEvent] = []
        done = set(result.finished)
        for request in out.ending:
            done.add(request.request_id)
        if not (out.received or out.prompts):
            for request_id in sorted(done):
                self._finish(request_id, out, events)
        else:
            self._complete_mixed(out, done, events)
        if self._doomed:
            events.extend(self._bury())
        return events

    def _complete_mixed(self, out: StepOut, done: set[int], events: list[WorkerEvent]) -> None:
        """Apply a step that gave some requests their first token, or one after a preemption."""
        first = {r.request_id for r in out.received} | {r.request_id for r, _ in out.prompts}
        for request_id in sorted(done - first):
            self._finish(request_id, out, events)
        for request in out.received:
            if request.state is not RequestState.GONE:
                events.append(FirstToken(request.request_id))
            if request.request_id in done:
                self._finish(request.request_id, out, events)
        for request, is_new in out.prompts:
            self._after_prompt(request, events, is_new=is_new)
            if request.request_id in done:
                self._finish(request.request_id, out, events)

    def _after_prompt(self, request: Request, events: list[WorkerEvent], *, is_new: bool) -> None:
        if request.state is RequestState.GONE:
            return
        started_ns = request.first_scheduled_ns
        assert started_ns is not None
        if is_new:
            events.append(Prefilled(request.request_id, started_ns, request.num_cached_tokens))
        if request.goal is Goal.PREFILL and request.state is RequestState.PREFILLING:
            del self._running[request.request_id]
            request.state = RequestState.HELD

    def _finish(self, request_id: int, out: StepOut, events: list[WorkerEvent]) -> None:
        """End a request whose last token ``out`` gave; a token planned after it is dropped."""
        request = self._requests.get(request_id)
        if request is None:
            return  # cancelled meanwhile
        num_dropped = self._stop_finished(request, out)
        if request.goal is Goal.GENERATE and request_id in self.kv.tables:
            prompt_blocks = request.num_prompt_tokens // self.kv.block_size
            self._remember_known(request, prompt_blocks, request.num_computed - num_dropped)
        self._drop(request)
        num_outputs = request.num_outputs - num_dropped
        events.append(Finished(request_id, num_outputs, request.num_preemptions))

    def _stop_finished(self, request: Request, out: StepOut) -> int:
        """Take a request out of what holds it; return its tokens that are planned too many."""
        if request.state is RequestState.WAITING:  # preempted with its last token out
            self._waiting.remove(request)
            return 0
        is_ahead = request.in_batch or request not in out.ending
        if request.in_batch:
            self._batch.leave(request)
        self._running.pop(request.request_id, None)
        return len(self._out) if is_ahead else 0

    def _bury(self) -> list[WorkerEvent]:
        """Remove the cancelled requests whose last step is over."""
        gone: list[WorkerEvent] = []
        for request_id, num_steps in list(self._doomed.items()):
            request = self._requests.get(request_id)
            if request is not None and num_steps > 1:
                self._doomed[request_id] = num_steps - 1
                continue
            del self._doomed[request_id]
            if request is not None:
                self._remove(request)
                gone.append(Cancelled(request_id))
        return gone

    # ------------------------------------------------------------------ checking

    def check_invariants(self) -> None:
        """Assert I1 to I3 and those of the parts."""
        self.kv.check_invariants()
        self._batch.check_invariants()
        self._waiting.check_invariants()
        assert len(self._running) <= self._config.max_num_seqs, "I1"
        tables = set(self.kv.tables)
        runs = {RequestState.PREFILLING, RequestState.DECODING, RequestState.FINISHING}
        for request in self._requests.values():
            is_waiting = request.state is RequestState.WAITING
            assert (request.request_id in tables) != is_waiting, "I2"
            assert (request.request_id in self._running) == (request.state in runs), "I3"
        assert tables <= self._requests.keys(), "I2"
