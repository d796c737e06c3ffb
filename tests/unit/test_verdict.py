"""The plan's findings, from made-up results of its designs."""

from dataclasses import replace

import pytest
from plan_requests import GBIT, plan_request

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.fabric.build import build_topology
from kvfabric.metrics.latency import Slo
from kvfabric.metrics.summary import summarize
from kvfabric.plan.bom import bill_of_materials
from kvfabric.plan.compare import Comparison, DesignResult, DesignRun, FabricFacts, compare
from kvfabric.plan.fleet import build_fleet
from kvfabric.plan.load_state import LoadState, Pressure
from kvfabric.plan.verdict import Verdict, judge
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.protocol.workload import BadRow

MS = 1_000_000
SLO = Slo(ttft_ns=200 * MS, tpot_ns=50 * MS)
REQUEST = plan_request(slo=SLO)
FLEET = build_fleet(REQUEST)
STABLE = LoadState(pressure=Pressure.STABLE, bottleneck="prefill", waiting_share=0.1, growth=1.0)


def facts_of(kind: str) -> FabricFacts:
    topology = build_topology(kind, 1024, nic_rate_bps=400 * GBIT)
    bom = bill_of_materials(topology, PRICE_BOOK)
    return FabricFacts(label=kind, topology=topology, report={}, bom=bom)


FACTS = {kind: facts_of(kind) for kind in ("roft", "zcube")}


def records_of(
    ttft_ms: int, count: int = 20, tpot_ms: int = 10, wire_ms: int = 1
) -> list[RequestRecord]:
    return [
        RequestRecord(
            request_id=i,
            outcome=Outcome.FINISHED,
            arrival_ns=i * MS,
            routed_ns=i * MS,
            prefill_start_ns=i * MS,
            prefill_end_ns=(i + ttft_ms - wire_ms) * MS,
            reserved_ns=(i + ttft_ms - wire_ms) * MS,
            transferred_ns=(i + ttft_ms) * MS,
            first_token_ns=(i + ttft_ms) * MS,
            finished_ns=(i + ttft_ms + 10 * tpot_ms) * MS,
            num_prompt_tokens=100,
            num_output_tokens=11,
        )
        for i in range(count)
    ]


def aborted(count: int, first_id: int = 0) -> list[RequestRecord]:
    return [
        RequestRecord(
            request_id=first_id + i,
            outcome=Outcome.ABORTED,
            arrival_ns=i * MS,
            finished_ns=(i + 9) * MS,
            num_prompt_tokens=100,
            num_output_tokens=0,
        )
        for i in range(count)
    ]


def design(
    kind: str | None,
    policy: str | None,
    records: list[RequestRecord],
    load: LoadState = STABLE,
) -> DesignResult:
    run = DesignRun(
        summary=summarize(records, 16, SLO),
        load=load,
        busiest_links=(),
        num_flows=0,
        num_events=0,
        log_digest="",
    )
    return DesignResult(
        name=f"{kind} {policy}" if kind else "aggregated",
        fabric=FACTS[kind] if kind else None,
        load_balancing=policy,
        run=run,
    )


def comparison(*designs: DesignResult, aggregated: DesignResult | None = None) -> Comparison:
    return Comparison(request=REQUEST, fleet=FLEET, designs=designs, aggregated=aggregated)


def of_topic(topic: str, *designs: DesignResult, aggregated: DesignResult | None = None) -> Verdict:
    (verdict,) = [v for v in judge(comparison(*designs, aggregated=aggregated)) if v.topic == topic]
    return verdict


# ---------------------------------------------------------------------- fabric and policies


def test_equal_fabrics_make_no_difference() -> None:
    verdict = of_topic(
        "fabric", design("roft", "ecmp", records_of(100)), design("zcube", "ecmp", records_of(100))
    )
    assert verdict.finding == "no_difference"
    assert "makes no difference" in verdict.text


