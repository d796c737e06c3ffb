"""Which requests run in the next step, and how far ahead that counts.

The middle of the three layers of a scheduler, see ``scheduler_state``. ``schedule`` plans a step
and counts its tokens as there, ``run_length`` and ``extend`` stretch a plain decode step to many
iterations.

Rules here (vLLM V1, 0.19): running requests first, one token budget per step, chunked prefill with
at most one partial prompt, first come first served, a waiting request is admitted only when all its
tokens fit, nothing is admitted in a step that preempted. A request at its token limit is in no
later step, but keeps its blocks and its place until its last step is complete.
"""

from dataclasses import dataclass
from typing import Final

from kvfabric.protocol.step import DecodeJoin, PrefillChunk, StepPlan
from kvfabric.serving.commands import PrefillStarted
from kvfabric.serving.request import Goal, Request, RequestState
from kvfabric.serving.scheduler_state import SchedulerState
from kvfabric.serving.step_draft import Reserved, StepDraft
from kvfabric.serving.step_out import StepOut

__all__ = ["MAX_STEPS_OUT", "NO_STEP", "Decision", "Reserved", "StepPlanning"]

MAX_STEPS_OUT = 2


@dataclass(slots=True, init=False)
class Decision:
    """What ``schedule`` decided.

    Attributes:
        plan: a step to run, if any.
        reserved: requests whose blocks for received KV are newly reserved.
        started: prompts that only prefill here and whose first chunk is in the plan.
    """

    plan: Final[StepPlan | None]
    reserved: Final[tuple[Reserved, ...]]
    started: Final[tuple[PrefillStarted, ...]]

    def __init__(
        self,
        plan: StepPlan | None,
        reserved: tuple[Reserved, ...] = (),
        started: tuple[PrefillStarted, ...] = (),
    ) -> None:
        """Set the fields."""
        self.plan = plan
        self.reserved = reserved
        self.started = started


NO_STEP = Decision(None)


