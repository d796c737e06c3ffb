"""Looks for the cheapest design that meets the targets; the cheap questions come first.

1. Construction and bounds rule out fleets without a simulation (``open_shapes``).
2. The rest is simulated from the cheapest on, prefill and decode apart over an ideal network first.
3. What is left gets its fabrics, cheapest first. Every run is given up once more requests have
   missed the targets than may.

Fleets are taken in rounds of a fixed size, and every decision waits for the end of a round: the
result does not depend on how many processes there are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from kvfabric.fabric.graph import Topology
from kvfabric.metrics.latency import Slo
from kvfabric.plan.bom import Cost
from kvfabric.plan.compare import FabricFacts, build_fabric, design_on
from kvfabric.plan.parallel import Tell, run_all
from kvfabric.plan.request import PlanRequest, check_fleet
from kvfabric.plan.search.evaluate import Outcome, run_design
from kvfabric.plan.search.ideal_network import IdealNetwork
from kvfabric.plan.search.open_shapes import OpenShape, ShapeFilter
from kvfabric.plan.search.pareto import pareto_front
from kvfabric.plan.search.pruned import PruneLog, Reason
from kvfabric.plan.search.result import Evaluated, SearchResult
from kvfabric.plan.search.shape import FabricOption, with_fabric
from kvfabric.plan.search.space import Mode, SearchRequest, check_search
from kvfabric.plan.unrouted import NoNetwork
from kvfabric.plan.verdict import SAME_WITHIN
from kvfabric.protocol.ports import Network
from kvfabric.serving.decode_choice import DecodePolicy

ROUND: Final = 8
NUM_NEAR_MISSES: Final = 2  # of each mode

ReportProgress = Callable[[str, int, int], None]
_Task = tuple[str, Callable[[Tell], Outcome]]


def search(
    request: SearchRequest, on_progress: ReportProgress | None = None, *, num_processes: int = 1
) -> SearchResult:
    """Return the designs that meet the targets, and what became of all others.

    Args:
        request: what to look for, and where.
        on_progress: called with a design's name, requests ended, and requests in all.
        num_processes: designs simulated at once; the results do not depend on it.

    Raises:
        ConfigError: no targets, no GPU or no price of it, or a load that no fleet could take.
    """
    check_search(request)
    check_fleet(request.base)
    return _Search(request, on_progress, num_processes).run()


class _Search:
    """The state of one search."""

    def __init__(
        self, request: SearchRequest, on_progress: ReportProgress | None, num_processes: int
    ) -> None:
        self._request = request
        self._on_progress = on_progress
        self._num_processes = num_processes
        self._log = PruneLog()
        self._found: list[Evaluated] = []
        self._missed: list[tuple[OpenShape, Outcome, FabricOption | None]] = []
        self._facts: dict[tuple[int, int], FabricFacts] = {}
        self._num_runs = 0
        self._num_whole_runs = 0

    def run(self) -> SearchResult:
        shape_filter = ShapeFilter(self._request, self._log)
        waiting = shape_filter.open_shapes()
        while waiting:
            waiting = self._drop_dear(waiting)
            now, waiting = waiting[:ROUND], waiting[ROUND:]
            self._round(now)
        self._found.sort(key=_rank)
        near = self._near_misses(_closest(shape_filter))
        return SearchResult(
            request=self._request,
            found=tuple(self._found),
            front=tuple(pareto_front(self._found, lambda design: design.point)),
            near_misses=near,
            pruned=self._log.rows(),
            num_designs=shape_filter.num_designs,
            num_shapes=shape_filter.num_shapes,
            num_runs=self._num_runs,
            num_whole_runs=self._num_whole_runs,
            notes=self._notes(),
            winner_fabric=self._winner_fabric(shape_filter),
        )

    def _winner_fabric(self, shape_filter: ShapeFilter) -> FabricOption | None:
        if not self._found:
            return None
        winner = self._found[0]
        return winner.option or shape_filter.cheapest_fabric(winner.shape.num_gpus)

    # ---- cost ----------------------------------------------------------------------------------

    def _limit_usd(self, mode: Mode) -> float:
        """Return the cost beyond which designs of a mode are of no use; one has no limit at first.

        The cheapest design of either mode is wanted, whatever it costs.
        """
        if not any(design.mode is mode for design in self._found):
            return float("inf")
        return min(design.usd for design in self._found) * self._request.cost_limit

    def _drop_dear(self, waiting: Sequence[OpenShape]) -> list[OpenShape]:
        kept: list[OpenShape] = []
        limits = {mode: self._limit_usd(mode) for mode in Mode}
        for one in waiting:
            if one.least_usd <= limits[_mode(one)]:
                kept.append(one)
            else:
                self._log.add(Reason.TOO_DEAR, one.num_designs, one.shape.name)
        return kept

    # ---- rounds --------------------------------------------------------------------------------

    def _round(self, shapes: Sequence[OpenShape]) -> None:
        outcomes = self._run([self._first_task(one) for one in shapes])
        apart: list[_FabricQueue] = []
        for one, outcome in zip(shapes, outcomes, strict=True):
            if not one.options:
                self._take(one, None, None, outcome, None)
            elif outcome.is_whole and outcome.num_missed <= self._request.num_allowed:
                apart.append(_FabricQueue(one, outcome))
            else:
                self._log.add(Reason.MISSES_IDEALLY, one.num_designs, one.shape.name)
                self._missed.append((one, outcome, None))
        while apart:
            self._fabric_round(apart)
            apart = [queue for queue in apart if queue.options]

    def _first_task(self, one: OpenShape) -> _Task:
        """Return the run of workers that need no fabric, or of others over an ideal network."""
        if not one.options:
            return one.shape.name, self._task(one, self._inside(one))
        fastest = max(option.nic_rate_bps for option, _ in one.options)
        task = partial(
            _run_task,
            replace(one, request=_without_topology(one.request)),
            _Joined(IdealNetwork(fastest)),
            most_missed=self._request.num_allowed,
            slo=_relaxed(self._request.base.slo),
        )
        return f"{one.shape.name} ideal", task

    def _inside(self, one: OpenShape) -> "_Joined":
        """Return what joins workers without a fabric: nothing, or the links of one server."""
        if one.shape.is_aggregated:
            return _Joined(NoNetwork())
        return _Joined(IdealNetwork(self._request.base.network.nic_rate_bps))

    def _task(self, one: OpenShape, joined: "_Joined") -> Callable[[Tell], Outcome]:
        return partial(_run_task, one, joined, most_missed=self._request.num_allowed, slo=None)

    def _run(self, tasks: Sequence[_Task]) -> list[Outcome]:
        total = len(self._request.base.workload.requests)

        def report(task: int, done: int) -> None:
            if self._on_progress is not None:
                self._on_progress(tasks[task][0], done, total)

        outcomes = run_all([task for _, task in tasks], self._num_processes, report)
        self._num_runs += len(outcomes)
        self._num_whole_runs += sum(outcome.is_whole for outcome in outcomes)
        return outcomes

    def _fabric_round(self, queues: Sequence["_FabricQueue"]) -> None:
        """Run the next fabric of every queue, and shorten the queues by what that tells."""
        tried: list[tuple[_FabricQueue, FabricOption, Cost]] = []
        tasks: list[_Task] = []
        for queue in queues:
            joined, option, cost = self._next_network(queue)
            if joined is not None:
                tried.append((queue, option, cost))
                name = f"{queue.one.shape.name} {option.name}"
                tasks.append((name, self._task(queue.one, joined)))
        for (queue, option, cost), outcome in zip(tried, self._run(tasks), strict=True):
            ideal_ns = queue.ideal_ttft_p99_ns
            if self._take(queue.one, option, cost, outcome, ideal_ns):
                self._shorten(queue, outcome)

    def _next_network(self, queue: "_FabricQueue") -> tuple["_Joined | None", FabricOption, Cost]:
        """Take the next fabric of a queue; no network where it can deadlock or is too dear."""
        one = queue.one
        option, cost = queue.options.pop(0)
        name = f"{one.shape.name} {option.name}"
        if one.cost(cost).total.typical_usd > self._limit_usd(Mode.DISAGGREGATED):
            self._log.add(Reason.TOO_DEAR, 1, name)
            return None, option, cost
        request = with_fabric(one.request, option)
        key = (one.shape.num_gpus, option.parts)
        if key not in self._facts:
            self._facts[key] = build_fabric(request, option.choice)
        design = design_on(request, self._facts[key], option.load_balancing)
        if design.deadlock is not None and design.deadlock.can_deadlock:
            self._log.add(Reason.CAN_DEADLOCK, 1, name)
            return None, option, cost
        return _Joined(design.network, self._facts[key].topology), option, cost

    def _shorten(self, queue: "_FabricQueue", outcome: Outcome) -> None:
        """Drop the dearer fabrics of a queue where not even an ideal network would help."""
        ideal_ns = queue.ideal_ttft_p99_ns
        assert outcome.summary is not None, "it meets the targets"
        real_ns = outcome.summary.ttft.p99_ns
        if ideal_ns is None or real_ns is None or ideal_ns >= (1 - SAME_WITHIN) * real_ns:
            self._log.add(Reason.NO_GAIN, len(queue.options), queue.one.shape.name)
            queue.options.clear()

    def _take(
        self,
        one: OpenShape,
        option: FabricOption | None,
        fabric: Cost | None,
        outcome: Outcome,
        ideal_ns: int | None,
    ) -> bool:
        """Keep a design that meets the targets; count one that does not."""
        meets = outcome.is_whole and outcome.num_missed <= self._request.num_allowed
        if meets:
            design = _evaluated(one, option, fabric, outcome, meets, ideal_ns)
            self._found.append(replace(design, missed_fabrics=self._missed_fabrics(one)))
        else:
            name = one.shape.name if option is None else f"{one.shape.name} {option.name}"
            self._log.add(Reason.MISSES, 1, name)
            self._missed.append((one, outcome, option))
        return meets

    def _missed_fabrics(self, one: OpenShape) -> tuple[str, ...]:
        """Return the fabrics that were tried under the same workers and missed the targets."""
        return tuple(
            option.name
            for missed, _, option in self._missed
            if missed.idx == one.idx and option is not None
        )

    # ---- near misses ---------------------------------------------------------------------------

    def _near_misses(self, barred: Sequence[OpenShape]) -> tuple[Evaluated, ...]:
        """Run designs to the end that miss and are cheaper than the winner, the largest of them.

        Of each size the one that got furthest before it was given up.
        """
        limit_usd = self._found[0].usd if self._found else float("inf")
        missed = [miss for miss in self._missed if miss[0].least_usd < limit_usd]
        missed.sort(key=lambda miss: (-miss[0].shape.num_gpus, -miss[1].num_ended, miss[0].idx))
        chosen = _first_of_each_size((one, option) for one, _, option in missed)
        if not chosen and not self._found:
            chosen = _first_of_each_size((one, None) for one in barred)
        tasks: list[_Task] = []
        designs: list[tuple[OpenShape, FabricOption | None, Cost | None]] = []
        for one, option in chosen:
            joined, used, cost = self._network_of(one, option)
            designs.append((one, used, cost))
            task = partial(_run_task, one, joined, most_missed=None, slo=None)
            tasks.append((f"near miss {one.shape.name}", task))
        outcomes = self._run(tasks)
        near = [
            _evaluated(*design, outcome, outcome.num_missed <= self._request.num_allowed, None)
            for design, outcome in zip(designs, outcomes, strict=True)
            if outcome.summary is not None and outcome.summary.counts.finished
        ]
        near.sort(key=lambda design: (design.outcome.num_missed, design.usd))
        return tuple(near)

    def _network_of(
        self, one: OpenShape, option: FabricOption | None
    ) -> tuple["_Joined", FabricOption | None, Cost | None]:
        """Return a network for workers: the fabric given, by default the cheapest."""
        if not one.options:
            return self._inside(one), None, None
        used = option or one.options[0][0]
        cost = next(cost for other, cost in one.options if other is used)
        request = with_fabric(one.request, used)
        facts = build_fabric(request, used.choice)
        network = design_on(request, facts, used.load_balancing).network
        return _Joined(network, facts.topology), used, cost

    def _notes(self) -> tuple[str, ...]:
        notes = [note for design in self._found for note in design.summary.warnings]
        return tuple(dict.fromkeys((*self._request.base.geometry.notes, *notes)))


class _FabricQueue:
    """A fleet that an ideal network would let meet the targets, and the fabrics still to try."""

    def __init__(self, one: OpenShape, ideal: Outcome) -> None:
        self.one = one
        self.options = list(one.options)
        assert ideal.summary is not None, "it was run to the end"
        self.ideal_ttft_p99_ns = ideal.summary.ttft.p99_ns


class _Joined(NamedTuple):
    """What joins the workers of a run."""

    network: Network
    topology: Topology | None = None


def _run_task(
    one: OpenShape, joined: _Joined, tell: Tell, *, most_missed: int | None, slo: Slo | None
) -> Outcome:
    return run_design(
        one.request,
        one.fleet,
        joined.network,
        tell,
        most_missed=most_missed,
        slo=slo,
        topology=joined.topology,
    )


def _without_topology(request: PlanRequest) -> PlanRequest:
    """Return a plan whose receivers can be chosen on a network that has no topology."""
    if request.decode_choice is not DecodePolicy.TOPOLOGY_AWARE:
        return request
    return replace(request, decode_choice=DecodePolicy.LEAST_LOADED)


def _evaluated(
    one: OpenShape,
    option: FabricOption | None,
    fabric: Cost | None,
    outcome: Outcome,
    meets: bool,
    ideal_ns: int | None,
) -> Evaluated:
    return Evaluated(
        shape=one.shape,
        option=option,
        cost=one.cost(fabric),
        outcome=outcome,
        meets=meets,
        ideal_ttft_p99_ns=ideal_ns,
    )


def _mode(one: OpenShape) -> Mode:
    return Mode.AGGREGATED if one.shape.is_aggregated else Mode.DISAGGREGATED


def _rank(design: Evaluated) -> tuple[float, int, str]:
    name = f"{design.shape.name} {design.network_name}"
    return design.usd, design.point.ttft_ns, name


def _relaxed(slo: Slo) -> Slo:
    """Return looser targets: what misses them misses the real ones beyond the models' error."""
    return Slo(ttft_ns=_more(slo.ttft_ns), tpot_ns=_more(slo.tpot_ns))


def _more(target_ns: int | None) -> int | None:
    return None if target_ns is None else round(target_ns * (1 + SAME_WITHIN))


def _closest(shape_filter: ShapeFilter) -> list[OpenShape]:
    """Return the fleets that a bound ruled out, the closest first."""
    order = sorted(shape_filter.barred, key=lambda barred: (barred.factor, barred.shape.idx))
    return [barred.shape for barred in order]


def _first_of_each_size(
    designs: Iterable[tuple[OpenShape, FabricOption | None]],
) -> list[tuple[OpenShape, FabricOption | None]]:
    """Return the first designs of either mode, each of another number of GPUs."""
    chosen: dict[tuple[Mode, int], tuple[OpenShape, FabricOption | None]] = {}
    for one, option in designs:
        mode = _mode(one)
        if sum(known is mode for known, _ in chosen) < NUM_NEAR_MISSES:
            chosen.setdefault((mode, one.shape.num_gpus), (one, option))
    return list(chosen.values())
