"""The ports of the control core. Implementations live in perf, fabric, sim and engine."""

from collections.abc import Sequence
from typing import Protocol

from kvfabric.protocol.provenance import Source
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.transfer import TransferPlan


class StepTimeModel(Protocol):
    """How long steps take on one worker. Pure; integer ns.

    Models from formulas are never shorter when given more work; measured ones follow what was
    measured.
    """

    @property
    def source(self) -> Source:
        """Return where the numbers come from."""
        ...

    def mixed_step_ns(self, shape: StepShape) -> int:
        """Return the duration of one step."""
        ...

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        """Return the duration of consecutive decode iterations.

        Equals the sum of ``mixed_step_ns`` over the iterations exactly, so that cutting a run never
        changes a result.
        """
        ...

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        """Return the least j in [1, max_iterations] with ``decode_run_ns(j) >= elapsed_ns``.

        Returns ``max_iterations`` when even that many are done sooner.
        """
        ...


class Network(Protocol):
    """Moves transfers; time only advances when told to."""

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        """Begin to move a transfer at ``now_ns`` (never before the last instant advanced to)."""
        ...

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """Drop what is left of a transfer."""
        ...

    def next_completion_ns(self) -> int | None:
        """Return the instant of the next completion if nothing else happens, or None when idle."""
        ...

    def advance(self, now_ns: int) -> Sequence[int]:
        """Return the ids of transfers completed at or before ``now_ns``, in order of completion."""
        ...
