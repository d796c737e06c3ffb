"""The whole answer of a sweep."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvfabric.plan.claims.cells import FABRIC, LEVER, Cell
from kvfabric.plan.claims.changes import Change, Evidence, changes_of
from kvfabric.plan.claims.cost import CostEvidence, cost_evidence
from kvfabric.plan.claims.judge import ClaimVerdict, judge_claims
from kvfabric.plan.claims.settings import RunSettings
from kvfabric.plan.claims.sweep import Outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverGroup:
    """What a setting of RoFT gains by each means, under one engine, the new fabric among them.

    Attributes:
        before: RoFT as it is; without seed.
        engine: ``max-min`` or ``pfc``.
        changes: largest fall of TTFT p99 first.
    """

    before: RunSettings
    engine: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsAnswer:
    """Verdicts, and what they rest on."""

    base: RunSettings
    cost: CostEvidence
    changes: tuple[Change, ...]
    verdicts: tuple[ClaimVerdict, ...]
    levers: tuple[LeverGroup, ...]
    num_runs: int

    @property
    def evidence_counts(self) -> dict[str, int]:
        """Return how many cells and bounds are worth what."""
        counts = Counter(change.evidence.value for change in self.changes)
        return {evidence.value: counts[evidence.value] for evidence in Evidence}


def answer(base: RunSettings, cells: Sequence[Cell], outcomes: Outcomes) -> ClaimsAnswer:
    """Return the answer of a sweep that is complete."""
    cost = cost_evidence()
    changes = changes_of(cells, outcomes)
    return ClaimsAnswer(
        base=base,
        cost=cost,
        changes=changes,
        verdicts=judge_claims(cost, changes),
        levers=lever_groups(changes),
        num_runs=len(outcomes),
    )


def lever_groups(changes: Sequence[Change]) -> tuple[LeverGroup, ...]:
    """Group the levers by what they start from; the gain of the fabric stands beside them."""
    starts = dict.fromkeys(
        (change.cell.before, change.engine) for change in changes if change.cell.kind == LEVER
    )
    groups: list[LeverGroup] = []
    for before, engine in starts:
        rows = [
            change
            for change in changes
            if change.cell.before == before
            and change.engine == engine
            and change.cell.kind in {LEVER, FABRIC}
        ]
        rows.sort(key=lambda change: (not change.counts, change.of("ttft_p99_ns")))
        groups.append(LeverGroup(before=before, engine=engine, changes=tuple(rows)))
    return tuple(groups)
