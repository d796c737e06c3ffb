"""One worker of the simulated cluster: its control, its stand-in GPUs, and the step under way."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvfabric.protocol.step import StepPlan
from kvfabric.protocol.transfer import RankTransfer
from kvfabric.serving.scheduler import Scheduler
from kvfabric.sim.executor import SimExecutor


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """What the GPUs of a worker exchange over the fabric in one step.

    Attributes:
        overlapped: moves while the step computes.
        exposed: moves after that; the step ends when it has arrived.
    """

    overlapped: tuple[RankTransfer, ...]
    exposed: tuple[RankTransfer, ...]


TrafficOf = Callable[[StepPlan], StepTraffic]


@dataclass(slots=True, eq=False)
class SimWorker:
    """A worker and where it is in its step.

    Attributes:
        worker_id: its place among all of them.
        scheduler: its decisions.
        executor: its stand-in GPUs.
        traffic_of: what a step with prefill chunks exchanges; None for nothing.
        version: counts starts and cuts of steps; events of older ones are void.
        planned: the next step, planned ahead and not started.
        may_plan: the last iteration runs and the next step is not planned.
        look_after: iterations of the run under way after which its scheduler is looked at without
            ending it; 0 for none.
        is_looked_at: those iterations have just ended.
        is_computed: the step that runs waits only for bytes.
        awaited: transfers that the step that runs waits for.
        exposed: bytes still to be sent when those have arrived.
        is_lost: it died and is not back.
        lockstep: ids of the workers whose steps begin and end together with this one's, itself
            included; () for none.
    """

    worker_id: int
    scheduler: Scheduler
    executor: SimExecutor
    traffic_of: TrafficOf | None = None
    version: int = 0
    planned: StepPlan | None = None
    may_plan: bool = False
    look_after: int = 0
    is_looked_at: bool = False
    is_computed: bool = False
    awaited: set[int] = field(default_factory=set[int])
    exposed: tuple[RankTransfer, ...] = ()
    is_lost: bool = False
    lockstep: tuple[int, ...] = ()

    def reset(self) -> None:
        """Put an empty scheduler in the place of the one that died, and empty the executor."""
        self.scheduler = self.scheduler.empty_twin()
        self.executor.lose_all()
        self.version += 1
        self.planned = None
        self.may_plan = self.is_computed = self.is_looked_at = False
        self.look_after = 0
        self.awaited = set()
        self.exposed = ()
