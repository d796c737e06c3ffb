"""Runs one load over every design of a plan and puts parts, price and latencies side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.deadlocks.deadlock import DeadlockReport, deadlock_report
from kvfabric.fabric.engines.choice import check_engine_takes, make_engine
from kvfabric.fabric.failures import Failures, parse_failures, without
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.measures import topology_report
from kvfabric.fabric.networks.engine_network import EngineNetwork
from kvfabric.fabric.networks.link_loads import ChannelLoads
from kvfabric.fabric.networks.network import FabricNetwork, LinkLoad
from kvfabric.fabric.networks.pressure_report import PressureReport
from kvfabric.fabric.routes.load_balancing import LoadBalancer, make_load_balancer
from kvfabric.metrics.latency import ttft_ns
from kvfabric.metrics.percentiles import nearest_rank
from kvfabric.metrics.summary import RunSummary, summarize
from kvfabric.perf.handoff import ROCE_FRAME_BYTES, ROCE_PAYLOAD_BYTES
from kvfabric.plan.bom import BillOfMaterials, bill_of_materials
from kvfabric.plan.fleet import Cluster, Fleet, build_cluster, build_fleet
from kvfabric.plan.load_state import LoadState, judge_load
from kvfabric.plan.parallel import run_all
from kvfabric.plan.request import (
    FabricChoice,
    NetworkRequest,
    PlanRequest,
    check_plan_request,
)
from kvfabric.plan.unrouted import MeasuredNetwork, NoNetwork
from kvfabric.plan.wiring import cables_by_rule
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.serving.kv_pool import PoolCounts
from kvfabric.sim.simulation import RunResult

TTFT_PERCENTS = tuple(range(101))
"""0 stands for the smallest; the others are nearest-rank percentiles."""

ReportProgress = Callable[[str, int, int], None]
AnyNetwork = FabricNetwork | EngineNetwork | MeasuredNetwork | NoNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFacts:
    """A fabric as built: counts from its graph, parts and price.

    Attributes:
        label: unique in a plan.
        topology: what the failures leave of it.
        report: counts of that.
        bom: parts and price of all of it.
        whole: the fabric before anything failed; None: nothing has.
        failures: what has failed of ``whole``; None: nothing has.
    """

    label: str
    topology: Topology
    report: dict[str, object]
    bom: BillOfMaterials
    whole: Topology | None = None
    failures: Failures | None = None


@dataclass(frozen=True, slots=True)
class Design:
    """A fabric with a policy, or the aggregated fleet, which sends no KV cache.

    The network is built before any run, so that forked processes inherit its compiled kernels.
    """

    name: str
    fabric: FabricFacts | None
    load_balancing: str | None
    network: AnyNetwork
    deadlock: DeadlockReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignRun:
    """What one run gave.

    Attributes:
        summary: latencies, throughput, outcomes.
        load: whether the fleet kept up.
        busiest_links: channels by utilization over the run, busiest first.
        num_flows: network flows that were moved.
        num_events: events of the simulation.
        log_digest: digest of everything that happened, for comparing runs.
        num_restarts: times a request started anew because its worker died.
        pool: where prompt tokens were found; None without a KV pool.
        pressure: pauses, victims and queues; None where the engine knows none.
        ttft_quantiles_ns: TTFT of finished requests at ``TTFT_PERCENTS``, nearest rank; empty when
            nothing finished.
        channels: the loads of every channel of the topology; None without a fabric.
    """

    summary: RunSummary
    load: LoadState
    busiest_links: tuple[LinkLoad, ...]
    num_flows: int
    num_events: int
    log_digest: str
    num_restarts: int = 0
    pool: PoolCounts | None = None
    pressure: PressureReport | None = None
    ttft_quantiles_ns: tuple[int, ...] = ()
    channels: ChannelLoads | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignResult:
    """One design and what its users got.

    Attributes:
        name: for tables, such as ``zcube assigned``.
        fabric: None for the aggregated fleet.
        load_balancing: policy with its parameters, or None.
        run: the figures of its run.
        deadlock: the verdict on the paths it may use; None without a fabric.
    """

    name: str
    fabric: FabricFacts | None
    load_balancing: str | None
    run: DesignRun
    deadlock: DeadlockReport | None = None

    @property
    def summary(self) -> RunSummary:
        """Return latencies, throughput and outcomes."""
        return self.run.summary

    @property
    def load(self) -> LoadState:
        """Return whether the fleet kept up."""
        return self.run.load


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All designs of a plan; ``aggregated`` is the same fleet without hand-offs, if asked for."""

    request: PlanRequest
    fleet: Fleet
    designs: tuple[DesignResult, ...]
    aggregated: DesignResult | None

    @property
    def can_deadlock(self) -> bool:
        """Return whether priority flow control could lock one of the fabrics up."""
        return any(d.deadlock is not None and d.deadlock.can_deadlock for d in self.designs)


def compare(
    request: PlanRequest, on_progress: ReportProgress | None = None, *, num_processes: int = 1
) -> Comparison:
    """Return the results of every design, in the order asked.

    Everything is checked and every fabric is built before the first run starts.

    Args:
        request: the plan.
        on_progress: called with the design's name, requests ended, and requests in all.
        num_processes: designs simulated at once; the results do not depend on it.

    Raises:
        ConfigError: the fleet or a fabric cannot be built as asked.
        CapacityError: a worker cannot hold the model.
    """
    check_plan_request(request)
    fleet = build_fleet(request)
    fabrics = [build_fabric(request, kind) for kind in request.network.fabrics]
    _check_labels(fabrics)
    designs = [
        design_on(request, fabric, policy)
        for fabric in fabrics
        for policy in request.network.load_balancing
    ]
    if request.compare_aggregated:
        designs.append(Design("aggregated", None, None, NoNetwork()))
    results = _run_designs(request, fleet, designs, on_progress, num_processes)
    return Comparison(
        request=request,
        fleet=fleet,
        designs=tuple(result for result in results if result.fabric is not None),
        aggregated=next((result for result in results if result.fabric is None), None),
    )