@pytest.mark.parametrize(
    ("slower_ms", "finding"), [(103, "no_difference"), (106, "difference"), (200, "difference")]
)
def test_fabrics_differ_beyond_the_error_of_the_models(slower_ms: int, finding: str) -> None:
    verdict = of_topic(
        "fabric",
        design("roft", "ecmp", records_of(slower_ms)),
        design("zcube", "ecmp", records_of(100)),
    )
    assert verdict.finding == finding


def test_fabric_is_judged_by_the_better_policy_on_each() -> None:
    verdict = of_topic(
        "fabric",
        design("roft", "ecmp", records_of(180)),
        design("roft", "spray", records_of(100)),
        design("zcube", "ecmp", records_of(150)),
    )
    assert verdict.finding == "difference"
    assert verdict.text.startswith("roft spray has the lowest TTFT p99, 100 ms, 33% below")


def test_one_fabric_is_not_compared() -> None:
    verdict = of_topic("fabric", design("roft", "ecmp", records_of(100)))
    assert verdict.finding == "single"


def test_fabric_names_the_share_of_the_wire() -> None:
    verdict = of_topic("fabric", design("roft", "ecmp", records_of(100, wire_ms=25)))
    assert "the wire takes at most 25.0%" in verdict.text


def test_fabric_that_finished_nothing_does_not_win() -> None:
    verdict = of_topic(
        "fabric",
        design("roft", "ecmp", records_of(100)),
        design("zcube", "ecmp", aborted(20)),
    )
    assert not verdict.text.startswith("zcube")


def test_fleet_that_served_nothing_is_not_compared() -> None:
    verdicts = judge(
        comparison(design("roft", "ecmp", aborted(20)), design("zcube", "ecmp", aborted(20)))
    )
    assert verdicts[0].finding == "nothing_served"
    assert {verdict.topic for verdict in verdicts} == {"load", "lost"}


def test_policies_that_differ_are_told_by_fabric() -> None:
    verdicts = [
        v
        for v in judge(
            comparison(
                design("roft", "ecmp", records_of(200)),
                design("roft", "spray", records_of(100)),
                design("zcube", "ecmp", records_of(100)),
                design("zcube", "assigned", records_of(100)),
            )
        )
        if v.topic == "load_balancing"
    ]
    assert [v.finding for v in verdicts] == ["difference", "no_difference"]
    assert "On roft spray lowers TTFT p99 by 50% against ecmp" in verdicts[0].text


def test_policies_that_agree_make_no_difference() -> None:
    verdict = of_topic(
        "load_balancing",
        design("roft", "ecmp", records_of(100)),
        design("roft", "spray", records_of(101)),
    )
    assert verdict.finding == "no_difference"


def test_single_policy_is_not_judged() -> None:
    verdicts = judge(comparison(design("roft", "ecmp", records_of(100))))
    assert not [v for v in verdicts if v.topic == "load_balancing"]


# ---------------------------------------------------------------------- load and targets


def loaded(pressure: Pressure, waiting_share: float = 0.8, growth: float = 4.0) -> LoadState:
    return LoadState(
        pressure=pressure, bottleneck="decode blocks", waiting_share=waiting_share, growth=growth
    )


@pytest.mark.parametrize("pressure", Pressure)
def test_load_is_that_of_the_worst_design(pressure: Pressure) -> None:
    verdict = of_topic(
        "load",
        design("roft", "ecmp", records_of(100)),
        design("zcube", "ecmp", records_of(100), loaded(pressure)),
    )
    assert verdict.finding == pressure.value


def test_overload_names_the_design_the_bottleneck_and_the_growth() -> None:
    verdict = of_topic("load", design("roft", "ecmp", records_of(9), loaded(Pressure.OVERLOADED)))
    assert "roft ecmp" in verdict.text
    assert "80% of the time to first token is waiting, most of it for decode blocks" in verdict.text
    assert "4.0 times" in verdict.text


def test_stable_fleet_names_the_largest_share_of_waiting() -> None:
    verdict = of_topic(
        "load",
        design("roft", "ecmp", records_of(100), loaded(Pressure.STABLE, 0.1)),
        design("zcube", "ecmp", records_of(100), loaded(Pressure.STABLE, 0.4)),
    )
    assert "at most 40%" in verdict.text


