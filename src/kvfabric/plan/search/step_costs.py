"""The least time that a request takes of a worker, alone and beside others.

"Alone" is a step with nothing else in it. "Beside others" is what the request adds to a step so
large that everything in it is bound by computing: no step can hold it for less. Both hold for the
roofline, whose steps are sums of parts that grow with the work and one maximum; see
``perf.roofline``. Measured step times promise neither.
"""

from typing import Final

from kvfabric.perf.roofline import RooflineModel
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepShape

_LARGE: Final = 1 << 20


class StepCosts:
    """Lower bounds from one worker's step times; ns."""

    def __init__(self, model: RooflineModel, smallest_window: int | None) -> None:
        """Take the step times, and the smallest attention window of the model, if it has any."""
        self._model = model
        self._window = smallest_window
        self._large_prefill_ns = model.mixed_step_ns(StepShape(0, 0, ((_LARGE, 0),)))
        self._large_decode_ns = model.mixed_step_ns(StepShape(_LARGE, 0))
        self._alone: dict[tuple[int, int], int] = {}
        self._beside: dict[tuple[int, int], int] = {}
        self._decode: dict[tuple[int, int], tuple[int, int]] = {}

    def prefill_alone_ns(self, num_tokens: int, num_cached: int) -> int:
        """Return the time of a prompt behind its cached part, with nothing else to do."""
        key = (num_tokens - num_cached, num_cached)
        if key not in self._alone:
            self._alone[key] = self._model.mixed_step_ns(StepShape(0, 0, (key,)))
        return self._alone[key]

    def prefill_beside_ns(self, num_tokens: int, num_cached: int) -> int:
        """Return what a prompt adds to whatever steps it is computed in."""
        key = (num_tokens - num_cached, num_cached)
        if key not in self._beside:
            both = StepShape(0, 0, ((_LARGE, 0), key))
            self._beside[key] = self._model.mixed_step_ns(both) - self._large_prefill_ns - 1
        return max(0, self._beside[key])

    def first_step_ns(self, num_tokens: int) -> int:
        """Return one decode step of a context with nothing else to do."""
        return self._model.mixed_step_ns(StepShape(1, num_tokens))

    def decode_alone_ns(self, num_tokens: int, num_steps: int) -> int:
        """Return the time of so many decode steps from a context on, with nothing else to do."""
        return self._decode_of(num_tokens, num_steps)[0]

    def decode_beside_ns(self, num_tokens: int, num_steps: int) -> int:
        """Return what so many decode steps from a context on add to those they are part of."""
        return self._decode_of(num_tokens, num_steps)[1]

    def _decode_of(self, num_tokens: int, num_steps: int) -> tuple[int, int]:
        key = (num_tokens, num_steps)
        if key not in self._decode:
            alone = self._model.decode_run_ns(1, num_tokens, num_steps)
            context = num_tokens if self._window is None else min(num_tokens, self._window)
            step = self._model.mixed_step_ns(StepShape(_LARGE + 1, context))
            self._decode[key] = (alone, num_steps * max(0, step - self._large_decode_ns - 1))
        return self._decode[key]


def step_costs(model: StepTimeModel, smallest_window: int | None) -> StepCosts | None:
    """Return the bounds of a model, or None where its step times promise none."""
    return StepCosts(model, smallest_window) if isinstance(model, RooflineModel) else None
