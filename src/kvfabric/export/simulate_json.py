"""A simulated run as plain JSON values; single requests stand in requests.csv."""

from collections.abc import Sequence
from dataclasses import asdict

from kvfabric import __version__
from kvfabric.export.limits import not_modelled, stated_error
from kvfabric.export.plan_json import design_to_dict, request_to_dict, workload_to_dict
from kvfabric.plan.measured import MeasuredComparison
from kvfabric.plan.request import HandoffPolicy
from kvfabric.plan.simulate import SimulatedRun
from kvfabric.plan.verdict import Verdict


def run_to_dict(run: SimulatedRun, verdicts: Sequence[Verdict]) -> dict[str, object]:
    """Return the whole answer; equal runs give equal values."""
    scheduler, workers = run.fleet.scheduler, run.request.workers
    return {
        "kvfabric_version": __version__,
        "name": run.request.name,
        "fleet": {
            **request_to_dict(run.request),
            **asdict(scheduler),
            "decode_num_blocks": run.fleet.decode.scheduler.num_blocks,
            "async_scheduling": workers.async_scheduling,
            "data_parallel": workers.num_data_ranks,
            "handoff": _handoff(run.request.handoff) if workers.num_decode else None,
        },
        "workload": workload_to_dict(run.request),
        "step_time_source": str(run.fleet.model.source),
        "step_time_error": stated_error(run.fleet.model),
        "design": design_to_dict(run.result),
        "engine_ttft": asdict(run.engine_ttft),
        "itl": asdict(run.itl),
        "num_recomputed_tokens": run.num_recomputed_tokens,
        "num_iterations": run.num_iterations,
        "workers": [
            {**asdict(use), "utilization": round(use.utilization, 6)} for use in run.workers
        ],
        "comparisons": [_comparison(comparison) for comparison in run.comparisons],
        "verdicts": [
            {"topic": verdict.topic, "finding": verdict.finding, "text": verdict.text}
            for verdict in verdicts
        ],
        "notes": list(run.notes),
        "not_modelled": list(not_modelled(run.request)),
    }


def _handoff(handoff: HandoffPolicy) -> dict[str, object]:
    return {
        "mode": handoff.mode.value,
        "layer_groups": handoff.num_layer_groups,
        "reserve": handoff.reservation.value,
        "on_expiry": handoff.on_expiry.value,
        "max_restarts": handoff.max_restarts,
        "senders": handoff.senders.value,
    }


def _comparison(comparison: MeasuredComparison) -> dict[str, object]:
    return {
        "first": comparison.first,
        "last": comparison.last,
        "why": comparison.why,
        "num_requests": comparison.num_requests,
        "figures": [
            {
                "name": figure.name,
                "measured_ns": figure.measured_ns,
                "simulated_ns": figure.simulated_ns,
                "error": None if figure.error is None else round(figure.error, 6),
            }
            for figure in comparison.figures
        ],
    }