def design_on(request: PlanRequest, fabric: FabricFacts, policy: str) -> Design:
    """Return a fabric with a policy, its network ready to run."""
    balancer = make_load_balancer(
        policy, fabric.topology, queue_pairs=request.network.queue_pairs, seed=request.seed
    )
    return Design(
        f"{fabric.label} {balancer.name}",
        fabric,
        balancer.name,
        _network(request.network, balancer),
        deadlock_report(fabric.topology, policy),
    )


def _network(asked: NetworkRequest, balancer: LoadBalancer) -> FabricNetwork | EngineNetwork:
    """Return an idle network under the engine asked for."""
    payload, frame = ROCE_PAYLOAD_BYTES, ROCE_FRAME_BYTES
    if not asked.has_pauses:
        return FabricNetwork(balancer, payload_bytes=payload, frame_bytes=frame)
    check_engine_takes(asked.engine, balancer)
    engine = make_engine(
        asked.engine, balancer.channel_capacity_bps, asked.pfc, time_scale=asked.time_scale
    )
    return EngineNetwork(balancer, engine, payload_bytes=payload, frame_bytes=frame)


def _run_designs(
    request: PlanRequest,
    fleet: Fleet,
    designs: Sequence[Design],
    on_progress: ReportProgress | None,
    num_processes: int,
) -> list[DesignResult]:
    """Run every design; what crosses process lines is a ``DesignRun``, which is small."""
    total = len(request.workload.requests)

    def report(task: int, done: int) -> None:
        if on_progress is not None:
            on_progress(designs[task].name, done, total)

    tasks = [partial(_run, request, fleet, design) for design in designs]
    runs = run_all(tasks, num_processes, report)
    return [_result(design, run) for design, run in zip(designs, runs, strict=True)]


def _run(
    request: PlanRequest, fleet: Fleet, design: Design, tell: Callable[[int], None]
) -> DesignRun:
    cluster = build_cluster(
        request,
        fleet,
        design.network,
        is_disaggregated=design.fabric is not None,
        topology=None if design.fabric is None else design.fabric.topology,
    )
    return design_run(request, design, cluster, cluster.simulation.run(tell))


def design_run(
    request: PlanRequest, design: Design, cluster: Cluster, result: RunResult
) -> DesignRun:
    """Return the figures of a run that is over."""
    decode_first = request.decode_first and not isinstance(design.network, NoNetwork)
    records, network = result.records, design.network
    summary = summarize(records, request.workers.num_gpus, request.slo, decode_first=decode_first)
    return DesignRun(
        summary=summary,
        load=judge_load(records, num_users=request.workload.num_users, decode_first=decode_first),
        busiest_links=tuple(network.busiest_links(summary.window_ns, count=5)),
        num_flows=network.num_flows,
        num_events=result.num_events,
        num_restarts=cluster.coordinator.num_restarts,
        pool=cluster.coordinator.pool_counts if request.has_pool else None,
        log_digest=result.log_digest,
        pressure=network.pressure() if isinstance(network, EngineNetwork) else None,
        ttft_quantiles_ns=_ttft_quantiles(records),
        channels=_channel_loads(network),
    )


def _ttft_quantiles(records: Sequence[RequestRecord]) -> tuple[int, ...]:
    """Return TTFT at ``TTFT_PERCENTS`` over the same requests as the summary."""
    finished = (ttft_ns(record) for record in records if record.outcome is Outcome.FINISHED)
    ordered = sorted(duration_ns for duration_ns in finished if duration_ns is not None)
    if not ordered:
        return ()
    return (ordered[0], *(nearest_rank(ordered, percent) for percent in TTFT_PERCENTS[1:]))


def _channel_loads(network: AnyNetwork) -> ChannelLoads | None:
    if isinstance(network, EngineNetwork):
        return network.channel_loads()
    if isinstance(network, FabricNetwork):
        return ChannelLoads(carried_bytes=network.real_carried_bytes())
    return None


def _result(design: Design, run: DesignRun) -> DesignResult:
    return DesignResult(
        name=design.name,
        fabric=design.fabric,
        load_balancing=design.load_balancing,
        run=run,
        deadlock=design.deadlock,
    )


def build_fabric(request: PlanRequest, kind: FabricChoice) -> FabricFacts:
    """Return a fabric as built, or what failures leave of it; parts and price are of all of it.

    Raises:
        ConfigError: it cannot be built as asked.
    """
    network = request.network
    whole = build_topology(
        kind.kind,
        request.workers.num_gpus,
        nic_rate_bps=network.nic_rate_bps,
        radix=kind.radix,
        switch_capacity_bps=network.switch_capacity_bps,
        num_tiers=kind.num_tiers,
        oversubscription=kind.oversubscription,
        shape=kind.shape,
    )
    failures = parse_failures(whole, kind.failures)
    left = without(whole, failures) if kind.failures else whole
    return FabricFacts(
        label=kind.label or kind.kind,
        topology=left,
        report=topology_report(left),
        bom=bill_of_materials(whole, request.price_book, cables_by_rule(whole, kind.cables)),
        whole=whole if kind.failures else None,
        failures=failures if kind.failures else None,
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
