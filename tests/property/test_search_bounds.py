"""A design that meets its targets is never ruled out by a bound, however tight the targets are."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from plan_requests import HASH_TOKENS, plan_request

from kvfabric.catalog.models import model_config
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.metrics.latency import Slo, meets_slo, tpot_ns, ttft_ns
from kvfabric.plan.fleet import build_cluster, build_fleet
from kvfabric.plan.request import PlanRequest, WorkerRequest
from kvfabric.plan.search.bounds import Bounds
from kvfabric.plan.search.ideal_network import IdealNetwork
from kvfabric.plan.search.pruned import Reason
from kvfabric.plan.search.shape import Shape, shape_request
from kvfabric.plan.search.space import SearchRequest, SearchSpace
from kvfabric.plan.unrouted import NoNetwork
from kvfabric.protocol.record import RequestRecord
from kvfabric.protocol.workload import RequestSpec, Workload

MS = 1_000_000
MODELS = ("llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "gemma-3-12b")  # dense, MoE, windows


@st.composite
def loads(draw: st.DrawFn) -> Workload:
    """Draw bursts and pauses, sessions, openings that are shared, short and long requests."""
    now_ns, specs, last_of_session = 0, list[RequestSpec](), dict[int, int]()
    gap = draw(st.sampled_from([0, 2 * MS, 40 * MS, 300 * MS]))
    longest = draw(st.sampled_from([300, 3_000, 20_000]))
    shares = draw(st.booleans())
    for i in range(draw(st.integers(3, 30))):
        prompt = draw(st.integers(1, longest))
        session = draw(st.integers(0, 5)) if draw(st.booleans()) else 100 + i
        before = last_of_session.get(session)
        last_of_session[session] = i
        now_ns += draw(st.sampled_from([0, gap]))
        blocks = prompt // HASH_TOKENS
        group = draw(st.integers(0, 1)) if shares else i
        specs.append(
            RequestSpec(
                request_id=i,
                arrival_ns=now_ns,
                num_prompt_tokens=prompt,
                num_output_tokens=draw(st.sampled_from([1, 2, 30, 400])),
                block_hashes=tuple(100_000 * group + k for k in range(blocks)),
                after_request_id=before,
                think_ns=draw(st.sampled_from([0, 50 * MS])),
            )
        )
    return Workload(
        name="drawn", requests=tuple(specs), hash_block_tokens=HASH_TOKENS, num_rows=len(specs)
    )


SHAPES = st.builds(
    lambda prefill, decode, tp, decode_tp: Shape(
        num_prefill=prefill, num_decode=decode, tp=tp, decode_tp=decode_tp if decode else tp
    ),
    prefill=st.integers(1, 3),
    decode=st.integers(0, 2),
    tp=st.sampled_from([2, 4, 8]),
    decode_tp=st.sampled_from([2, 4, 8]),
)
FEW_BLOCKS = st.sampled_from([None, 400, 900])


def base_plan(workload: Workload, model: str, num_blocks: int | None, budget: int) -> PlanRequest:
    geometry = geometry_from_config(model_config(model), where=model)
    workers = WorkerRequest(
        num_prefill=1,
        num_decode=1,
        tp=8,
        num_blocks=num_blocks,
        decode_num_blocks=num_blocks,
        max_num_seqs=min(256, budget),
        max_num_batched_tokens=budget,
    )
    plan = plan_request(workers=workers, workload=workload)
    return replace(plan, geometry=geometry, model_name=model, num_context_tokens=100)


def search_of(plan: PlanRequest, shape: Shape, attainment: float) -> SearchRequest:
    space = SearchSpace(
        num_gpus=(shape.num_gpus,),
        tps=(shape.tp,),
        fabrics=(),
        nic_rates_bps=(),
        load_balancing=(),
    )
    return SearchRequest(base=plan, space=space, attainment=attainment)


def records_of(plan: PlanRequest, shape: Shape) -> Sequence[RequestRecord]:
    """Return what a shape does with the load where nothing but its NICs slows a hand-off."""
    request = shape_request(plan, shape)
    network = NoNetwork() if shape.is_aggregated else IdealNetwork(400 * 10**9)
    cluster = build_cluster(
        request, build_fleet(request), network, is_disaggregated=not shape.is_aggregated
    )
    return cluster.simulation.run().records


def least(values: Sequence[int | None], num_allowed: int) -> int | None:
    """Return the tightest target that all but ``num_allowed`` of the values meet."""
    known = sorted(value for value in values if value is not None)
    spared = num_allowed - (len(values) - len(known))
    return known[len(known) - 1 - max(0, spared)] if known else None


@settings(max_examples=150)
@given(
    workload=loads(),
    shape=SHAPES,
    model=st.sampled_from(MODELS),
    num_blocks=FEW_BLOCKS,
    attainment=st.sampled_from([1.0, 0.9]),
    budget=st.sampled_from([512, 8192]),
)
def test_design_that_just_meets_its_targets_is_not_ruled_out(
    workload: Workload,
    shape: Shape,
    model: str,
    num_blocks: int | None,
    attainment: float,
    budget: int,
) -> None:
    plan = base_plan(workload, model, num_blocks, budget)
    records = records_of(plan, shape)
    ttft = least([ttft_ns(record) for record in records], 0)
    tpot = least([tpot_ns(record) for record in records], 0)
    first = search_of(plan, shape, attainment)
    if first.num_allowed:
        ttft = least([ttft_ns(record) for record in records], first.num_allowed)
    if ttft is None:
        return  # nothing was served
    slo = Slo(ttft_ns=max(1, ttft), tpot_ns=tpot)
    search = search_of(replace(plan, slo=slo), shape, attainment)
    if sum(not meets_slo(record, slo) for record in records) > search.num_allowed:
        return  # some were rejected: no targets could be met
    fleet = build_fleet(shape_request(search.base, shape))
    assert Bounds(search).excess(shape, fleet) is None


@settings(max_examples=60)
@given(workload=loads(), shape=SHAPES, share=st.sampled_from([0.02, 0.2, 0.5]))
def test_design_that_is_ruled_out_misses_its_targets(
    workload: Workload, shape: Shape, share: float
) -> None:
    plan = base_plan(workload, "llama-3.1-8b", None, 8192)
    records = records_of(plan, shape)
    ttft = least([ttft_ns(record) for record in records], 0)
    assert ttft is not None
    slo = Slo(ttft_ns=max(1, round(share * ttft)), tpot_ns=20 * MS)
    search = search_of(replace(plan, slo=slo), shape, 0.9)
    excess = Bounds(search).excess(shape, build_fleet(shape_request(search.base, shape)))
    if excess is not None:
        num_missed = sum(not meets_slo(record, slo) for record in records)
        assert num_missed > search.num_allowed, excess


def test_every_bound_can_break() -> None:
    """Each bound takes out a design that needs it, so that the laws above are not empty."""
    broken: set[Reason] = set()
    for prompt, output, count, blocks, ttft_ms, tpot_ms, decode in (
        (30_000, 10, 20, 100, 10_000, 100, 0),  # longer than a worker holds
        (20_000, 2, 20, None, 20, 100, 1),  # too slow alone
        (100, 300, 20, None, 1_000, 1, 1),
        (20_000, 2, 400, None, 1_000, 50, 1),  # too much to compute
        (50, 2_000, 4_000, None, 60_000, 5, 1),
        (5_000, 300, 200, 200, 20_000, 8, 1),  # too much to hold
        (3_000, 300, 1_000, None, 8_000, 5, 0),
    ):
        specs = tuple(
            RequestSpec(
                request_id=i, arrival_ns=i, num_prompt_tokens=prompt, num_output_tokens=output
            )
            for i in range(count)
        )
        load = Workload(name="alike", requests=specs, hash_block_tokens=0, num_rows=count)
        plan = base_plan(load, "llama-3.1-8b", blocks, 8192)
        shape = Shape(num_prefill=1, num_decode=decode, tp=2, decode_tp=2)
        slo = Slo(ttft_ns=ttft_ms * MS, tpot_ns=tpot_ms * MS)
        search = search_of(replace(plan, slo=slo), shape, 0.9)
        excess = Bounds(search).excess(shape, build_fleet(shape_request(search.base, shape)))
        assert excess is not None, (prompt, output)
        broken.add(excess.reason)
    assert broken == {
        Reason.TOO_LONG,
        Reason.TTFT_TOO_LONG_ALONE,
        Reason.TPOT_TOO_LONG_ALONE,
        Reason.PREFILL_CAPACITY,
        Reason.DECODE_CAPACITY,
        Reason.KV_CAPACITY,
        Reason.TOTAL_CAPACITY,
    }
