"""A step that is planned and not completed: what becomes of requests when it ends."""

from collections.abc import Sequence

from kvfabric.protocol.step import StepPlan
from kvfabric.serving.request import Request


class StepOut:
    """A plan with what the scheduler must remember of it.

    Attributes:
        plan: as given to the executor.
        may_repeat: whether further iterations may follow without planning: a step without prefill
            after which admission was not skipped.
        received: requests that decode their first token from received KV, in order; emptied when
            that is told before the step ends.
        prompts: requests whose last chunk it computes, in order, and whether for the first time.
        ending: requests that reach their token limit in its last iteration, by id.
        batch_version: version of the decode batch right after planning; while it stands, the next
            step has the same batch.
        num_iterations: iterations planned so far.
    """

    __slots__ = (
        "batch_version",
        "ending",
        "may_repeat",
        "num_iterations",
        "plan",
        "prompts",
        "received",
    )

    def __init__(
        self,
        plan: StepPlan,
        received: Sequence[Request] = (),
        prompts: Sequence[tuple[Request, bool]] = (),
        *,
        may_repeat: bool,
    ) -> None:
        """Make a step of one iteration that nobody ends in."""
        self.plan = plan
        self.may_repeat = may_repeat
        self.received = received
        self.prompts = prompts
        self.ending: list[Request] = []
        self.batch_version = 0
        self.num_iterations = 1
