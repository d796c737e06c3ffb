"""Stands in for the GPUs of one worker: knows how long steps take and when outputs really end."""

import heapq
from collections.abc import Mapping

from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepPlan, StepResult, StepShape


class SimExecutor:
    """Runs one plan at a time in virtual time.

    The only holder of the true output lengths (INV-9). It counts iterations in ticks, like the
    scheduler's decode batch, and keeps the tick at which each decoding request ends.
    """

    __slots__ = (
        "_end_tick",
        "_ends",
        "_max_iterations",
        "_model",
        "_num_begun",
        "_output_lengths",
        "_plan",
        "_produced",
        "_samples_first_token",
        "_start_ns",
        "_tick",
        "end_ns",
        "is_running",
        "num_iterations",
    )

    def __init__(
        self,
        model: StepTimeModel,
        output_lengths: Mapping[int, int],
        *,
        samples_first_token: bool,
        max_iterations: int = 1 << 62,
    ) -> None:
        """Make an idle executor.

        Args:
            model: step times.
            output_lengths: true output tokens by request id.
            samples_first_token: False for a prefill-only worker, which drops the token of a
                prompt's last chunk.
            max_iterations: most iterations per plan; 1 runs step by step, with the same results.
        """
        self._max_iterations = max_iterations
        self._model = model
        self._output_lengths = output_lengths
        self._samples_first_token = samples_first_token
        self._tick = 0
        self._produced: dict[int, int] = {}  # tokens produced, while not decoding
        self._end_tick: dict[int, int] = {}  # of decoding requests
        self._ends: list[tuple[int, int]] = []  # heap of (end tick, request id), some outdated
        self._plan: StepPlan | None = None
        self.is_running = False  # a plan has started and is not completed
        self._start_ns = 0
        self.end_ns = 0  # of the plan that runs
        self.num_iterations = 0
        self._num_begun = 0  # iterations of the plan that runs that nothing can prevent any more

    def lose_all(self) -> None:
        """Forget every request and the plan that runs: the GPUs died. What they ran is history."""
        self._produced.clear()
        self._end_tick.clear()
        self._ends.clear()
        self._plan = None
        self.is_running = False

    @property
    def plan(self) -> StepPlan:
        """Return the plan that runs."""
        assert self._plan is not None
        return self._plan

    @property
    def start_ns(self) -> int:
        """Return when the plan that runs began."""
        return self._start_ns

    @property
    def num_completed(self) -> int:
        """Return the iterations that have run and are completed, over all plans."""
        return self._tick

    def forget(self, request_id: int) -> None:
        """Forget what a request produced here: it is added anew, from its prompt on."""
        self._end_tick.pop(request_id, None)
        self._produced.pop(request_id, None)

    def start(self, plan: StepPlan, now_ns: int, max_iterations: int = 1) -> None:
        """Begin a plan, of which up to ``max_iterations`` iterations may run."""
        assert self._plan is None
        self._plan, self._start_ns, self.is_running = plan, now_ns, True
        self._num_begun = 1
        for request_id in plan.left:
            self._leave(request_id)
        for join in plan.joined:
            self._join(join.request_id, self._tick)
        if plan.prefill:
            chunks = [(chunk.num_tokens, chunk.num_history_tokens) for chunk in plan.prefill]
            shape = StepShape(plan.num_decodes, plan.context_tokens, tuple(chunks))
            self.num_iterations = 1
            self.end_ns = now_ns + self._model.mixed_step_ns(shape)
            return
        self.num_iterations = min(max_iterations, self._iterations_to_end(), self._max_iterations)
        self.end_ns = self.end_of(self.num_iterations)

    @property
    def last_iteration_ns(self) -> int:
        """Return when the last iteration of the plan that runs begins."""
        return self._start_ns if self.num_iterations == 1 else self.end_of(self.num_iterations - 1)

    def iteration_end_ns(self, now_ns: int) -> int:
        """Return when the iteration that is under way ends."""
        if self.num_iterations == 1:
            return self.end_ns
        return self.end_of(self.iterations_until(now_ns))

    def interrupt(self, now_ns: int, *, num_ahead: int = 0) -> bool:
        """End a run ``num_ahead`` iterations after the one under way; return whether that is new.

        One iteration ahead leaves the next step to be planned while that one runs.
        """
        return self.shorten(self.iterations_until(now_ns) + num_ahead)

    def iterations_until(self, now_ns: int) -> int:
        """Return how many iterations of the plan that runs are over when the present one is."""
        plan = self._plan
        assert plan is not None
        num_iterations = self._model.iterations_until(
            plan.num_decodes, plan.context_tokens, now_ns - self._start_ns, self.num_iterations
        )
        return max(num_iterations, self._num_begun)

    def go_on(self, num_done: int) -> None:
        """Begin the iteration after the first ``num_done``, which are over."""
        self._num_begun = num_done + 1

    def end_of(self, num_iterations: int) -> int:
        """Return when that many iterations of the plan that runs are over."""
        plan = self._plan
        assert plan is not None
        return self._start_ns + self._model.decode_run_ns(
            plan.num_decodes, plan.context_tokens, num_iterations
        )

    def shorten(self, num_iterations: int) -> bool:
        """End a run after at most so many iterations; return whether that is sooner."""
        if num_iterations >= self.num_iterations:
            return False
        self.num_iterations = num_iterations
        self.end_ns = self.end_of(num_iterations)
        return True

    def complete(self) -> StepResult:
        """Return what ran, with the requests that produced their last token."""
        plan, self._plan = self._plan, None
        self.is_running = False
        assert plan is not None
        num_iterations = self.num_iterations
        tick = self._tick = self._tick + num_iterations
        finished: list[int] = []
        if self._ends and self._ends[0][0] <= tick:
            finished = self._pop_ended()
        if plan.prefill and self._samples_first_token:
            for chunk in plan.prefill:
                if chunk.is_last:
                    finished += self._after_prompt(chunk.request_id)
        return StepResult(num_iterations, tuple(sorted(finished)) if finished else ())

    def _join(self, request_id: int, tick: int) -> None:
        """Let a request produce one token per iteration from ``tick`` on."""
        left = self._output_lengths[request_id] - self._produced.pop(request_id, 0)
        self._end_tick[request_id] = tick + left
        heapq.heappush(self._ends, (tick + left, request_id))

    def _leave(self, request_id: int) -> None:
        end_tick = self._end_tick.pop(request_id, None)
        if end_tick is not None:
            left = end_tick - self._tick
            self._produced[request_id] = self._output_lengths[request_id] - left

    def _after_prompt(self, request_id: int) -> list[int]:
        produced = self._produced.get(request_id, 0) + 1
        if produced >= self._output_lengths[request_id]:
            self._produced.pop(request_id, None)
            return [request_id]
        self._produced[request_id] = produced
        self._join(request_id, self._tick)
        return []

    def _iterations_to_end(self) -> int:
        """Return the iterations until the first output ends; 1 if none of the plan is left."""
        ends, end_tick = self._ends, self._end_tick
        while ends:
            tick, request_id = ends[0]
            if end_tick.get(request_id) == tick:
                return tick - self._tick
            heapq.heappop(ends)
        return 1

    def _pop_ended(self) -> list[int]:
        ended: list[int] = []
        ends = self._ends
        while ends and ends[0][0] <= self._tick:
            end_tick, request_id = heapq.heappop(ends)
            if self._end_tick.get(request_id) == end_tick:
                del self._end_tick[request_id]
                ended.append(request_id)
        return ended
