"""Public cases of the ratio of prefill to decode workers, as the search sees them.

Sources: sgl-project/sglang-omni pull request 1599 (2026-08-24, "1P:1D is the worst ratio, not a
neutral starting point"), ai-dynamo/dynamo pull request 9294 (2026-05-07, scaling down must look at
what is left), vllm-project/vllm pull request 41834 (2026-07-15, "disagg was a net regression vs
monolithic TP=8").
"""

from dataclasses import replace

import pytest
from plan_requests import plan_request

from kvfabric.metrics.latency import Slo
from kvfabric.plan.engines import build_fleet
from kvfabric.plan.request import FabricChoice, WorkerRequest
from kvfabric.plan.search.bounds import Bounds, Excess
from kvfabric.plan.search.pruned import Reason
from kvfabric.plan.search.search import search
from kvfabric.plan.search.shape import Shape, shape_request
from kvfabric.plan.search.space import Mode, SearchRequest, SearchSpace
from kvfabric.plan.simulate import simulate
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape
from kvfabric.protocol.workload import RequestSpec, Workload

MS = 1_000_000
NUM_STEPS = 220


class FixedSteps:
    """58 ms for a prompt and 10 ms for a decode step, whatever else is in it."""

    source = Source(SourceKind.PUBLISHED, "sglang-omni pull request 1599: 58 ms, 2.2 s", "2026-08")

    def mixed_step_ns(self, shape: StepShape) -> int:
        return 58 * MS * len(shape.prefill) + (10 * MS if shape.num_decodes else 0)

    def decode_run_ns(self, num_decodes: int, context_tokens: int, num_iterations: int) -> int:
        return self.mixed_step_ns(StepShape(num_decodes, context_tokens)) * num_iterations

    def iterations_until(
        self, num_decodes: int, context_tokens: int, elapsed_ns: int, max_iterations: int
    ) -> int:
        step_ns = self.mixed_step_ns(StepShape(num_decodes, context_tokens)) or 1
        return min(max(1, -(-elapsed_ns // step_ns)), max_iterations)


def closed_loop(num_users: int, per_user: int) -> Workload:
    """Return users who begin one after the other and ask again as soon as they have an answer."""
    specs = tuple(
        RequestSpec(
            request_id=i,
            arrival_ns=i * 2_258 * MS // num_users,
            num_prompt_tokens=1_000,
            num_output_tokens=NUM_STEPS,
            after_request_id=i - num_users if i >= num_users else None,
        )
        for i in range(num_users * per_user)
    )
    return Workload(
        name="closed", requests=specs, hash_block_tokens=0, num_rows=len(specs), num_users=num_users
    )


def space_of(**changes: object) -> SearchSpace:
    space = SearchSpace(
        num_gpus=(8,),
        tps=(1,),
        fabrics=(FabricChoice(kind="clos", radix=16),),
        nic_rates_bps=(400 * 10**9,),
        load_balancing=("assigned",),
    )
    return replace(space, **changes)  # type: ignore[arg-type]


def test_share_of_prefill_work_and_its_utilization_at_one_to_one() -> None:
    """58 ms of 2,258 ms is 2.6 %; 10.1 % is the use of a prefill worker behind four at a time.

    That four is our own reading: the case states times and utilization, and not the load.
    """
    workers = WorkerRequest(num_prefill=4, num_decode=4, tp=1, max_num_seqs=4)
    plan = plan_request(workers=workers, workload=closed_loop(4 * 4, 50))
    run = simulate(replace(plan, step_model=FixedSteps()))
    split, e2e_ns = run.summary.ttft_split_mean, run.summary.e2e.mean_ns
    assert split is not None
    assert e2e_ns is not None
    assert split.prefill_compute_ns / e2e_ns == pytest.approx(0.026, rel=0.05)
    used = sum(use.utilization for use in run.workers[:4]) / 4
    assert used == pytest.approx(0.101, rel=0.05)


def test_one_to_one_is_not_what_the_search_finds() -> None:
    """Of eight workers with room for four each, 28 users need seven to decode."""
    workers = WorkerRequest(num_prefill=4, num_decode=4, tp=1, max_num_seqs=4)
    slo = Slo(ttft_ns=500 * MS)
    plan = plan_request(workers=workers, workload=closed_loop(28, 10), slo=slo)
    request = SearchRequest(
        base=plan,
        space=space_of(modes=(Mode.DISAGGREGATED,)),
        attainment=0.9,
        step_models={1: FixedSteps()},
    )
    assert [design.shape.name for design in search(request).found] == ["1P7D TP1"]


def kv_excess(num_decode: int, num_blocks: int) -> Excess | None:
    """Return the bound that decode workers with so many blocks break under a steady load."""
    specs = tuple(
        RequestSpec(
            request_id=i, arrival_ns=i * 8 * MS, num_prompt_tokens=6_400, num_output_tokens=400
        )
        for i in range(4_000)
    )
    load = Workload(name="steady", requests=specs, hash_block_tokens=0, num_rows=len(specs))
    workers = WorkerRequest(num_prefill=1, num_decode=1, tp=8, num_blocks=num_blocks)
    plan = replace(
        plan_request(workers=workers, workload=load, slo=Slo(ttft_ns=9_000 * MS, tpot_ns=50 * MS)),
        num_context_tokens=6_800,
    )
    # prefill aside: with so many workers it is no limit
    shape = Shape(num_prefill=1_000, num_decode=num_decode, tp=8, decode_tp=8)
    request = SearchRequest(base=plan, space=space_of())
    return Bounds(request).excess(shape, build_fleet(shape_request(plan, shape)))


def test_one_of_two_decode_workers_used_to_70_percent_cannot_go() -> None:
    """What two hold at 0.7 is 1.4 of what one can: 2 <-> 1 would oscillate."""
    start = kv_excess(1, 301)
    assert start is not None
    assert start.reason is Reason.KV_CAPACITY
    num_blocks = 1 + round(300 * start.factor / 1.4)
    one = kv_excess(1, num_blocks)
    assert one is not None
    assert (one.reason, round(one.factor, 2)) == (Reason.KV_CAPACITY, 1.4)
    assert kv_excess(2, num_blocks) is None


def test_one_large_worker_wins_where_halves_are_too_slow() -> None:
    """1P1D of TP4 against one worker of TP8 on the same eight GPUs: prompts take twice as long."""
    specs = tuple(
        RequestSpec(
            request_id=i, arrival_ns=i * 400 * MS, num_prompt_tokens=16_000, num_output_tokens=20
        )
        for i in range(30)
    )
    load = Workload(name="long prompts", requests=specs, hash_block_tokens=0, num_rows=30)
    plan = replace(
        plan_request(workload=load, slo=Slo(ttft_ns=130 * MS, tpot_ns=50 * MS)),
        num_context_tokens=17_000,
    )
    result = search(SearchRequest(base=plan, space=space_of(tps=(4, 8))))
    assert result.winner is not None
    assert result.winner.shape.name == "1 x TP8"
    assert result.cheapest(Mode.DISAGGREGATED) is None
