"""One design under the whole load, given up as soon as it is sure to miss the targets."""

from collections.abc import Callable
from dataclasses import dataclass

from kvfabric.fabric.graph import Topology
from kvfabric.metrics.latency import Slo, meets_slo
from kvfabric.metrics.summary import RunSummary, summarize
from kvfabric.plan.engines import Fleet
from kvfabric.plan.fleet import build_cluster
from kvfabric.plan.load_state import LoadState, judge_load
from kvfabric.plan.request import PlanRequest
from kvfabric.protocol.ports import Network
from kvfabric.sim.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run told.

    Attributes:
        num_ended: requests that had ended when it was given up; all of them otherwise.
        num_missed: of those, the ones that missed the targets.
        summary: figures of the whole load; None when it was given up.
        load: whether the fleet kept up; None when it was given up.
        busiest_link: name and utilization of the busiest link; None without a fabric.
        log_digest: of everything that happened, for comparing runs; empty when given up.
    """

    num_ended: int
    num_missed: int
    summary: RunSummary | None = None
    load: LoadState | None = None
    busiest_link: tuple[str, float] | None = None
    log_digest: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether the whole load was run."""
        return self.summary is not None


class _GivenUpError(Exception):
    """More requests have missed the targets than may."""


class _Watch:
    """Counts requests that missed the targets while a run goes on."""

    def __init__(
        self, simulation: Simulation, slo: Slo, most_missed: int | None, tell: Callable[[int], None]
    ) -> None:
        self._simulation = simulation
        self._slo = slo
        self._most = most_missed
        self._tell = tell
        self.num_ended = 0
        self.num_missed = 0

    def __call__(self, num_ended: int) -> None:
        """Look at the requests that have ended since the last call."""
        records = self._simulation.ended_records
        for record in records[self.num_ended : num_ended]:
            self.num_missed += not meets_slo(record, self._slo)
        self.num_ended = num_ended
        self._tell(num_ended)
        if self._most is not None and self.num_missed > self._most:
            raise _GivenUpError


def run_design(
    request: PlanRequest,
    fleet: Fleet,
    network: Network,
    tell: Callable[[int], None],
    *,
    most_missed: int | None,
    slo: Slo | None = None,
    topology: Topology | None = None,
) -> Outcome:
    """Return what a design did with the load.

    Args:
        request: its workers and the load.
        fleet: the same, built.
        network: moves its hand-offs.
        tell: called with the number of requests that have ended.
        most_missed: give up when more have missed the targets; None: never.
        slo: the targets; by default those of the request.
        topology: of the network, for receivers that are chosen by it.
    """
    targets = slo or request.slo
    is_apart = request.workers.num_decode > 0
    cluster = build_cluster(request, fleet, network, is_disaggregated=is_apart, topology=topology)
    watch = _Watch(cluster.simulation, targets, most_missed, tell)
    try:
        result = cluster.simulation.run(watch)
    except _GivenUpError:
        return Outcome(num_ended=watch.num_ended, num_missed=watch.num_missed)
    decode_first = request.decode_first
    records = result.records
    summary = summarize(records, request.workers.num_gpus, targets, decode_first=decode_first)
    num_missed = sum(not meets_slo(record, targets) for record in records)
    return Outcome(
        num_ended=len(records),
        num_missed=num_missed,
        summary=summary,
        load=judge_load(records, num_users=request.workload.num_users, decode_first=decode_first),
        busiest_link=_busiest(network, summary.window_ns),
        log_digest=result.log_digest,
    )


def _busiest(network: Network, window_ns: int) -> tuple[str, float] | None:
    busiest_links = getattr(network, "busiest_links", None)
    links = [] if busiest_links is None else busiest_links(window_ns, count=1)
    return (links[0].name, links[0].utilization) if links else None
