"""``kvfabric claims``: a sweep in, verdicts as text or JSON out."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from kvfabric.app.output import check_out, progress_bar, write_files
from kvfabric.errors import ConfigError
from kvfabric.export.claims_json import answer_to_dict
from kvfabric.export.claims_parquet import check_parquet, write_parquet
from kvfabric.export.claims_rows import change_rows
from kvfabric.export.claims_store import FolderStore
from kvfabric.export.claims_text import render_claims
from kvfabric.plan.claims.answer import ClaimsAnswer, answer
from kvfabric.plan.claims.cells import ENGINES, FULL, QUICK, Cell, SweepPlan, cells_of
from kvfabric.plan.claims.settings import BASE
from kvfabric.plan.claims.sweep import NoStore, RunAll, Store, on_cores, runs_of, sweep
from kvfabric.plan.compare import ReportProgress

SECONDS_PER_RUN: Final = 4.0
"""CPU time of a run on 1,024 GPUs, the mean over the quick set: for the expected duration."""

TINY: Final = SweepPlan(
    base=replace(BASE, num_prefill=4, num_decode=4, num_contexts=2, num_requests=60),
    loads=(0.8,),
    grid_loads=(0.8,),
    contended_loads=(),
    anchors=((0.8, 400), (0.8, 100)),
    grid_hits=(0.9,),
    grid_nics=(100,),
    base_seeds=(0,),
    seeds=(0,),
    users=(),
)
_EXTENTS: Final = {"quick": QUICK, "full": FULL, "tiny": TINY}
_TINY_FACTORS: Final = frozenset({"base", "ZCube routes", "rotating sending rank", "NIC rate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsOptions:
    """What the command line asks for.

    Attributes:
        extent: ``quick``, ``full`` or ``tiny``.
        out: folder for results and finished runs.
        jobs: runs at once; None: one per core.
        seed: added to the seeds of the sweep.
        ray_address: of a Ray cluster; empty: any; None: no Ray.
    """

    extent: str
    out: Path | None = None
    jobs: int | None = None
    seed: int = 0
    ray_address: str | None = None


def run_claims(options: ClaimsOptions, *, output_format: str) -> str:
    """Return what the command prints; with a folder it also writes three files there."""
    check_out(options.out)
    if options.out is not None:
        check_parquet()
    plan = _seeded(_EXTENTS[options.extent], options.seed)
    cells = cells_of(plan)
    if options.extent == "tiny":
        cells = tuple(cell for cell in cells if cell.factor in _TINY_FACTORS)
    store: Store = NoStore() if options.out is None else FolderStore(options.out)
    with _runner(options) as (run_many, num_at_once), progress_bar() as report:
        _tell_duration(cells, store, num_at_once)
        outcomes = sweep(cells, run_many, store, report or _lines_of_progress())
    found = answer(plan.base, cells, outcomes)
    text = render_claims(found)
    as_json = json.dumps(answer_to_dict(found), indent=2) + "\n"
    if options.out is not None:
        _write(options.out, found, text, as_json)
    return as_json if output_format == "json" else text


def _write(out: Path, found: ClaimsAnswer, text: str, as_json: str) -> None:
    write_files(out, {"claims.txt": text, "claims.json": as_json})
    try:
        write_parquet(out / "claims.parquet", change_rows(found.changes))
    except OSError as error:
        reason = error.strerror or "it cannot be written"
        raise ConfigError(
            f"cannot write {out / 'claims.parquet'}: {reason}",
            where="--out",
            hint="Name another folder",
        ) from None


def _seeded(plan: SweepPlan, seed: int) -> SweepPlan:
    return replace(
        plan,
        base_seeds=tuple(seed + own for own in plan.base_seeds),
        seeds=tuple(seed + own for own in plan.seeds),
    )


@contextmanager
def _runner(options: ClaimsOptions) -> Iterator[tuple[RunAll, int]]:
    """Yield a way to run, and how many runs it has under way at once."""
    if options.ray_address is not None:
        from kvfabric.app.claims_ray import ray_runner

        with ray_runner(options.ray_address, options.jobs) as found:
            yield found
        return
    jobs = options.jobs or _num_cores()
    yield on_cores(jobs), jobs


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _tell_duration(cells: tuple[Cell, ...], store: Store, num_at_once: int) -> None:
    """Say on stderr how much there is to do, before it begins."""
    wanted = [settings for engine in ENGINES for settings in runs_of(cells, engine)]
    known = sum(store.load(settings) is not None for settings in wanted)
    minutes = (len(wanted) - known) * SECONDS_PER_RUN / num_at_once / 60
    click.echo(
        f"{len(wanted)} runs of {len(cells)} cells, {known} of them known; about"
        f" {max(1, round(minutes))} min with {num_at_once} at once",
        err=True,
    )


def _lines_of_progress() -> ReportProgress:
    """Return what tells progress where no bar can be drawn: a line per tenth."""
    told: dict[str, int] = {}

    def report(name: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 10
        if tenth > told.get(name, 0):
            told[name] = tenth
            click.echo(f"{name}: {done} of {total}", err=True)

    return report
