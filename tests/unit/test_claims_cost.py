"""The published claims about parts come out of the built graphs, exactly."""

import pytest

from kvfabric.plan.claims.cost import CostEvidence, cost_evidence
from kvfabric.plan.claims.judge import Finding, judge_cost


@pytest.fixture(scope="module")
def evidence() -> CostEvidence:
    return cost_evidence()


# Source: z.ai/blog/zcube (2026-05-20) and From ATOP to ZCube (SIGCOMM 2025), sections 5.2 and 6;
# derivation: a RoFT of two tiers has 3N/R switches, ZCube 2N/R; one of three tiers has 5N/R.
def test_two_tiers_lose_a_third_of_switches_and_of_their_optics(evidence: CostEvidence) -> None:
    two = evidence.two_tiers
    assert (two.other.switches, two.zcube.switches) == (24, 16)
    assert two.change("switches") == pytest.approx(-1 / 3)
    assert two.change("switch_optics") == pytest.approx(-1 / 3)
    assert two.change("optics") == pytest.approx(-0.25)


def test_copper_on_the_single_rail_port_halves_the_optics(evidence: CostEvidence) -> None:
    two = evidence.two_tiers
    assert two.zcube.optics_with_copper / two.other.optics == 0.5


def test_three_tiers_lose_three_fifths_of_the_switches(evidence: CostEvidence) -> None:
    three = evidence.three_tiers
    assert (three.other.switches, three.zcube.switches) == (640, 256)
    assert three.change("switches") == pytest.approx(-0.6)


def test_published_sizes_have_the_published_switches(evidence: CostEvidence) -> None:
    # Source: From ATOP to ZCube, SIGCOMM 2025, Table 7
    counts = [
        (c.other.num_gpus, c.other.switches, c.zcube.switches) for c in evidence.published_sizes
    ]
    assert counts == [
        *((1_024, other, 64) for other in (160, 96, 96)),
        *((4_096, other, 128) for other in (320, 192, 192)),
        *((16_384, other, 256) for other in (640, 384, 384)),
    ]


def test_counted_claims_are_reproduced(evidence: CostEvidence) -> None:
    verdicts = {verdict.claim.key: verdict for verdict in judge_cost(evidence)}
    counted = [key for key in verdicts if key != "network-cost"]
    assert len(counted) == 5
    assert {verdicts[key].finding for key in counted} == {Finding.REPRODUCED}
    assert "24 become 16" in verdicts["switches-two-tiers"].text


def test_money_is_told_with_its_range(evidence: CostEvidence) -> None:
    verdict = next(v for v in judge_cost(evidence) if v.claim.key == "network-cost")
    assert "all prices low" in verdict.text
    assert verdict.finding in {Finding.CONDITIONAL, Finding.REPRODUCED}


def test_saving_is_gone_where_cables_follow_from_racks(evidence: CostEvidence) -> None:
    # the totals of docs/how-to/parts-and-wiring.md, which are tested against `topology --cables`
    copper, active = (comparison for _, comparison in evidence.two_tiers_by_racks)
    assert copper.cost_change("typical") == pytest.approx(4_183_580 / 4_189_760 - 1)
    assert active.cost_change("typical") == pytest.approx(3_912_080 / 3_412_160 - 1)
    verdict = next(v for v in judge_cost(evidence) if v.claim.key == "network-cost")
    assert "-0% with copper where it reaches and +15% with copper or else active" in verdict.text
