"""A comparison as plain JSON values: everything the text shows, and more."""

from collections.abc import Mapping
from dataclasses import asdict

from kvfabric import __version__
from kvfabric.export.limits import (
    flows_not_modelled,
    not_asked_for,
    not_failing,
    stated_error,
)
from kvfabric.metrics.summary import summary_to_dict
from kvfabric.plan.bom import bom_to_dict
from kvfabric.plan.compare import Comparison, DesignResult, FabricFacts
from kvfabric.plan.pool import PoolRequest
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.sizing import sizing_to_dict
from kvfabric.plan.verdict import SAME_WITHIN, Verdict
from kvfabric.serving.kv_pool import PoolCounts

NOT_MODELLED = (
    "what transports lose: a lone hand-off fills its NICs (a published system reached 74 %)",
    "expert parallelism, in the roofline: ranks share every expert",
    "propagation and switch latency (microseconds beside transfers of milliseconds)",
    "speculative decoding, LoRA",
    "other traffic on the fabric (collectives, storage)",
)


def plan_not_modelled(request: PlanRequest) -> tuple[str, ...]:
    """Return what the runs of a plan leave out."""
    return (
        flows_not_modelled(request.network),
        *NOT_MODELLED,
        *not_asked_for(request),
        not_failing(request),
    )


def comparison_to_dict(comparison: Comparison, verdicts: tuple[Verdict, ...]) -> dict[str, object]:
    """Return the whole answer; equal plans give equal values."""
    fabrics: dict[str, FabricFacts] = {}
    for design in comparison.designs:
        if design.fabric is not None:
            fabrics.setdefault(design.fabric.label, design.fabric)
    aggregated, sizing = comparison.aggregated, comparison.fleet.sizing
    return {
        "kvfabric_version": __version__,
        "name": comparison.request.name,
        "plan": request_to_dict(comparison.request),
        "sizing": None if sizing is None else sizing_to_dict(sizing),
        "workload": workload_to_dict(comparison.request),
        "step_time_source": str(comparison.fleet.model.source),
        "step_time_error": stated_error(comparison.fleet.model),
        "fabrics": {
            label: {**fabric.report, "bill_of_materials": bom_to_dict(fabric.bom)}
            for label, fabric in fabrics.items()
        },
        "designs": [design_to_dict(design) for design in comparison.designs],
        "aggregated": None if aggregated is None else design_to_dict(aggregated),
        "verdicts": [_verdict(verdict) for verdict in verdicts],
        "same_within": SAME_WITHIN,
        "notes": list(comparison.fleet.notes),
        "not_modelled": list(plan_not_modelled(comparison.request)),
    }


def request_to_dict(request: PlanRequest) -> dict[str, object]:
    """Return the fleet, its fabric settings and targets."""
    workers, network = request.workers, request.network
    return {
        "model": request.model_name,
        "gpu": None if request.gpu is None else request.gpu.name,
        "num_gpus": workers.num_gpus,
        "prefill_workers": workers.num_prefill,
        "decode_workers": workers.num_decode,
        "tp": workers.tp,
        "decode_tp": workers.decode_gpus,
        "prefill_cp": workers.prefill_cp,
        "cp_exchange": workers.cp_exchange.value if workers.prefill_cp > 1 else None,
        "nic_rate_bps": network.nic_rate_bps,
        "queue_pairs": network.queue_pairs,
        "placement": network.placement.value,
        "flow_engine": network.engine,
        "pfc": asdict(network.pfc) if network.has_pauses else None,
        "routing": request.routing.value,
        "decode_routing": request.decode_choice.value if workers.num_decode else None,
        "signal_interval_ns": request.signal_interval_ns,
        "handoff_deadline_ns": request.handoff_deadline_ns,
        "slo": {"ttft_ns": request.slo.ttft_ns, "tpot_ns": request.slo.tpot_ns},
        "kv_pool": _pool_settings(request.kv_pool),
        "failures": [asdict(failure) for failure in request.failures],
        "seed": request.seed,
    }


def workload_to_dict(request: PlanRequest) -> dict[str, object]:
    """Return what the load is, and the rows of its file that were skipped."""
    workload = request.workload
    return {
        "name": workload.name,
        "num_rows": workload.num_rows,
        "num_requests": len(workload.requests),
        "hash_block_tokens": workload.hash_block_tokens,
        "bad_rows": [
            {"line": row.line, "reason": row.reason, "text": row.text} for row in workload.bad_rows
        ],
    }


def design_to_dict(design: DesignResult) -> dict[str, object]:
    """Return the parts and the figures of one design."""
    return {
        "name": design.name,
        "fabric": None if design.fabric is None else design.fabric.label,
        "load_balancing": design.load_balancing,
        **_parts(design.fabric),
        "load": {
            "pressure": design.load.pressure.value,
            "bottleneck": design.load.bottleneck,
            "waiting_share": round(design.load.waiting_share, 6),
            "lost_share": round(design.load.lost_share, 6),
            "growth": round(design.load.growth, 6),
        },
        "busiest_links": [
            {
                "name": link.name,
                "carried_bytes": link.carried_bytes,
                "utilization": round(link.utilization, 6),
            }
            for link in design.run.busiest_links
        ],
        "num_flows": design.run.num_flows,
        "deadlock": None if design.deadlock is None else design.deadlock.as_dict(),
        "back_pressure": None if design.run.pressure is None else asdict(design.run.pressure),
        "num_events": design.run.num_events,
        "num_restarts": design.run.num_restarts,
        "kv_pool": None if design.run.pool is None else pool_to_dict(design.run.pool),
        "log_digest": design.run.log_digest,
        **summary_to_dict(design.summary),
    }


def pool_to_dict(counts: PoolCounts) -> dict[str, object]:
    """Return where prompt tokens were found and what was moved for it."""
    return {**asdict(counts), "hit_rate": round(float(counts.hit_rate), 6)}


def _pool_settings(pool: PoolRequest | None) -> dict[str, object] | None:
    if pool is None:
        return None
    return {
        "host": asdict(pool.host),
        "storage": None if pool.storage is None else asdict(pool.storage),
        "policy": pool.placement.value,
        "fetch": pool.fetch_mode.value,
        "write": pool.write_policy.value,
        "hand_back": pool.hands_back,
        "lag_ns": pool.lag_ns,
        "fetch_stripes": pool.fetch_stripes,
    }


def _parts(fabric: FabricFacts | None) -> Mapping[str, object]:
    if fabric is None:
        return {}
    cost = fabric.bom.cost()
    counted = {
        "optics": fabric.bom.count("optic"),
        "links_copper": fabric.bom.count("copper"),
        "links_fibre": fabric.bom.count("fibre"),
    }
    keys = ("switches", "links", "switch_hops_max")
    return (
        {key: fabric.report[key] for key in keys}
        | counted
        | {
            "cost_low_usd": round(cost.low_usd, 2),
            "cost_typical_usd": round(cost.typical_usd, 2),
            "cost_high_usd": round(cost.high_usd, 2),
        }
    )


def _verdict(verdict: Verdict) -> dict[str, str]:
    return {"topic": verdict.topic, "finding": verdict.finding, "text": verdict.text}
