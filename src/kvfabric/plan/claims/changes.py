"""What a cell changed: both runs under both engines, averaged over the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvfabric.plan.claims.cells import Cell
from kvfabric.plan.claims.figures import RunFigures
from kvfabric.plan.claims.sweep import NotRun, Outcomes

SAME_WITHIN = 0.05
"""Changes below this share count as none, as in the verdicts of a plan."""


class Evidence(Enum):
    """What a cell under one engine is worth."""

    GOOD = "evidence"
    NETWORK_BOUND = "transfers pile up"  # evidence, but it depends on how long the load lasts
    COMPUTE_BOUND = "overloaded by computation"  # none: latencies are queues for something else
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One cell under one engine; changes are shares of the run before, negative for less.

    Attributes:
        cell: what was compared.
        engine: ``max-min`` or ``pfc``.
        evidence: what it is worth.
        reason: why it was not run; else empty.
        before: figures of each seed.
        after: likewise.
    """

    cell: Cell
    engine: str
    evidence: Evidence
    reason: str = ""
    before: tuple[RunFigures, ...] = ()
    after: tuple[RunFigures, ...] = ()

    @property
    def counts(self) -> bool:
        """Return whether the change says something about the network."""
        return self.evidence in {Evidence.GOOD, Evidence.NETWORK_BOUND}

    def of(self, field: str) -> float:
        """Return the change of a figure, the mean over seeds."""
        changes = self.by_seed(field)
        return sum(changes) / len(changes) if changes else 0.0

    def by_seed(self, field: str) -> list[float]:
        """Return the change of a figure with every seed."""
        return [
            getattr(after, field) / getattr(before, field) - 1 if getattr(before, field) else 0.0
            for before, after in zip(self.before, self.after, strict=True)
        ]

    def mean_before(self, field: str) -> float:
        """Return a figure of the run before, the mean over seeds."""
        return _mean([float(getattr(run, field)) for run in self.before])

    def mean_after(self, field: str) -> float:
        """Return a figure of the run after, the mean over seeds."""
        return _mean([float(getattr(run, field)) for run in self.after])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def changes_of(cells: Sequence[Cell], outcomes: Outcomes) -> tuple[Change, ...]:
    """Return the changes of all cells under all their engines, in order."""
    return tuple(_change(cell, engine, outcomes) for cell in cells for engine in cell.engines)


def _change(cell: Cell, engine: str, outcomes: Outcomes) -> Change:
    before: list[RunFigures] = []
    after: list[RunFigures] = []
    for pair in cell.runs(engine):
        for settings, runs in zip(pair, (before, after), strict=True):
            outcome = outcomes[settings]
            if isinstance(outcome, NotRun):
                return Change(
                    cell=cell, engine=engine, evidence=Evidence.NOT_RUN, reason=outcome.reason
                )
            runs.append(outcome)
    return Change(
        cell=cell,
        engine=engine,
        evidence=_evidence(before, after),
        before=tuple(before),
        after=tuple(after),
    )


def _evidence(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> Evidence:
    """Return the worth of a change; a NIC cap or lever may well cure an overload."""
    if all(run.is_compute_bound for run in (*before, *after)):
        return Evidence.COMPUTE_BOUND
    if any(run.is_compute_bound for run in (*before, *after)):
        unaided = [run for run in (*before, *after) if run.is_compute_bound]
        if not any(run.is_network_bound for run in unaided):
            return Evidence.COMPUTE_BOUND
    if any(run.is_network_bound for run in (*before, *after)):
        return Evidence.NETWORK_BOUND
    return Evidence.GOOD
