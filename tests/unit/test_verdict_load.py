"""What the verdict says about closed loops, growing queues and the room in decode pools."""

from dataclasses import replace

import pytest
from plan_requests import plan_request

from kvfabric.metrics.summary import summarize
from kvfabric.plan.compare import Comparison, DesignResult, DesignRun, compare
from kvfabric.plan.load_state import LoadState, Pressure
from kvfabric.plan.verdict import Verdict, judge
from kvfabric.protocol.record import Outcome, RequestRecord

MS = 1_000_000
COMPARED = compare(plan_request(fabrics=("roft",), policies=("ecmp",)))


def finished(request_id: int, *, blocks_ms: int, num_preemptions: int) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        outcome=Outcome.FINISHED,
        arrival_ns=0,
        routed_ns=0,
        prefill_start_ns=0,
        prefill_end_ns=100 * MS,
        reserved_ns=(100 + blocks_ms) * MS,
        transferred_ns=(100 + blocks_ms) * MS,
        first_token_ns=(100 + blocks_ms) * MS,
        finished_ns=900 * MS,
        num_prompt_tokens=100,
        num_output_tokens=11,
        num_preemptions=num_preemptions,
    )


def with_load(load: LoadState) -> Comparison:
    design = COMPARED.designs[0]
    return replace(COMPARED, designs=(replace(design, run=replace(design.run, load=load)),))


def load_verdict(load: LoadState) -> Verdict:
    (verdict,) = [v for v in judge(with_load(load)) if v.topic == "load"]
    return verdict


def test_closed_loop_is_told_by_its_users() -> None:
    load = LoadState(
        pressure=Pressure.SATURATED,
        bottleneck="prefill",
        waiting_share=0.9,
        growth=5.0,
        num_users=150,
        knee_users=84.3,
    )
    verdict = load_verdict(load)
    assert verdict.finding == "saturated"
    assert "about 84 of the 150 users keep it busy" in verdict.text
    assert "without end" not in verdict.text


@pytest.mark.parametrize(
    ("queue_growth_per_s", "is_told"), [(2.5, True), (0.0, False), (-1.0, False)]
)
def test_overload_tells_how_fast_the_queue_grows(
    queue_growth_per_s: float, *, is_told: bool
) -> None:
    load = LoadState(
        pressure=Pressure.OVERLOADED,
        bottleneck="prefill",
        waiting_share=0.9,
        growth=5.0,
        arrivals_per_s=10.0,
        queue_growth_per_s=queue_growth_per_s,
    )
    text = load_verdict(load).text
    assert ("the queue grows by 2.5 of 10 requests/s" in text) is is_told


def headroom_verdicts(
    max_num_seqs: int, *, blocks_ms: int = 0, num_preemptions: int = 0
) -> list[Verdict]:
    scheduler = replace(
        COMPARED.fleet.scheduler, num_blocks=501, max_num_seqs=max_num_seqs, max_model_len=4_000
    )
    records = [finished(i, blocks_ms=blocks_ms, num_preemptions=num_preemptions) for i in range(9)]
    design: DesignResult = COMPARED.designs[0]
    run: DesignRun = replace(design.run, summary=summarize(records, 16))
    comparison = replace(
        COMPARED,
        fleet=replace(COMPARED.fleet, scheduler=scheduler),
        designs=(replace(design, run=run),),
    )
    return [v for v in judge(comparison) if v.topic == "decode_headroom"]


SEQ_TOKENS = sum(
    spec.num_prompt_tokens + spec.num_output_tokens for spec in COMPARED.request.workload.requests
) / len(COMPARED.request.workload.requests)
FITTING = 500 * 64 // round(SEQ_TOKENS)  # sequences of mean length in 500 blocks of 64 tokens


@pytest.mark.parametrize(("blocks_ms", "num_preemptions"), [(10, 0), (0, 1)])
def test_batch_that_fills_the_pool_is_told_if_it_cost_time(
    blocks_ms: int, num_preemptions: int
) -> None:
    (verdict,) = headroom_verdicts(FITTING, blocks_ms=blocks_ms, num_preemptions=num_preemptions)
    assert verdict.finding == "none"
    assert "leaves no room for hand-offs in flight" in verdict.text


def test_batch_that_fills_the_pool_is_not_told_if_nobody_noticed() -> None:
    assert headroom_verdicts(FITTING, blocks_ms=5) == []


def test_batch_with_headroom_is_not_told() -> None:
    assert headroom_verdicts(FITTING - 1, blocks_ms=50, num_preemptions=3) == []
