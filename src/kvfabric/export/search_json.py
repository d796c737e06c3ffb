"""A search as plain JSON values: everything the text shows, and more."""

from collections.abc import Sequence

from kvfabric import __version__
from kvfabric.export.plan_json import plan_not_modelled, workload_to_dict
from kvfabric.metrics.summary import summary_to_dict
from kvfabric.plan.bom import Cost
from kvfabric.plan.request import FabricChoice
from kvfabric.plan.search.result import Evaluated, SearchResult
from kvfabric.plan.search.shape import FabricOption, Shape
from kvfabric.plan.search.space import SearchRequest
from kvfabric.plan.verdict import SAME_WITHIN, Verdict

SEARCH_NOT_MODELLED = (
    "in the price: front-end, storage and management networks, power, space, support",
    "a fabric for workers that do both or that stand in one server: they are priced without one",
    "the links of a server: a hand-off within one takes no longer than its set-up",
)


def search_not_modelled(request: SearchRequest) -> tuple[str, ...]:
    """Return what the search and its runs leave out."""
    return (*SEARCH_NOT_MODELLED, *plan_not_modelled(request.base))


def search_to_dict(result: SearchResult, findings: Sequence[Verdict]) -> dict[str, object]:
    """Return the whole answer; equal searches give equal values."""
    request = result.request
    positions = {id(design): idx for idx, design in enumerate(result.found)}
    return {
        "kvfabric_version": __version__,
        "name": request.base.name,
        "search": _request(request),
        "workload": workload_to_dict(request.base),
        "findings": [
            {"topic": one.topic, "finding": one.finding, "text": one.text} for one in findings
        ],
        "winner": None if result.winner is None else 0,
        "designs": [_design(design) for design in result.found],
        "pareto_front": [positions[id(design)] for design in result.front],
        "near_misses": [_design(design) for design in result.near_misses],
        "counts": {
            "fleets": result.num_shapes,
            "designs": result.num_designs,
            "met_targets": len(result.found),
            "pruned": sum(one.count for one in result.pruned),
            "simulations": result.num_runs,
            "simulations_of_whole_load": result.num_whole_runs,
        },
        "pruned": [
            {
                "stage": one.reason.stage,
                "reason": one.reason.key,
                "text": one.reason.value,
                "count": one.count,
                "example": one.example,
            }
            for one in result.pruned
        ],
        "same_within": SAME_WITHIN,
        "notes": list(result.notes),
        "not_modelled": list(search_not_modelled(request)),
    }


def _request(request: SearchRequest) -> dict[str, object]:
    base, space = request.base, request.space
    return {
        "model": base.model_name,
        "gpu": None if base.gpu is None else base.gpu.name,
        "slo": {"ttft_ns": base.slo.ttft_ns, "tpot_ns": base.slo.tpot_ns},
        "attainment": request.attainment,
        "may_miss": request.num_allowed,
        "cost_limit": request.cost_limit,
        "num_gpus": list(space.num_gpus),
        "tp": list(space.tps),
        "decode_tp": list(space.decode_tps),
        "ratios": [f"{prefill}P{decode}D" for prefill, decode in space.ratios],
        "modes": [mode.value for mode in space.modes],
        "fabrics": [_fabric(choice) for choice in space.fabrics],
        "nic_rates_bps": list(space.nic_rates_bps),
        "switch_capacities_bps": list(space.switch_capacities_bps),
        "load_balancing": list(space.load_balancing),
        "seed": base.seed,
    }


def _fabric(choice: FabricChoice) -> dict[str, object]:
    return {
        "kind": choice.kind,
        "label": choice.label,
        "radix": choice.radix,
        "tiers": choice.num_tiers,
        "oversubscription": choice.oversubscription,
        "shape": dict(choice.shape),
        "failures": list(choice.failures),
    }


def _design(design: Evaluated) -> dict[str, object]:
    outcome = design.outcome
    load, link = outcome.load, outcome.busiest_link
    return {
        "name": f"{design.shape.name} {design.network_name}",
        **_shape(design.shape),
        "fabric": None if design.option is None else _option(design.option),
        "meets_targets": design.meets,
        "cost": _cost(design.cost.total),
        "gpu_cost": _cost(design.cost.gpus),
        "fabric_cost": None if design.cost.fabric is None else _cost(design.cost.fabric),
        "ideal_network_ttft_p99_ns": design.ideal_ttft_p99_ns,
        "pressure": None if load is None else load.pressure.value,
        "busiest_link": None
        if link is None
        else {"name": link[0], "utilization": round(link[1], 6)},
        "log_digest": outcome.log_digest,
        **summary_to_dict(design.summary),
    }


def _shape(shape: Shape) -> dict[str, object]:
    return {
        "mode": "aggregated" if shape.is_aggregated else "disaggregated",
        "prefill_workers": shape.num_prefill,
        "decode_workers": shape.num_decode,
        "tp": shape.tp,
        "decode_tp": shape.decode_tp,
        "prefill_cp": shape.prefill_cp,
    }


def _option(option: FabricOption) -> dict[str, object]:
    return {
        "label": option.label,
        "kind": option.choice.kind,
        "radix": option.choice.radix,
        "nic_rate_bps": option.nic_rate_bps,
        "switch_capacity_bps": option.switch_capacity_bps,
        "load_balancing": option.load_balancing,
    }


def _cost(cost: Cost) -> dict[str, float]:
    return {
        "low_usd": round(cost.low_usd, 2),
        "typical_usd": round(cost.typical_usd, 2),
        "high_usd": round(cost.high_usd, 2),
    }
