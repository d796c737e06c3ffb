"""One worker's scheduler: vLLM V1's rules as a state machine that a driver calls.

``schedule`` plans a step and counts its tokens as there; ``complete`` ends the oldest step that is
out. A driver that alternates the two schedules synchronously. One that plans step m + 1 while m
runs schedules asynchronously, as vLLM does by default; the rules here are the same. ``handle`` may
be called at any time.

It comes in three layers, each with its rules: ``scheduler_state`` (who is where, preemption),
``step_planning`` (who runs next: ``schedule``), and this one: commands, reports, results of steps.

Rule here (vLLM V1, 0.19): a request that ends before its token limit may be in the next step
already, whose token for it is dropped.
"""

from kvfabric.protocol.step import StepResult
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
from kvfabric.serving.request import Goal, Request, RequestState
from kvfabric.serving.step_out import StepOut
from kvfabric.serving.step_planning import MAX_STEPS_OUT, NO_STEP, Decision, StepPlanning

__all__ = ["MAX_STEPS_OUT", "NO_STEP", "Decision", "Scheduler"]


class Scheduler(StepPlanning):
    """Decides for one worker: commands in, plans out, results in, events out.

    Its invariants stand in ``SchedulerState``.
    """

    __slots__ = ()

    def empty_twin(self) -> "Scheduler":
        """Return an idle scheduler of the same settings, in the place of one that died."""
        return Scheduler(self._config)

    # ------------------------------------------------------------------ reports

    def next_deadline_ns(self) -> int | None:
        """Return None: a worker has no deadlines of its own."""
        return None

    def signal(self, now_ns: int) -> WorkerSignal:
        """Return what the worker reports to the router; the same object while nothing changes."""
        num_queued_tokens = self._waiting.num_tokens
        if self._partial is not None:
            num_queued_tokens += self._partial.num_tokens - self._partial.num_computed
        last = self._signal
        if (
            last.num_queued_tokens != num_queued_tokens
            or last.num_requests != len(self._requests)
            or last.num_prompt_tokens != self._num_prompt_tokens
        ):
            self._signal = last = WorkerSignal(
                now_ns, num_queued_tokens, len(self._requests), self._num_prompt_tokens
            )
        return last

    def should_interrupt(self) -> bool:
        """Return whether a run of decode iterations should make room for planning.

        True when something that arrived meanwhile may change the next step. Planning sooner never
        changes a decision, it only costs another call.
        """
        return bool(self._cancelling) or self._may_let_in()

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

    def _kv_arrived(self, request_id: int) -> None:
        request = self._requests[request_id]
        assert request.state is RequestState.AWAITING_KV, "KV arrived for a request without blocks"
        request.state = RequestState.LOADED
        self._loaded.append(request)
        self._has_news = True

    def _release_held(self, request_id: int) -> None:
        request = self._requests[request_id]
        assert request.state is RequestState.HELD, "released a request that holds nothing"
        self._drop(request)

    def _cancel(self, request_id: int) -> list[WorkerEvent]:
        request = self._requests.get(request_id)
        if request is None or request_id in self._cancelling:
            return []
        if request_id in self._running and self._out:
            self._cancelling[request_id] = len(self._out)  # a step uses its blocks
            return []
        self._remove(request)
        return [Cancelled(request_id)]

    # ------------------------------------------------------------------ applying a step

    def tell_first_tokens(self) -> list[WorkerEvent]:
        """Return who has a first token from received KV after one iteration of a run that goes on.

        ``complete`` says the same of steps that are over.
        """
        out = self._out[0]
        received, out.received = out.received, ()
        return [FirstToken(r.request_id) for r in received if r.state is not RequestState.GONE]

    def complete(self, result: StepResult, now_ns: int) -> list[WorkerEvent]:
        """Apply what the oldest step did; return what became of requests, in a fixed order."""
        del now_ns
        assert self._out, "completed a step that was not planned"
        out = self._out[0]
        if result.num_iterations != out.num_iterations:
            self.extend(result.num_iterations)
        self._out.popleft()
        events: list[WorkerEvent] = []
        done = set(result.finished)
        for request in out.ending:
            done.add(request.request_id)
        if out.received or out.prompts:
            self._complete_mixed(out, done, events)
        elif done:
            for request_id in sorted(done):
                self._finish(request_id, out, events)
        if self._cancelling:
            events.extend(self._end_cancelling())
        return events

    def _complete_mixed(self, out: StepOut, done: set[int], events: list[WorkerEvent]) -> None:
        """Apply a step that gave some requests their first token, or one after a preemption."""
        if done:
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
        if request.num_received_tokens:
            self._remember_received(request)
        if is_new:
            events.append(Prefilled(request.request_id, started_ns, request.num_cached_tokens))
        if request.goal is Goal.PREFILL and request.state is RequestState.PREFILLING:
            del self._running[request.request_id]
            request.state = RequestState.HELD

    def _remember_received(self, request: Request) -> None:
        """Make a received prefix findable: a step that needs it has ended, so it is all there.

        Not if the request was cancelled while the step ran: the bytes may have been stopped.
        """
        if request.request_id in self.kv.tables and request.request_id not in self._cancelling:
            self._remember_known(request, 0, request.num_received_tokens)
        request.num_received_tokens = 0

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

    def _end_cancelling(self) -> list[WorkerEvent]:
        """Remove the cancelled requests whose last step is over."""
        gone: list[WorkerEvent] = []
        for request_id, num_steps in list(self._cancelling.items()):
            request = self._requests.get(request_id)
            if request is not None and num_steps > 1:
                self._cancelling[request_id] = num_steps - 1
                continue
            del self._cancelling[request_id]
            if request is not None:
                self._remove(request)
                gone.append(Cancelled(request_id))
        return gone
