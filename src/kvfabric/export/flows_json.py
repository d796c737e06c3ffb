"""A run of flows as plain JSON values: figures over all of them; single flows stand in the CSV."""

from collections.abc import Sequence
from dataclasses import asdict

from kvfabric import __version__
from kvfabric.metrics.percentiles import describe_latencies
from kvfabric.plan.flow_run import FlowRun


def flow_run_to_dict(
    run: FlowRun, *, fabric: str, load_balancing: str, engine: str
) -> dict[str, object]:
    """Return the whole answer; equal runs give equal values."""
    on_fabric = [result for result in run.results if result.num_subflows]
    return {
        "kvfabric_version": __version__,
        "fabric": fabric,
        "load_balancing": load_balancing,
        "engine": engine,
        "num_flows": len(run.results),
        "num_within_servers": len(run.results) - len(on_fabric),
        "num_subflows": sum(result.num_subflows for result in on_fabric),
        "num_bytes": sum(result.flow.num_bytes for result in on_fabric),
        "window_ns": run.window_ns,
        "fct": asdict(describe_latencies(result.fct_ns for result in on_fabric)),
        "fct_max_ns": max((result.fct_ns for result in on_fabric), default=None),
        "slowdown": _figures([result.slowdown or 0.0 for result in on_fabric]),
        "busiest_links": [asdict(link) for link in run.busiest_links],
        "back_pressure": None if run.pressure is None else asdict(run.pressure),
    }


def _figures(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, nearest-rank median and p99, and the largest; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    count = len(ordered)
    return {
        "mean": round(sum(ordered) / count, 6),
        "p50": round(ordered[-(-count // 2) - 1], 6),
        "p99": round(ordered[-(-count * 99 // 100) - 1], 6),
        "max": round(ordered[-1], 6),
    }