class StepPlanning(SchedulerState):
    """Plans steps from what the worker knows.

    Requests of the running decode batch are not touched while nothing disturbs them; see
    ``decode_batch``.
    """

    __slots__ = ()

    # ------------------------------------------------------------------ deciding a step

    def schedule(self, now_ns: int) -> Decision:
        """Plan the next step; at most one may be out. Returns ``Decision(None)`` for no step."""
        assert len(self._out) < MAX_STEPS_OUT, "two steps are out already"
        batch = self._batch
        if not (self._waiting.requests or self._loaded or self._partial or self._cancelling):
            if not batch.size:
                return NO_STEP
            if batch.num_growing <= self.kv.pool.num_free:
                return self._continue_batch()
        if self._cancelling:
            self._stop_cancelled()
        has_preempted = self._make_room_for_growth()
        budget = self._config.max_num_batched_tokens - batch.size
        draft = StepDraft(now_ns, budget, has_preempted=has_preempted)
        if self._partial is not None:
            self._continue_partial(draft, self._partial)
        self._has_news = draft.has_preempted
        if not (draft.has_preempted and (batch.size or draft.chunks or self._out)):
            if self._loaded:
                self._admit_loaded(draft)
            if self._waiting.requests:
                self._admit_waiting(draft)
        plan = self._put_out(draft)
        return Decision(plan, tuple(draft.reserved), tuple(draft.started))

    def _continue_batch(self) -> Decision:
        """Plan a step of the decode batch alone: nobody waits and its blocks are there.

        The short way to what the rest of ``schedule`` would decide.
        """
        batch = self._batch
        if batch.num_growing:
            self.kv.append_blocks(batch.growing())
        self._has_news = False
        plan = StepPlan(batch.size, batch.context_tokens, (), (), self._take_left())
        self._count_ahead(StepOut(plan, may_repeat=True))
        return Decision(plan)

    def _make_room_for_growth(self) -> bool:
        """Give every decoding request its next block, preempting the youngest until it fits."""
        batch, pool = self._batch, self.kv.pool
        has_preempted = False
        while (num_growing := batch.num_growing) > pool.num_free:
            self._preempt_youngest()
            has_preempted = True
        if num_growing:
            self.kv.append_blocks(batch.growing())
        return has_preempted

    def _continue_partial(self, draft: StepDraft, request: Request) -> None:
        """Compute the next chunk of the partial prompt, unless it must be preempted itself."""
        num_tokens = draft.next_tokens(request)
        if num_tokens <= 0:
            return
        while not self.kv.grow(request.request_id, request.num_computed + num_tokens):
            draft.has_preempted = True
            if self._preempt_youngest() is request:
                return
        self._add_chunk(draft, request, num_tokens)

    def _add_chunk(self, draft: StepDraft, request: Request, num_tokens: int) -> None:
        """Schedule the next tokens of a prompt; its full blocks can be hit from now on."""
        history = request.num_computed
        end = history + num_tokens
        request.num_computed = end
        is_last = end == request.num_tokens
        self._partial = None if is_last else request
        if is_last:
            draft.prompts.append((request, request.num_outputs == 0))
        self._remember_known(request, history // self.kv.block_size, end)
        draft.chunks.append(PrefillChunk(request.request_id, num_tokens, history, is_last))
        draft.budget -= num_tokens

    # ------------------------------------------------------------------ letting requests in

    def _admit_loaded(self, draft: StepDraft) -> None:
        """Let requests in whose KV cache arrived, in the order of arrival; their blocks are there.

        What follows a prefix that was brought here, or found here if longer, is computed.
        """
        max_num_seqs = self._config.max_num_seqs
        while self._loaded and draft.budget > 0 and len(self._running) < max_num_seqs:
            request = self._loaded.popleft()
            if request.goal is Goal.DECODE:
                self._start_running(request, RequestState.DECODING, draft.now_ns)
                draft.received.append(request)
                draft.budget -= 1
                continue
            request.num_computed = max(request.num_computed, request.num_external_tokens)
            request.num_cached_tokens = request.num_computed
            request.num_external_tokens = 0  # after a preemption it is computed, or found again
            request.num_received_tokens = request.num_computed
            self._start_prompt(draft, request, draft.next_tokens(request))

    def _admit_waiting(self, draft: StepDraft) -> None:
        """Let waiting requests in, in order, until one does not fit."""
        waiting, max_num_seqs = self._waiting.requests, self._config.max_num_seqs
        while waiting and draft.budget > 0 and len(self._running) < max_num_seqs:
            request = waiting[0]
            come_in = self._reserve if request.needs_kv else self._start_prefill
            if not come_in(draft, request):
                return

    def _reserve(self, draft: StepDraft, request: Request) -> bool:
        """Reserve the blocks of the whole prompt, or return False and change nothing."""
        hits: list[int] = []
        if request.num_external_tokens:
            hits = self.kv.find_prefix(request.keys, request.num_prompt_tokens)
        if not self.kv.admit(request.request_id, hits, request.num_prompt_tokens):
            return False
        self._waiting.pop()
        request.state = RequestState.AWAITING_KV
        request.num_computed = len(hits) * self.kv.block_size
        draft.reserved.append(Reserved(request.request_id, request.num_computed))
        return True

    def _start_prefill(self, draft: StepDraft, request: Request) -> bool:
        """Compute the first chunk of what is not cached, or return False and change nothing."""
        hits = self.kv.find_prefix(request.keys, request.num_tokens)
        if not self.kv.fits(request.num_tokens, hits):
            return False
        self._waiting.pop()
        request.num_computed = len(hits) * self.kv.block_size
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed
        num_tokens = draft.next_tokens(request)
        is_admitted = self.kv.admit(request.request_id, hits, request.num_computed + num_tokens)
        assert is_admitted, "a request that fits whole fits in part"
        self._start_prompt(draft, request, num_tokens)
        return True

    def _start_prompt(self, draft: StepDraft, request: Request, num_tokens: int) -> None:
        """Schedule the first chunk of a prompt that has a table."""
        self._start_running(request, RequestState.PREFILLING, draft.now_ns)
        if request.goal is Goal.PREFILL:
            draft.started.append(PrefillStarted(request.request_id, request.num_computed))
        self._add_chunk(draft, request, num_tokens)

    # ------------------------------------------------------------------ planning ahead

    def _put_out(self, draft: StepDraft) -> StepPlan | None:
        """Put a step out and return what the executor is told, None if there is nothing to run."""
        batch = self._batch
        num_decodes, context_tokens = batch.size, batch.context_tokens
        joined: tuple[DecodeJoin, ...] = ()
        if draft.received:
            joined = tuple(
                [DecodeJoin(r.request_id, r.num_prompt_tokens - 1) for r in draft.received]
            )
            num_decodes += len(joined)
            context_tokens += sum([join.num_context_tokens for join in joined])
        chunks = tuple(draft.chunks)
        if not (num_decodes or chunks):
            return None
        plan = StepPlan(num_decodes, context_tokens, chunks, joined, self._take_left())
        may_repeat = not (chunks or draft.has_preempted)
        self._count_ahead(StepOut(plan, draft.received, draft.prompts, may_repeat=may_repeat))
        return plan

    def _take_left(self) -> tuple[int, ...]:
        """Return who left since the last plan, once."""
        if not self._left:
            return ()
        left, self._left = tuple(self._left), []
        return left

    def _count_ahead(self, out: StepOut) -> None:
        """Count the tokens of a step as there, so that the next one can be planned."""
        batch = self._batch
        batch.advance(1)
        if batch.next_limit_tick <= batch.tick:
            self._end_at_limit(out)
        for request in out.received:
            self._expect_token(request, out)
        for request, _ in out.prompts:
            if request.goal is not Goal.PREFILL:
                self._expect_token(request, out)
        out.batch_version = batch.version
        self._out.append(out)

    def _end_at_limit(self, out: StepOut) -> None:
        """Take the requests that reach their token limit out of the batch."""
        for request in self._batch.pop_at_limit():
            self._batch.leave(request)
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

        All of them have the same batch; those counted already are among them. Bounded by free
        blocks and token limits. Who got a first token by received KV wants to know after the first
        (``tell_first_tokens``).
        """
        (out,) = self._out
        batch = self._batch
        is_same = out.may_repeat and not out.ending and out.batch_version == batch.version
        if not is_same or not batch.size or self._partial is not None or self._cancelling:
            return out.num_iterations
        if self._has_news and self._may_let_in():
            return out.num_iterations
        num_iterations = batch.iterations_within(self.kv.pool.num_free)
        return out.num_iterations + min(num_iterations, batch.iterations_to_limit())

    def reserve_in_run(self, num_iterations: int, now_ns: int) -> tuple[Reserved, ...]:
        """Reserve blocks for received KV as the last of ``num_iterations`` iterations begins.

        What ``schedule`` would decide there, without ending the run; only where all that waits is
        of that kind, see ``may_only_reserve``.
        """
        assert self.may_only_reserve, "the batch may change"
        self.extend(num_iterations)
        budget = self._config.max_num_batched_tokens - self._batch.size
        draft = StepDraft(now_ns, budget, has_preempted=False)
        self._has_news = False
        self._admit_waiting(draft)
        return tuple(draft.reserved)

    def extend(self, num_iterations: int) -> None:
        """Count the oldest step that is out as one of ``num_iterations`` iterations in total."""
        out = self._out[0]
        more = num_iterations - out.num_iterations
        if not more:
            return
        batch = self._batch
        assert more > 0, "ran less than was counted"
        assert not out.received, "first tokens are told before the second ones are counted"
        may_run = out.may_repeat and not out.ending and more <= batch.iterations_to_limit()
        assert may_run, "ran more than was planned"
        out.num_iterations = num_iterations
        self.kv.append_blocks(batch.growing(0, more))
        batch.advance(more)
        if batch.next_limit_tick <= batch.tick:
            self._end_at_limit(out)
