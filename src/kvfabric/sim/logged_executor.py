"""A simulated executor that counts what it ran.

It stands beside the class that it extends: where the core is compiled, nothing outside can.
"""

from collections.abc import Mapping

from kvfabric.metrics.percentiles import rounded_div
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepResult
from kvfabric.sim.executor import SimExecutor
from kvfabric.units import ceil_div

_PIECES = 8  # of a run of decode iterations, whose duration grows slowly


class LoggedExecutor(SimExecutor):
    """An executor that counts what it ran.

    Attributes:
        busy_ns: time in steps.
        num_steps: steps, each decode iteration counted.
        num_prefill_tokens: prompt tokens computed, those computed again included.
        gaps: decode tokens by the duration of the step that gave them, in ns.
    """

    __slots__ = ("_times", "busy_ns", "gaps", "num_prefill_tokens", "num_steps")

    def __init__(
        self, model: StepTimeModel, lengths: Mapping[int, int], samples_first_token: bool
    ) -> None:
        """Make an idle executor with an empty log."""
        super().__init__(model, lengths, samples_first_token=samples_first_token)
        self._times = model
        self.busy_ns = self.num_steps = self.num_prefill_tokens = 0
        self.gaps: dict[int, int] = {}

    def complete(self) -> StepResult:
        """Return what ran, and count it."""
        plan, num_iterations = self.plan, self.num_iterations
        duration_ns = self.end_ns - self.start_ns
        self.busy_ns += duration_ns
        self.num_steps += num_iterations
        self.num_prefill_tokens += sum(chunk.num_tokens for chunk in plan.prefill)
        if num_iterations == 1:
            self._add_gap(duration_ns, plan.num_decodes)
        else:
            self._add_run(plan.num_decodes, plan.context_tokens, num_iterations)
        return super().complete()

    def _add_run(self, num_decodes: int, context_tokens: int, num_iterations: int) -> None:
        """Count a run of iterations in a few pieces of equal steps, to keep long runs cheap."""
        size, before_ns, done = ceil_div(num_iterations, _PIECES), 0, 0
        while done < num_iterations:
            num = min(size, num_iterations - done)
            done += num
            after_ns = self._times.decode_run_ns(num_decodes, context_tokens, done)
            self._add_gap(rounded_div(after_ns - before_ns, num), num * num_decodes)
            before_ns = after_ns

    def _add_gap(self, duration_ns: int, num_tokens: int) -> None:
        if num_tokens:
            self.gaps[duration_ns] = self.gaps.get(duration_ns, 0) + num_tokens
