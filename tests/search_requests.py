"""Small searches, and the answer to them without a single bound or shortcut."""

from dataclasses import dataclass, replace

from plan_requests import GBIT, plan_request

from kvfabric.metrics.latency import Slo
from kvfabric.plan.compare import build_fabric, design_on
from kvfabric.plan.fleet import build_fleet
from kvfabric.plan.request import FabricChoice, check_fleet
from kvfabric.plan.search.costs import FabricCosts, gpu_cost
from kvfabric.plan.search.evaluate import Outcome, run_design
from kvfabric.plan.search.ideal_network import IdealNetwork
from kvfabric.plan.search.open_shapes import needs_fabric
from kvfabric.plan.search.shape import FabricOption, Shape, shape_request, with_fabric
from kvfabric.plan.search.space import SearchRequest, SearchSpace, fabric_options, shapes
from kvfabric.plan.unrouted import NoNetwork
from kvfabric.protocol.workload import Workload

MS = 1_000_000


def small_search(
    *,
    workload: Workload | None = None,
    slo: Slo | None = None,
    num_gpus: tuple[int, ...] = (8, 16),
    tps: tuple[int, ...] = (4, 8),
    attainment: float = 0.9,
    cost_limit: float = 1.25,
    space: SearchSpace | None = None,
) -> SearchRequest:
    """Return a search over one or two servers, a Clos and a ZCube."""
    base = plan_request(workload=workload, slo=slo)
    return SearchRequest(
        base=replace(base, num_context_tokens=2_500),
        space=space
        or SearchSpace(
            num_gpus=num_gpus,
            tps=tps,
            fabrics=(FabricChoice(kind="clos", radix=16), FabricChoice(kind="zcube", radix=16)),
            nic_rates_bps=(100 * GBIT, 400 * GBIT),
            load_balancing=("ecmp", "assigned"),
        ),
        attainment=attainment,
        cost_limit=cost_limit,
    )


@dataclass(frozen=True)
class Tried:
    shape: Shape
    option: FabricOption | None
    usd: float
    outcome: Outcome


def brute_force(request: SearchRequest) -> list[Tried]:
    """Return every design that can be built, each with the whole load."""
    costs = FabricCosts(fabric_options(request.space), request.base.price_book)
    tried: list[Tried] = []
    for shape, _ in shapes(request.space):
        plan = shape_request(request.base, shape)
        check_fleet(plan)
        fleet = build_fleet(plan)
        assert plan.gpu is not None
        gpu_usd = gpu_cost(plan.gpu, shape.num_gpus, plan.price_book).typical_usd
        if not needs_fabric(shape, plan):
            inside = NoNetwork() if shape.is_aggregated else IdealNetwork(400 * GBIT)
            outcome = run_design(plan, fleet, inside, lambda _: None, most_missed=None)
            tried.append(Tried(shape, None, gpu_usd, outcome))
            continue
        for option, cost in costs.buildable(shape.num_gpus):
            joined = with_fabric(plan, option)
            facts = build_fabric(joined, option.choice)
            network = design_on(joined, facts, option.load_balancing).network
            outcome = run_design(plan, fleet, network, lambda _: None, most_missed=None)
            tried.append(Tried(shape, option, gpu_usd + cost.typical_usd, outcome))
    return tried


def meeting(request: SearchRequest, tried: list[Tried]) -> list[Tried]:
    """Return the designs that meet the targets, cheapest first, then by TTFT p99."""
    good = [one for one in tried if one.outcome.num_missed <= request.num_allowed]
    return sorted(good, key=lambda one: (one.usd, ttft_p99(one.outcome)))


def ttft_p99(outcome: Outcome) -> int:
    assert outcome.summary is not None
    assert outcome.summary.ttft.p99_ns is not None
    return outcome.summary.ttft.p99_ns
