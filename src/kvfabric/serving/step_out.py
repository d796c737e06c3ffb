"""A step that is planned and not completed: what becomes of requests when it ends."""

from dataclasses import dataclass, field

from kvfabric.protocol.step import StepPlan
from kvfabric.serving.request import Request


@dataclass(slots=True, eq=False)
class StepOut:
    """A plan with what the scheduler must remember of it.

    Attributes:
        plan: as given to the executor.
        batch_version: version of the decode batch right after planning; while it stands, the next
            step has the same batch.
        may_repeat: whether further iterations may follow without planning: a plain decode step
            after which admission was not skipped.
        num_iterations: iterations planned so far.
        received: requests that decode their first token from received KV, in order.
        prompts: requests whose last chunk it computes, in order, and whether for the first time.
        ending: requests that reach their token limit in its last iteration, by id.
    """

    plan: StepPlan
    batch_version: int
    may_repeat: bool
    num_iterations: int = 1
    received: list[Request] = field(default_factory=list[Request])
    prompts: list[tuple[Request, bool]] = field(default_factory=list[tuple[Request, bool]])
    ending: list[Request] = field(default_factory=list[Request])
