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
        "_output_lengths",
        "_plan",
        "_produced",
        "_samples_first_token",
        "_start_ns",
        "_tick",
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
        self._start_ns = 0
        self.num_iterations = 0

    def start(self, plan: StepPlan, now_ns: int) -> int:
        """Begin a plan and return the instant it ends if nothing interrupts it."""
        assert self._plan is None
        self._plan, self._start_ns = plan, now_ns
        for request_id in plan.left:
            self._leave(request_id)
        for join in plan.joined:
            self._join(join.request_id, self._tick)
        if plan.prefill:
            shape = StepShape(
                plan.num_decodes,
                plan.context_tokens,
                tuple((chunk.num_tokens, chunk.num_history_tokens) for chunk in plan.prefill),
            )
            self.num_iterations = 1
            return now_ns + self._model.mixed_step_ns(shape)
        self.num_iterations = min(
            plan.max_iterations, self._iterations_to_end(), self._max_iterations
        )
        return now_ns + self._duration_ns(plan, self.num_iterations)

    def interrupt(self, now_ns: int) -> int:
        """End a run after the iteration that is under way at ``now_ns``; return when that is."""
        plan = self._plan
        assert plan is not None
        elapsed_ns = now_ns - self._start_ns
        self.num_iterations = self._model.iterations_until(
            plan.num_decodes, plan.context_tokens, max(elapsed_ns, 1), self.num_iterations
        )
        return self._start_ns + self._duration_ns(plan, self.num_iterations)

    def complete(self) -> StepResult:
        """Return what ran, with the requests that produced their last token."""
        plan, self._plan = self._plan, None
        assert plan is not None
        self._tick += self.num_iterations
        finished = self._pop_ended()
        for chunk in plan.prefill:
            if chunk.is_last and self._samples_first_token:
                finished += self._after_prompt(chunk.request_id)
        return StepResult(self.num_iterations, tuple(sorted(finished)))

    def _duration_ns(self, plan: StepPlan, num_iterations: int) -> int:
        return self._model.decode_run_ns(plan.num_decodes, plan.context_tokens, num_iterations)

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
        ends = self._ends
        while self._end_tick.get(ends[0][1]) != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self._tick

    def _pop_ended(self) -> list[int]:
        ended: list[int] = []
        ends = self._ends
        while ends and ends[0][0] <= self._tick:
            end_tick, request_id = heapq.heappop(ends)
            if self._end_tick.get(request_id) == end_tick:
                del self._end_tick[request_id]
                ended.append(request_id)
        return ended
