"""Flow completion times of the three flow engines against a packet-level simulator."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np

from kvfabric.fabric.engines import maxmin, pfc
from kvfabric.fabric.engines.flow_engine import FlowEngine
from kvfabric.fabric.engines.pfc_stepped import PfcSteppedEngine
from kvfabric.fabric.graph import FloatArray
from kvfabric.plan.validation.comparison import (
    Comparison,
    Errors,
    Figure,
    Limit,
    Record,
    Role,
)
from kvfabric.plan.validation.packet_level import (
    CARRIED,
    PAUSED_PORT_US,
    REFERENCED,
    PacketLevelRun,
    carried_flows,
    hosts_per_leaf,
    run_of,
)
from kvfabric.plan.validation.pfc_record import DATE, RECORDED
from kvfabric.plan.validation.reference import ReferenceData

Completion = Callable[[PacketLevelRun], FloatArray]
Named = Iterable[tuple[str, PacketLevelRun]]


def event_driven_s(run: PacketLevelRun) -> FloatArray:
    """Return the completion times of the engine ``pfc``."""
    return _batch(run, pfc_solution(run).finish_s)


def pfc_solution(run: PacketLevelRun) -> pfc.PfcSolution:
    """Return what the engine ``pfc`` says of a workload."""
    return pfc.solve_flows(
        run.capacity_bps, run.path_start, run.path_channels, run.start_s, run.size_bytes
    )


def max_min_s(run: PacketLevelRun) -> FloatArray:
    """Return the completion times of the engine ``max-min``."""
    finish_s = maxmin.solve_flows(
        run.capacity_bps, run.path_start, run.path_channels, run.start_s, run.size_bytes
    )
    return _batch(run, finish_s)


def stepped_s(run: PacketLevelRun) -> FloatArray:
    """Return the completion times of the engine ``pfc-stepped``.

    A fluid moves a hop per step; the packets take the round trip until the last is acknowledged.
    """
    engine = PfcSteppedEngine(run.capacity_bps)
    starts_ns = np.round(run.start_s * 1e9).astype(np.int64)
    ends_ns = _ends_ns(engine, run, starts_ns.tolist())
    num_hops = np.array([len(path) for path in run.paths])
    in_switches_s = (num_hops - 1) * engine.step_ns * 1e-9
    fct_s: FloatArray = (ends_ns - starts_ns) * 1e-9 + run.round_trip_s - in_switches_s
    return fct_s


def _batch(run: PacketLevelRun, finish_s: FloatArray) -> FloatArray:
    return finish_s - run.start_s + run.round_trip_s


def _ends_ns(engine: FlowEngine, run: PacketLevelRun, starts_ns: list[int]) -> FloatArray:
    """Return when each flow ends; all that start at one instant are told together."""
    ends_ns = np.zeros(run.num_flows)
    flow_of: dict[int, int] = {}
    for start_ns in sorted(set(starts_ns)):
        _run_until(engine, start_ns, flow_of, ends_ns)
        flows = [flow for flow, begins_ns in enumerate(starts_ns) if begins_ns == start_ns]
        sizes = [int(run.size_bytes[flow]) for flow in flows]
        ids = engine.start_flows(start_ns, [run.paths[flow] for flow in flows], sizes)
        flow_of |= dict(zip(ids, flows, strict=True))
    _run_until(engine, None, flow_of, ends_ns)
    return ends_ns


def _run_until(
    engine: FlowEngine, until_ns: int | None, flow_of: dict[int, int], ends_ns: FloatArray
) -> None:
    while (next_ns := engine.next_completion_ns()) is not None:
        if until_ns is not None and next_ns > until_ns:
            return
        for flow_id in engine.advance(next_ns):
            ends_ns[flow_of[flow_id]] = next_ns


def _carried() -> Iterator[tuple[str, PacketLevelRun]]:
    for name in CARRIED:
        yield name, run_of(carried_flows(name), hosts_per_leaf(name))


def _referenced(reference: ReferenceData) -> Iterator[tuple[str, PacketLevelRun]]:
    for name in REFERENCED:
        yield name, run_of(reference.packet_flows(name), hosts_per_leaf(name))


def _statistics(complete: Completion, runs: Named) -> list[Figure]:
    """Return mean and 99th percentile of every workload."""
    figures = []
    for name, run in runs:
        said, ours = run.fct_s * 1e3, complete(run) * 1e3
        figures += [
            Figure(f"{name} mean, ms", float(said.mean()), float(ours.mean())),
            Figure(f"{name} p99, ms", *(float(np.percentile(x, 99)) for x in (said, ours))),
        ]
    return figures


def _flows(complete: Completion, runs: Named) -> list[Figure]:
    """Return every single flow."""
    return [
        Figure(f"{name} flow {flow}, ms", said, ours)
        for name, run in runs
        for flow, (said, ours) in enumerate(
            zip((run.fct_s * 1e3).tolist(), (complete(run) * 1e3).tolist(), strict=True)
        )
    ]


def _paused(runs: Named) -> list[Figure]:
    return [
        Figure(
            f"{name}, port-us",
            PAUSED_PORT_US[name],
            float(pfc_solution(run).paused_s.sum() * 1e6),
        )
        for name, run in runs
        if name in PAUSED_PORT_US
    ]


Measure = Callable[[Named], list[Figure]]


def _pair(key: str, what: str, measure: Measure, limits: tuple[Limit, Limit]) -> list[Comparison]:
    """Return the comparison on the carried workloads and on those of the reference data."""
    errors, figures = RECORDED[key]
    return [
        Comparison(
            part="pfc",
            what=f"{what}: incast, permutation",
            source="uet-htsim, packet level, 128 hosts",
            role=Role.HELD_OUT,
            limit=limits[0],
            recompute=lambda: measure(_carried()),
        ),
        Comparison(
            part="pfc",
            what=f"{what}: KV, victims, 1,024 hosts",
            source="uet-htsim, packet level, 4 workloads",
            role=Role.HELD_OUT,
            limit=limits[1],
            recompute_from=lambda reference: measure(_referenced(reference)),
            needs=("fabric/packet_level",),
            record=Record(DATE, Errors(*errors), tuple(Figure(*figure) for figure in figures)),
        ),
    ]


COMPARISONS: Final = (
    *_pair(
        "pfc",
        "pfc, mean and p99",
        partial(_statistics, event_driven_s),
        (Limit(0.006, 0.011), Limit(0.02, 0.083)),
    ),
    *_pair(
        "pfc per flow",
        "pfc, every flow",
        partial(_flows, event_driven_s),
        (Limit(0.021, 0.155), Limit(0.042, 0.58)),
    ),
    *_pair(
        "pfc paused",
        "pfc, port time paused",
        _paused,
        (Limit(0.0095, 0.018), Limit(0.0165, 0.024)),
    ),
    *_pair(
        "pfc-stepped",
        "pfc-stepped, mean and p99",
        partial(_statistics, stepped_s),
        (Limit(0.0095, 0.016), Limit(0.0135, 0.039)),
    ),
    *_pair(
        "pfc-stepped per flow",
        "pfc-stepped, every flow",
        partial(_flows, stepped_s),
        (Limit(0.038, 0.18), Limit(0.048, 0.58)),
    ),
    *_pair(
        "max-min",
        "max-min under PFC, mean and p99",
        partial(_statistics, max_min_s),
        (Limit(0.17, 0.37), Limit(0.2, 0.42)),
    ),
)
