"""A worker of a running cluster, as its control process sees it."""

from dataclasses import dataclass, field

from kvfabric.engine.generated_keys import GeneratedKeys
from kvfabric.engine.step_builder import StepBuilder
from kvfabric.protocol.step import StepPlan
from kvfabric.serving.scheduler import Scheduler


@dataclass(slots=True, eq=False)
class LiveWorker:
    """Its decisions, and where it is in its step.

    Attributes:
        scheduler: its decisions.
        builder: what its executor knows.
        address: where other workers send KV blocks to.
        plan: the step that runs, if one does.
        start_ns: when that was planned.
        layers_ns: when its layer groups were computed, as far as they are.
        spoiled: blocks that it should have written and did not.
        keys: of requests that generate here, for later ones to find what they generated.
        to_read: requests sent to it while a step runs.
        is_lost: it died and is not back.
    """

    worker_id: int
    scheduler: Scheduler
    builder: StepBuilder = field(default_factory=StepBuilder)
    address: str = ""
    plan: StepPlan | None = None
    start_ns: int = 0
    layers_ns: list[int] = field(default_factory=list[int])
    spoiled: list[int] = field(default_factory=list[int])
    keys: dict[int, GeneratedKeys] = field(default_factory=dict[int, GeneratedKeys])
    to_read: list[int] = field(default_factory=list[int])
    is_lost: bool = False

    def forget(self, request_id: int) -> None:
        """Let the executor forget a request that is over here."""
        self.builder.drop(request_id)
        self.keys.pop(request_id, None)

    def reset(self) -> None:
        """Put an empty scheduler in the place of the one of a worker that died."""
        self.scheduler = self.scheduler.empty_twin()
        self.builder = StepBuilder()
        self.plan = None
        self.to_read.clear()
        self.layers_ns.clear()
        self.spoiled.clear()
        self.keys.clear()
