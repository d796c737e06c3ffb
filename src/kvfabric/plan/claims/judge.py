"""The verdict on each claim, from counts and runs only. "Nothing" is a result."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvfabric.plan.claims import statements
from kvfabric.plan.claims.cells import BASE_FACTOR, FABRIC, NIC_CAP
from kvfabric.plan.claims.changes import SAME_WITHIN, Change, Evidence
from kvfabric.plan.claims.cost import CostComparison, CostEvidence
from kvfabric.plan.claims.statements import Claim

COUNT_WITHIN = 0.001
REGION = 0.40
"""Fall of TTFT p99 that the region of the claim begins at."""


class Finding(Enum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    CONDITIONAL = "reproduced only under these conditions"
    NOT_REPRODUCED = "not reproduced"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimVerdict:
    """One claim with its verdict.

    Attributes:
        claim: what was published.
        finding: what became of it.
        text: the numbers, in sentences.
        conditions: under which it holds; only of ``CONDITIONAL``.
    """

    claim: Claim
    finding: Finding
    text: str
    conditions: tuple[str, ...] = ()


def judge_claims(cost: CostEvidence, changes: Sequence[Change]) -> tuple[ClaimVerdict, ...]:
    """Return the verdicts on all claims."""
    return (
        *judge_cost(cost),
        judge_ttft(changes),
        judge_throughput(changes),
        *judge_nic_cap(changes),
        ClaimVerdict(
            claim=statements.TRAINING,
            finding=Finding.NOT_TESTED,
            text="There is no model of training here: it needs the overlap of collectives with"
            " computation, pipeline bubbles and the placement of experts.",
        ),
    )


# ---- parts and money ---------------------------------------------------------------------------


def judge_cost(cost: CostEvidence) -> tuple[ClaimVerdict, ...]:
    """Return the verdicts on counts and money."""
    two, three = cost.two_tiers, cost.three_tiers
    copper = two.zcube.optics_with_copper / two.other.optics - 1
    money = (
        " Switches and the optics in them fall by a third each, so does their sum, as long as two"
        " modules of 200G cost what one of 400G does. The price book, from a fit, has one at a"
        f" third of the other, and with it {_money(two, 'cost_without_nics')} for switches, optics"
        f" and cables, {_money(two, 'cost')} with the NICs."
    )
    return (
        _counted(statements.SWITCHES_2, two, "switches", money),
        _counted(statements.OPTICS_SWITCH, two, "switch_optics"),
        _counted(statements.OPTICS_ALL, two, "optics"),
        ClaimVerdict(
            claim=statements.OPTICS_COPPER,
            finding=_equal(copper, statements.OPTICS_COPPER.low),
            text=f"{_where(two)}: {two.other.optics:,.0f} modules become"
            f" {two.zcube.optics_with_copper:,.0f} (in equivalents of 400G), {copper:+.1%}.",
        ),
        _counted(statements.SWITCHES_3, three, "switches"),
        _network_cost(cost.published_sizes, cost.two_tiers_by_racks),
    )


def _money(comparison: CostComparison, what: str) -> str:
    low, typical, high = (comparison.cost_change(at, what) for at in ("low", "typical", "high"))
    return f"{typical:+.0%} ({low:+.0%} with all prices low, {high:+.0%} with all high)"


def _where(comparison: CostComparison) -> str:
    return f"{comparison.other.num_gpus:,} GPUs, {comparison.other.name.split(',')[0]}"


def _counted(claim: Claim, comparison: CostComparison, field: str, more: str = "") -> ClaimVerdict:
    change = comparison.change(field)
    before, after = getattr(comparison.other, field), getattr(comparison.zcube, field)
    text = f"{_where(comparison)}: {before:,.0f} become {after:,.0f}, {change:+.1%}.{more}"
    return ClaimVerdict(claim=claim, finding=_equal(change, claim.low), text=text)


def _equal(change: float, claimed: float) -> Finding:
    return Finding.REPRODUCED if abs(change - claimed) < COUNT_WITHIN else Finding.NOT_REPRODUCED


def _network_cost(
    sizes: Sequence[CostComparison], by_racks: Sequence[tuple[str, CostComparison]]
) -> ClaimVerdict:
    """Judge a range: every published comparison inside it, some, or none; at typical prices."""
    claim = statements.NETWORK_COST
    kinds = dict.fromkeys(c.other.name.split(",")[0] for c in sizes)
    inside: list[str] = []
    told: list[str] = []
    for kind in kinds:
        rows = [c for c in sizes if c.other.name.split(",")[0] == kind]
        typical = [row.cost_change("typical") for row in rows]
        ends = [row.cost_change(at) for row in rows for at in ("low", "high")]
        told.append(
            f"{kind} {_span(typical)} at typical prices ({_span(ends)} with all prices low or high)"
        )
        if all(claim.high <= round(change, 2) <= claim.low for change in typical):
            inside.append(kind)
    finding = (
        Finding.REPRODUCED
        if len(inside) == len(kinds)
        else Finding.CONDITIONAL
        if inside
        else Finding.NOT_REPRODUCED
    )
    conditions: tuple[str, ...] = ()
    if finding is Finding.CONDITIONAL:
        where = f"against {' and '.join(inside)}"
        conditions = (where, "with the cables as published, not where they follow from racks")
    text = "Whole bill of materials with NICs, without racks and labor: " + "; ".join(told) + "."
    placed = [f"{c.cost_change('typical'):+.0%} with {words}" for words, c in by_racks]
    text += (
        " That is with the cables as published, fibre nearly everywhere. Where they follow from"
        f" racks, RoFT of two tiers becomes ZCube at {' and '.join(placed)} (1,024 GPUs)."
    )
    return ClaimVerdict(claim=claim, finding=finding, text=text, conditions=conditions)


def _span(changes: Sequence[float]) -> str:
    low, high = f"{min(changes):+.0%}", f"{max(changes):+.0%}"
    return low if low == high else f"{low} to {high}"


# ---- latency and throughput --------------------------------------------------------------------


def judge_ttft(changes: Sequence[Change]) -> ClaimVerdict:
    """Judge the fall of TTFT p99 from RoFT to ZCube."""
    return _judge_runs(
        statements.TTFT_P99,
        [change for change in changes if change.cell.kind == FABRIC],
        "ttft_p99_ns",
        -REGION,
    )


def judge_throughput(changes: Sequence[Change]) -> ClaimVerdict:
    """Judge the gain in finished requests; where arrivals are given it needs an overload."""
    return _judge_runs(
        statements.THROUGHPUT,
        [change for change in changes if change.cell.kind == FABRIC],
        "requests_per_s",
        statements.THROUGHPUT.low,
    )


def judge_nic_cap(changes: Sequence[Change]) -> tuple[ClaimVerdict, ...]:
    """Judge the experiment with slower NICs."""
    cells = [change for change in changes if change.cell.kind == NIC_CAP]
    throughput, ttft = statements.NIC_THROUGHPUT, statements.NIC_TTFT
    return (
        _judge_runs(throughput, cells, "requests_per_s", throughput.low),
        _judge_runs(ttft, cells, "ttft_mean_ns", ttft.low),
    )


def reaches(change: Change, field: str, threshold: float) -> bool:
    """Return whether a change is at least as large as the threshold, in its direction."""
    if not change.counts:
        return False
    found = change.of(field)
    return found <= threshold if threshold < 0 else found >= threshold


def _judge_runs(
    claim: Claim, changes: Sequence[Change], field: str, threshold: float
) -> ClaimVerdict:
    valid = [change for change in changes if change.counts]
    if not valid:
        reasons = sorted({change.reason or change.evidence.value for change in changes})
        text = f"No run says anything: {'; '.join(reasons) or 'none was asked for'}."
        return ClaimVerdict(claim=claim, finding=Finding.NOT_TESTED, text=text)
    reached = [change for change in valid if reaches(change, field, threshold)]
    base = [change for change in valid if change.cell.factor == BASE_FACTOR]
    in_base = [change for change in base if reaches(change, field, threshold)]
    if base and len(in_base) == len(base):
        finding = Finding.REPRODUCED
    elif reached:
        finding = Finding.CONDITIONAL
    else:
        finding = Finding.NOT_REPRODUCED
    nothing = sum(abs(change.of(field)) < SAME_WITHIN for change in valid)
    excluded = sum(change.evidence is Evidence.COMPUTE_BOUND for change in changes)
    told = f"In the base case {_ends(base, field)}. " if base else ""
    text = (
        f"{told}Of {len(valid)} cells and bounds that say something {len(reached)} reach"
        f" {threshold:+.0%}, in {nothing} it is nothing (less than {SAME_WITHIN:.0%}); over all"
        f" {_ends(valid, field)}."
        f"{f' {excluded} are overloaded by computation and do not count.' if excluded else ''}"
    )
    best_first = sorted(reached, key=lambda change: (abs(change.of(field)), change.cell.name))
    conditions = (
        tuple(condition(change, field) for change in reversed(best_first))
        if finding is Finding.CONDITIONAL
        else ()
    )
    return ClaimVerdict(claim=claim, finding=finding, text=text, conditions=conditions)


def _ends(changes: Sequence[Change], field: str) -> str:
    found = [change.of(field) for change in changes]
    return f"{min(found):+.1%} to {max(found):+.1%}"


def condition(change: Change, field: str) -> str:
    """Return a change with all that it depends on; a number never stands alone."""
    cell = change.cell
    return (
        f"{change.of(field):+.1%}: {cell.name}; {sides(change)}; {change.engine};"
        f" busiest NIC {change.mean_before('nic_utilization'):.0%};"
        f" cold {change.mean_before('cold_share'):.1%} of the requests,"
        f" {change.mean_before('tail_cold_share'):.0%} of the p99 tail"
        f"{'; transfers pile up' if change.evidence is Evidence.NETWORK_BOUND else ''}"
    )


def sides(change: Change) -> str:
    """Return what is compared with what."""
    before, after = change.cell.before, change.cell.after
    if change.cell.kind == NIC_CAP:
        return f"{before.nic_gbps} to {after.nic_gbps} Gbit/s"
    return (
        f"{_balanced(before.balancing, before.queue_pairs)} to {after.fabric}"
        f" {_balanced(after.balancing, after.queue_pairs)}"
    )


def _balanced(policy: str, queue_pairs: int) -> str:
    return f"{policy} {queue_pairs} qp" if policy == "ecmp" else policy