@pytest.mark.parametrize(
    ("ttfts_ms", "finding"), [((100, 150), "met"), ((100, 300), "partly"), ((300, 400), "missed")]
)
def test_targets_are_met_partly_or_missed(ttfts_ms: tuple[int, int], finding: str) -> None:
    first, second = ttfts_ms
    verdict = of_topic(
        "slo",
        design("roft", "ecmp", records_of(first)),
        design("zcube", "ecmp", records_of(second)),
    )
    assert verdict.finding == finding
    assert "TTFT 200 ms and TPOT 50 ms" in verdict.text


def test_lost_requests_count_against_the_targets() -> None:
    verdict = of_topic("slo", design("roft", "ecmp", records_of(100) + aborted(20, first_id=20)))
    assert verdict.text.startswith("50.0% of the requests")


# ---------------------------------------------------------------------- cost


def test_cheapest_fabric_is_named_with_both_prices() -> None:
    verdict = of_topic(
        "cost", design("roft", "ecmp", records_of(100)), design("zcube", "ecmp", records_of(100))
    )
    costs = {kind: facts.bom.cost().typical_usd for kind, facts in FACTS.items()}
    assert verdict.finding == min(costs, key=lambda kind: costs[kind])
    assert "($5.3M), which several prices within their ranges together can turn" in verdict.text


def test_cost_of_one_fabric_is_told() -> None:
    verdict = of_topic("cost", design("roft", "ecmp", records_of(100)))
    assert verdict.text.startswith("roft costs about $")


# ---------------------------------------------------------------------- disaggregation


@pytest.mark.parametrize(
    ("apart_ms", "together_ms", "finding"),
    [(100, 300, "pays"), (300, 100, "does_not_pay"), (100, 101, "no_difference")],
)
def test_disaggregation_is_judged_by_goodput(apart_ms: int, together_ms: int, finding: str) -> None:
    # https://github.com/vllm-project/vllm/pull/41834: aggregated must be able to win
    verdict = of_topic(
        "disaggregation",
        design("roft", "ecmp", records_of(apart_ms)),
        aggregated=design(None, None, records_of(together_ms)),
    )
    assert verdict.finding == finding


def test_disaggregation_is_not_judged_without_the_aggregated_fleet() -> None:
    verdicts = judge(comparison(design("roft", "ecmp", records_of(100))))
    assert not [v for v in verdicts if v.topic == "disaggregation"]


# ---------------------------------------------------------------------- what was lost


def test_nothing_lost_is_not_mentioned() -> None:
    verdicts = judge(comparison(design("roft", "ecmp", records_of(100))))
    assert not [v for v in verdicts if v.topic == "lost"]


def test_lost_requests_are_counted_by_how_they_ended() -> None:
    verdict = of_topic("lost", design("roft", "ecmp", records_of(100) + aborted(3, first_id=20)))
    assert verdict.text == (
        "roft ecmp: of 23 requests 0 were rejected, 3 aborted, 0 left unfinished."
    )


def test_requests_lost_by_the_aggregated_fleet_are_told_too() -> None:
    verdict = of_topic(
        "lost",
        design("roft", "ecmp", records_of(100)),
        aggregated=design(None, None, aborted(3)),
    )
    assert verdict.text.startswith("aggregated: of 3 requests")


def test_skipped_rows_of_the_trace_are_told() -> None:
    rows = (BadRow(3, "no length", "{}"),)
    workload = replace(REQUEST.workload, bad_rows=rows)
    found = comparison(design("roft", "ecmp", records_of(100)))
    verdicts = judge(replace(found, request=replace(REQUEST, workload=workload)))
    assert Verdict("lost", "bad_rows", "1 rows of the trace were skipped.") in verdicts


# ---------------------------------------------------------------------- a real comparison


def test_real_comparison_gets_a_finding_on_every_topic() -> None:
    topics = [verdict.topic for verdict in judge(compare(REQUEST))]
    assert topics[:3] == ["load", "slo", "fabric"]
    assert {"load_balancing", "cost", "disaggregation"} <= set(topics)
