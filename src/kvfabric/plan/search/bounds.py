"""Designs that cannot meet the targets whatever happens: bounds from work, time and memory.

Every bound is sound: a design that it takes out would miss the targets in the simulation, too
(``test_search_bounds.py`` holds it to that). They need the roofline; measured step times promise
too little, and are simulated.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvfabric.kvcache.geometry import WINDOWED_KINDS, KVGeometry
from kvfabric.plan.engines import Engine, Fleet
from kvfabric.plan.search.deadlines import Due, Job, due_times, most_at_once
from kvfabric.plan.search.pruned import Reason
from kvfabric.plan.search.reuse import reusable_tokens
from kvfabric.plan.search.shape import Shape
from kvfabric.plan.search.space import SearchRequest
from kvfabric.plan.search.step_costs import StepCosts, step_costs
from kvfabric.sim.simulation_config import SimulationConfig

_SLACK = 1 + 1e-9  # sums of floating-point numbers


@dataclass(frozen=True, slots=True)
class Excess:
    """A bound that is broken, and how far: 1.5 is half as much again as there is."""

    reason: Reason
    factor: float


@dataclass(frozen=True, slots=True)
class _Load:
    """A request as a worker sees it."""

    due: Due
    num_prompt: int
    num_cached: int
    num_decode_steps: int


class Bounds:
    """The bounds of one search, kept per kind of worker."""

    def __init__(self, request: SearchRequest) -> None:
        """Work out when every request must be served."""
        base = request.base
        self._slo = base.slo
        self._num_allowed = request.num_allowed
        self._window = _smallest_window(base.geometry)
        self._due = due_times(base.workload, base.slo)
        self._cached = reusable_tokens(
            base.workload,
            is_caching=base.workers.enable_prefix_caching,
        )
        self._costs: dict[int, StepCosts | None] = {}
        self._needs: dict[tuple[object, ...], float] = {}
        self._loads: dict[int, list[_Load]] = {}
        self._excess_alone: dict[tuple[object, ...], Excess | None] = {}

    def excess(self, shape: Shape, fleet: Fleet) -> Excess | None:
        """Return the first bound that a shape breaks, or None."""
        longest = _longest(fleet)
        if longest not in self._loads:
            self._loads[longest] = self._loads_up_to(longest)
        loads = self._loads[longest]
        num_short = len(self._due) - len(loads)
        if num_short > self._num_allowed:
            return Excess(Reason.TOO_LONG, num_short / max(1, self._num_allowed))
        prefill = self._costs_of(shape.tp, fleet.prefill)
        decode = self._costs_of(shape.decode_tp, fleet.decode)
        key = (shape.tp, shape.decode_tp, shape.prefill_cp, shape.is_aggregated, longest)
        if key not in self._excess_alone:
            self._excess_alone[key] = self._alone(shape, loads, prefill, decode)
        found = self._excess_alone[key]
        if found is not None:
            return found
        workers = [
            (reason, need, count)
            for reason, need, count in self._capacities(shape, fleet, loads, prefill, decode)
            if need > count * _SLACK
        ]
        if not workers:
            return None
        reason, need, count = max(workers, key=lambda broken: broken[1] / broken[2])
        return Excess(reason, need / count)

    def _costs_of(self, tp: int, engine: Engine) -> StepCosts | None:
        if tp not in self._costs:
            self._costs[tp] = step_costs(engine.model, self._window)
        return self._costs[tp]

    def _loads_up_to(self, longest: int) -> list[_Load]:
        """Return the requests that a worker holds, with the answers that it has room for."""
        default = SimulationConfig().max_tokens
        loads: list[_Load] = []
        for due, num_cached in zip(self._due, self._cached, strict=True):
            spec = due.spec
            room = longest - spec.num_prompt_tokens
            if room >= 1:
                asked = default if spec.max_tokens is None else spec.max_tokens
                num_steps = min(spec.num_output_tokens, asked, room) - 1
                loads.append(_Load(due, spec.num_prompt_tokens, num_cached, num_steps))
        return loads

    # ---- alone ---------------------------------------------------------------------------------

    def _alone(
        self,
        shape: Shape,
        loads: Sequence[_Load],
        prefill: StepCosts | None,
        decode: StepCosts | None,
    ) -> Excess | None:
        if self._slo.ttft_ns is not None and prefill is not None and shape.prefill_cp == 1:
            ttfts = self._ttfts(shape, loads, prefill, decode)
            late = self._past(ttfts, self._slo.ttft_ns)
            if late > 1:
                return Excess(Reason.TTFT_TOO_LONG_ALONE, late)
        if self._slo.tpot_ns is not None and decode is not None:
            tpots = (
                decode.decode_alone_ns(load.num_prompt, load.num_decode_steps)
                / load.num_decode_steps
                for load in loads
                if load.num_decode_steps
            )
            late = self._past(tpots, self._slo.tpot_ns)
            if late > 1:
                return Excess(Reason.TPOT_TOO_LONG_ALONE, late)
        return None

    def _ttfts(
        self,
        shape: Shape,
        loads: Sequence[_Load],
        prefill: StepCosts,
        decode: StepCosts | None,
    ) -> Iterable[float]:
        for load in loads:
            ttft_ns = prefill.prefill_alone_ns(load.num_prompt, load.num_cached)
            if not shape.is_aggregated and decode is not None:
                ttft_ns += decode.first_step_ns(load.num_prompt)
            yield ttft_ns

    def _past(self, latencies: Iterable[float], target_ns: int) -> float:
        """Return the best latency of those that may not miss, over the target; 0: all is well."""
        ordered = sorted(latencies, reverse=True)
        if len(ordered) <= self._num_allowed:
            return 0.0
        return ordered[self._num_allowed] / target_ns

    # ---- capacity ------------------------------------------------------------------------------

    def _capacities(
        self,
        shape: Shape,
        fleet: Fleet,
        loads: Sequence[_Load],
        prefill: StepCosts | None,
        decode: StepCosts | None,
    ) -> Iterable[tuple[Reason, float, int]]:
        """Yield, per bound, how many workers are needed and how many there are."""
        num_answering = shape.num_prefill if shape.is_aggregated else shape.num_decode
        longest = _longest(fleet)
        if prefill is not None and shape.prefill_cp == 1:
            key = ("prefill", shape.tp, longest)
            need = self._need(key, lambda: _prefill_jobs(loads, prefill))
            yield Reason.PREFILL_CAPACITY, need, shape.num_prefill
        if decode is None:
            return
        key = ("decode", shape.decode_tp, longest)
        need = self._need(key, lambda: _decode_jobs(loads, decode))
        yield Reason.DECODE_CAPACITY, need, num_answering
        scheduler = fleet.decode.scheduler
        kv_key = ("kv", shape.decode_tp, longest, scheduler.num_blocks)
        held = self._need(kv_key, lambda: _kv_jobs(loads, decode, scheduler.block_size))
        yield Reason.KV_CAPACITY, held / (scheduler.num_blocks - 1), num_answering
        if shape.is_aggregated and prefill is not None:
            key = ("both", shape.tp, longest)
            need = self._need(key, lambda: _all_jobs(loads, prefill, decode))
            yield Reason.TOTAL_CAPACITY, need, shape.num_prefill

    def _need(self, key: tuple[object, ...], jobs: Callable[[], Iterable[Job]]) -> float:
        if key not in self._needs:
            self._needs[key] = most_at_once(jobs(), self._num_allowed)
        return self._needs[key]


def _longest(fleet: Fleet) -> int:
    """Return the most tokens of a request that every worker can hold."""
    return min(fleet.scheduler.max_model_len, fleet.decode.scheduler.max_model_len)


def _prefill_jobs(loads: Sequence[_Load], costs: StepCosts) -> Iterable[Job]:
    for load in loads:
        due = load.due
        if due.first_token_ns is not None:
            cost = costs.prefill_beside_ns(load.num_prompt, load.num_cached)
            yield Job(due.session, due.earliest_ns, due.first_token_ns, cost)


def _decode_jobs(loads: Sequence[_Load], costs: StepCosts) -> Iterable[Job]:
    for load in _answered(loads):
        cost = costs.decode_beside_ns(load.num_prompt, load.num_decode_steps)
        yield _until_finish(load, cost)


def _all_jobs(loads: Sequence[_Load], prefill: StepCosts, decode: StepCosts) -> Iterable[Job]:
    for load in loads:
        if load.due.finish_ns is None:
            continue
        cost = prefill.prefill_beside_ns(load.num_prompt, load.num_cached)
        if load.num_decode_steps:
            cost += decode.decode_beside_ns(load.num_prompt, load.num_decode_steps)
        yield _until_finish(load, cost)


def _kv_jobs(loads: Sequence[_Load], costs: StepCosts, block_size: int) -> Iterable[Job]:
    """Yield blocks that no other request shares, times how long an answer holds them at least."""
    for load in _answered(loads):
        num_blocks = (load.num_prompt - load.num_cached) // block_size
        held_ns = costs.decode_alone_ns(load.num_prompt, load.num_decode_steps)
        yield _until_finish(load, num_blocks * held_ns)


def _answered(loads: Sequence[_Load]) -> Iterable[_Load]:
    """Yield the requests with decode steps that have a latest end."""
    return (load for load in loads if load.num_decode_steps and load.due.finish_ns is not None)


def _until_finish(load: _Load, cost: float) -> Job:
    due = load.due
    assert due.finish_ns is not None
    return Job(due.session, due.earliest_ns, due.finish_ns, cost)


def _smallest_window(geometry: KVGeometry) -> int | None:
    windows = [
        group.layout.window_tokens
        for group in geometry.groups
        if group.layout.kind in WINDOWED_KINDS
    ]
    return min(windows, default=None)
