"""Runs every cell of a sweep once: what two cells share, or an earlier sweep left, is not repeated.

Max-min runs come first. They are quick, and they tell which runs under priority flow control are
worth their time: past the capacity of a NIC the stationary state that engine looks for does not
exist, and its cost has no bound.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from kvfabric.errors import KvfabricError
from kvfabric.fabric.engines.choice import MAX_MIN, PFC
from kvfabric.plan.claims.cells import Cell
from kvfabric.plan.claims.figures import RunFigures
from kvfabric.plan.claims.run import run_settings
from kvfabric.plan.claims.settings import BASE, RunSettings
from kvfabric.plan.parallel import Tell, run_all

PFC_NIC_LIMIT = 0.95
"""Utilization of the busiest NIC under max-min above which the PFC engine is not run."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """A run without figures, and why."""

    reason: str


Outcome = RunFigures | NotRun
Outcomes = Mapping[RunSettings, Outcome]


class Store(Protocol):
    """Where finished runs are kept between sweeps."""

    def load(self, settings: RunSettings) -> Outcome | None:
        """Return what is known of a run, if anything is."""
        ...

    def save(self, settings: RunSettings, outcome: Outcome) -> None:
        """Keep the outcome of a run."""
        ...


Report = Callable[[str, int, int], None]
RunAll = Callable[[Sequence[RunSettings], Store, Callable[[int], None]], list[Outcome]]
"""Runs all settings, saves each outcome as it comes, reports how many are done."""


class NoStore:
    """Keeps nothing."""

    def load(self, settings: RunSettings) -> None:
        """Know nothing."""
        del settings

    def save(self, settings: RunSettings, outcome: Outcome) -> None:
        """Forget."""
        del settings, outcome


def sweep(
    cells: Sequence[Cell], run_many: RunAll, store: Store, report: Report | None = None
) -> Outcomes:
    """Return the outcome of every run of the cells.

    Args:
        cells: of the sweep.
        run_many: ``on_cores`` or another way to run.
        store: asked first, and told what is new.
        report: gets the name of the stage, runs done and runs in all.
    """
    outcomes: dict[RunSettings, Outcome] = {}
    for engine in (MAX_MIN, PFC):
        wanted = runs_of(cells, engine)
        skipped = {s: NotRun(why) for s in wanted if (why := _too_loaded(s, outcomes))}
        outcomes |= skipped
        left: list[RunSettings] = []
        for settings in (settings for settings in wanted if settings not in skipped):
            known = store.load(settings)
            if known is None:
                left.append(settings)
            else:
                outcomes[settings] = known
        done = len(wanted) - len(left)
        tell = _stage(report, f"{engine} runs", done, len(wanted))
        tell(0)
        outcomes |= zip(left, run_many(left, store, tell), strict=True)
    return outcomes


def _stage(report: Report | None, name: str, before: int, total: int) -> Callable[[int], None]:
    def tell(num_done: int) -> None:
        if report is not None:
            report(name, before + num_done, total)

    return tell


def runs_of(cells: Iterable[Cell], engine: str) -> tuple[RunSettings, ...]:
    """Return the runs under one engine, each once, in order of the cells."""
    return tuple(
        dict.fromkeys(
            settings
            for cell in cells
            if engine in cell.engines
            for pair in cell.runs(engine)
            for settings in pair
        )
    )


def _too_loaded(settings: RunSettings, outcomes: Outcomes) -> str:
    """Return why a run with pauses is left out; empty if it is not."""
    if settings.engine == MAX_MIN:
        return ""
    found = outcomes.get(replace(settings, engine=MAX_MIN))
    if isinstance(found, RunFigures) and found.nic_utilization > PFC_NIC_LIMIT:
        return (
            f"the busiest NIC is at {found.nic_utilization:.0%} under max-min, above"
            f" {PFC_NIC_LIMIT:.0%}: no stationary state to look for"
        )
    return ""


def run_one(settings: RunSettings, tell: Tell) -> Outcome:
    """Return the outcome of one run; what cannot be built is an outcome as well."""
    try:
        return run_settings(settings, tell)
    except KvfabricError as error:
        return NotRun(str(error))


def on_cores(num_processes: int) -> RunAll:
    """Return a way to run on the cores of this machine; each outcome is saved by who made it."""

    def run_many(
        wanted: Sequence[RunSettings], store: Store, tell: Callable[[int], None]
    ) -> list[Outcome]:
        if not wanted:
            return []
        if num_processes > 1 and len(wanted) > 1:
            _warm_up({settings.engine for settings in wanted})
        finished: set[int] = set()

        def report(task: int, done: int) -> None:
            if done == _DONE and task not in finished:
                finished.add(task)
                tell(len(finished))

        tasks = [partial(_run_and_save, settings, store) for settings in wanted]
        outcomes = run_all(tasks, num_processes, report)
        tell(len(outcomes))
        return outcomes

    return run_many


_DONE = 1
_SMALL = replace(BASE, num_prefill=1, num_decode=1, num_contexts=1, num_requests=4, load=0.1)


def _warm_up(engines: Iterable[str]) -> None:
    """Load the compiled kernels once, so that forked processes find them."""
    for engine in engines:
        run_one(replace(_SMALL, engine=engine), lambda _: None)


def _run_and_save(settings: RunSettings, store: Store, tell: Tell) -> Outcome:
    outcome = run_one(settings, lambda _: None)
    store.save(settings, outcome)
    tell(_DONE)
    return outcome


def outcome_to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain values."""
    return asdict(outcome)


def outcome_from_dict(values: Mapping[str, Any]) -> Outcome:
    """Return the outcome of plain values.

    Raises:
        TypeError: they are those of another version.
    """
    return NotRun(**values) if "reason" in values else RunFigures(**values)
