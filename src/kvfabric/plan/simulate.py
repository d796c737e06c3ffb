"""One design under one load, with every request's result."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvfabric.errors import ConfigError
from kvfabric.metrics.percentiles import LatencyDistribution, describe_latencies
from kvfabric.metrics.summary import RunSummary
from kvfabric.plan.compare import (
    Design,
    DesignResult,
    build_fabric,
    design_on,
    design_run,
)
from kvfabric.plan.fleet import Fleet, build_cluster, build_fleet
from kvfabric.plan.measured import MeasuredComparison, compare_with_measured
from kvfabric.plan.request import FabricChoice, PlanRequest, check_fleet
from kvfabric.plan.step_log import (
    WorkerUse,
    inter_token_latency,
    worker_use,
)
from kvfabric.plan.unrouted import MeasuredNetwork, NoNetwork
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.sim.logged_executor import LoggedExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """What one design did with the load.

    Attributes:
        request: what was asked.
        fleet: the workers' limits and step times.
        result: the design, and the figures of its run as clients see them.
        records: of every request, by id.
        engine_ttft: time to first token from when the engine read the request.
        itl: time between two tokens of a request.
        workers: use of each worker.
        num_recomputed_tokens: prompt tokens computed again after preemptions and restarts.
        num_iterations: steps of all workers, each decode iteration counted.
        comparisons: with the real run, where one was recorded; over all requests, then a window.
        notes: what was chosen or left out.
    """

    request: PlanRequest
    fleet: Fleet
    result: DesignResult
    records: tuple[RequestRecord, ...]
    engine_ttft: LatencyDistribution
    itl: LatencyDistribution
    workers: tuple[WorkerUse, ...]
    num_recomputed_tokens: int
    num_iterations: int
    comparisons: tuple[MeasuredComparison, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> RunSummary:
        """Return latencies, throughput and outcomes."""
        return self.result.summary


def simulate(
    request: PlanRequest,
    on_progress: Callable[[int], None] | None = None,
    *,
    fabric: str | None = None,
    load_balancing: str | None = None,
    window: tuple[int, int] | None = None,
) -> SimulatedRun:
    """Return what the fleet does with the load on one of its fabrics.

    Args:
        request: the fleet; without decode workers it needs no fabric.
        on_progress: called with the number of requests that have ended.
        fabric: label of the fabric; by default the first.
        load_balancing: policy; by default the first.
        window: first and last request of a second comparison with a recorded run.

    Raises:
        ConfigError: the fleet or the fabric cannot be built as asked.
        CapacityError: a worker cannot hold the model.
    """
    check_fleet(request)
    _check_window(request, window)
    fleet = build_fleet(request)
    design, notes = _design(request, fabric, load_balancing)
    executors: list[LoggedExecutor] = []

    def logged(
        model: StepTimeModel, lengths: Mapping[int, int], samples_first_token: bool
    ) -> LoggedExecutor:
        executors.append(LoggedExecutor(model, lengths, samples_first_token))
        return executors[-1]

    cluster = build_cluster(
        request,
        fleet,
        design.network,
        is_disaggregated=request.workers.num_decode > 0,
        make_executor=logged,
        topology=None if design.fabric is None else design.fabric.topology,
    )
    run = cluster.simulation.run(on_progress)
    result = DesignResult(
        name=design.name,
        fabric=design.fabric,
        load_balancing=design.load_balancing,
        run=design_run(request, design, cluster, run),
        deadlock=design.deadlock,
    )
    computed = sum(executor.num_prefill_tokens for executor in executors)
    return SimulatedRun(
        request=request,
        fleet=fleet,
        result=result,
        records=run.records,
        engine_ttft=describe_latencies(_engine_ttfts_ns(run.records)),
        itl=inter_token_latency(executors),
        workers=worker_use(
            executors,
            num_decode=request.workers.num_decode,
            window_ns=result.summary.window_ns,
        ),
        num_recomputed_tokens=max(0, computed - _num_needed_tokens(run.records)),
        num_iterations=run.num_iterations,
        comparisons=compare_with_measured(
            run.records,
            request.measured,
            max_num_seqs=request.workers.max_num_seqs,
            window=window,
        ),
        notes=(*fleet.notes, *notes),
    )


def _check_window(request: PlanRequest, window: tuple[int, int] | None) -> None:
    if window is not None and not request.measured:
        raise ConfigError(
            "the load is no recorded run with measured times",
            where="window",
            hint="Leave it out, or give such a run as the trace",
        )


def _design(
    request: PlanRequest, label: str | None, policy: str | None
) -> tuple[Design, tuple[str, ...]]:
    """Return the design to run, and what was chosen without being asked."""
    network = request.network
    if request.moves_as_measured:
        assert request.transfer_times is not None
        return Design("measured", None, None, MeasuredNetwork(request.transfer_times)), ()
    if not request.uses_fabric:
        return Design("aggregated", None, None, NoNetwork()), ()
    if not network.fabrics or not network.load_balancing:
        raise ConfigError(
            "no fabric, and decode workers get their KV cache over one",
            where="fabric",
            hint="Add one, or write workers.decode 0: every worker does both",
        )
    choice = _chosen(network.fabrics, label)
    balancing = policy or network.load_balancing[0]
    design = design_on(request, build_fabric(request, choice), balancing)
    num_designs = len(network.fabrics) * len(network.load_balancing)
    if num_designs == 1 or (label is not None and policy is not None):
        return design, ()
    return design, (f"{design.name} is one of {num_designs} designs of the scenario",)


def _chosen(fabrics: Sequence[FabricChoice], label: str | None) -> FabricChoice:
    if label is None:
        return fabrics[0]
    for choice in fabrics:
        if label in {choice.label, choice.kind}:
            return choice
    known = ", ".join(choice.label or choice.kind for choice in fabrics)
    raise ConfigError(
        f"no fabric {label!r} in the scenario", where="fabric.label", hint=f"Write one of {known}"
    )


def _engine_ttfts_ns(records: Sequence[RequestRecord]) -> Iterable[int]:
    for record in records:
        queued_ns, first_ns = record.queued_ns, record.first_token_ns
        if record.outcome is Outcome.FINISHED and queued_ns is not None and first_ns is not None:
            yield first_ns - queued_ns


def _num_needed_tokens(records: Sequence[RequestRecord]) -> int:
    """Return the prompt tokens that each request needed computed once."""
    return sum(
        record.num_prompt_tokens - record.num_cached_tokens
        for record in records
        if record.prefill_end_ns is not None
    )
