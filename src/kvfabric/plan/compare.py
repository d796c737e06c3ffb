"""Runs one load over every design of a plan and puts parts, price and latencies side by side."""

from collections.abc import Callable
from dataclasses import dataclass

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.load_balancing import make_load_balancer
from kvfabric.fabric.measures import topology_report
from kvfabric.fabric.network import FabricNetwork, LinkLoad
from kvfabric.metrics.summary import RunSummary, summarize
from kvfabric.perf.handoff import ROCE_FRAME_BYTES, ROCE_PAYLOAD_BYTES
from kvfabric.plan.bom import BillOfMaterials, bill_of_materials
from kvfabric.plan.fleet import Fleet, build_fleet, build_simulation
from kvfabric.plan.load_state import LoadState, judge_load
from kvfabric.plan.request import FabricChoice, PlanRequest, check_plan_request
from kvfabric.protocol.transfer import TransferPlan
from kvfabric.sim.simulation import RunResult

ReportProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFacts:
    """A fabric as built: counts from its graph, parts and price; ``label`` is unique in a plan."""

    label: str
    topology: Topology
    report: dict[str, object]
    bom: BillOfMaterials


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignResult:
    """One design and what its users got.

    Attributes:
        name: for tables, such as ``zcube assigned``.
        fabric: None for the aggregated fleet, which sends no KV cache.
        load_balancing: policy with its parameters, or None.
        summary: latencies, throughput, outcomes.
        load: whether the fleet kept up.
        busiest_links: channels by utilization over the run, busiest first.
        num_flows: network flows that were moved.
        num_events: events of the simulation.
        log_digest: digest of everything that happened, for comparing runs.
    """

    name: str
    fabric: FabricFacts | None
    load_balancing: str | None
    summary: RunSummary
    load: LoadState
    busiest_links: tuple[LinkLoad, ...]
    num_flows: int
    num_events: int
    log_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All designs of a plan; ``aggregated`` is the same fleet without hand-offs, if asked for."""

    request: PlanRequest
    fleet: Fleet
    designs: tuple[DesignResult, ...]
    aggregated: DesignResult | None


class _NoNetwork:
    """The network of a fleet that moves nothing."""

    def start(self, transfer: TransferPlan, now_ns: int) -> None:
        raise AssertionError((transfer, now_ns))

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        raise AssertionError((transfer_id, now_ns))

    def next_completion_ns(self) -> int | None:
        return None

    def advance(self, now_ns: int) -> tuple[int, ...]:
        del now_ns
        return ()


def compare(request: PlanRequest, on_progress: ReportProgress | None = None) -> Comparison:
    """Return the results of every design, in the order asked.

    Everything is checked and every fabric is built before the first run starts.

    Args:
        request: the plan.
        on_progress: called with the design's name, requests ended, and requests in all.

    Raises:
        ConfigError: the fleet or a fabric cannot be built as asked.
        CapacityError: a worker cannot hold the model.
    """
    check_plan_request(request)
    fleet = build_fleet(request)
    fabrics = [_build_fabric(request, kind) for kind in request.network.fabrics]
    _check_labels(fabrics)
    report = on_progress or (lambda _name, _done, _total: None)
    designs = tuple(
        _run_on_fabric(request, fleet, fabric, policy, report)
        for fabric in fabrics
        for policy in request.network.load_balancing
    )
    aggregated = _run_aggregated(request, fleet, report) if request.compare_aggregated else None
    return Comparison(request=request, fleet=fleet, designs=designs, aggregated=aggregated)


def _build_fabric(request: PlanRequest, kind: FabricChoice) -> FabricFacts:
    network = request.network
    topology = build_topology(
        kind.kind,
        request.workers.num_gpus,
        nic_rate_bps=network.nic_rate_bps,
        radix=kind.radix,
        switch_capacity_bps=network.switch_capacity_bps,
        num_tiers=kind.num_tiers,
        oversubscription=kind.oversubscription,
    )
    return FabricFacts(
        label=kind.label or kind.kind,
        topology=topology,
        report=topology_report(topology),
        bom=bill_of_materials(topology, PRICE_BOOK),
    )


def _check_labels(fabrics: list[FabricFacts]) -> None:
    labels = [fabric.label for fabric in fabrics]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(
                f"two fabrics are called {label!r}",
                where="fabric.kinds",
                hint="Give each its own label",
            )


def _run_on_fabric(
    request: PlanRequest, fleet: Fleet, fabric: FabricFacts, policy: str, report: ReportProgress
) -> DesignResult:
    balancer = make_load_balancer(
        policy, fabric.topology, queue_pairs=request.network.queue_pairs, seed=request.seed
    )
    network = FabricNetwork(
        balancer, payload_bytes=ROCE_PAYLOAD_BYTES, frame_bytes=ROCE_FRAME_BYTES
    )
    name = f"{fabric.label} {balancer.name}"
    simulation = build_simulation(request, fleet, network, is_disaggregated=True)
    result = simulation.run(_progress_of(name, request, report))
    summary = summarize(result.records, request.workers.num_gpus, request.slo)
    return DesignResult(
        name=name,
        fabric=fabric,
        load_balancing=balancer.name,
        summary=summary,
        load=judge_load(result.records),
        busiest_links=tuple(network.busiest_links(summary.window_ns, count=5)),
        num_flows=network.num_flows,
        num_events=result.num_events,
        log_digest=result.log_digest,
    )


def _run_aggregated(request: PlanRequest, fleet: Fleet, report: ReportProgress) -> DesignResult:
    simulation = build_simulation(request, fleet, _NoNetwork(), is_disaggregated=False)
    result: RunResult = simulation.run(_progress_of("aggregated", request, report))
    return DesignResult(
        name="aggregated",
        fabric=None,
        load_balancing=None,
        summary=summarize(result.records, request.workers.num_gpus, request.slo),
        load=judge_load(result.records),
        busiest_links=(),
        num_flows=0,
        num_events=result.num_events,
        log_digest=result.log_digest,
    )


def _progress_of(name: str, request: PlanRequest, report: ReportProgress) -> Callable[[int], None]:
    total = len(request.workload.requests)
    return lambda done: report(name, done, total)
