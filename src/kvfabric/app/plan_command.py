"""``kvfabric plan``: a scenario in, the comparison as text or JSON out."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from kvfabric.app.render import render_plan
from kvfabric.app.resolve import Overrides, apply_overrides, resolve
from kvfabric.app.scenario_file import BUILT_IN, load_scenario, place_of
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.export.plan_json import comparison_to_dict
from kvfabric.plan.compare import Comparison, ReportProgress, compare
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.verdict import judge

if TYPE_CHECKING:
    from rich.progress import TaskID


def run_plan(
    path: Path | None,
    overrides: Overrides,
    *,
    output_format: str,
    out: Path | None,
    jobs: int | None = None,
) -> str:
    """Return what the command prints; with ``out`` also write plan.txt and plan.json there.

    ``jobs`` designs are simulated at once; all cores by default.
    """
    name = BUILT_IN if path is None else str(path)
    scenario = apply_overrides(load_scenario(path), overrides)
    folder = Path() if path is None else path.parent
    _check_out(out)
    with _placed(path):
        comparison = _compare(resolve(scenario, folder=folder, name=name), jobs or _num_cores())
    verdicts = judge(comparison)
    text = render_plan(comparison, verdicts)
    as_json = json.dumps(comparison_to_dict(comparison, verdicts), indent=2) + "\n"
    if out is not None:
        _write(out, {"plan.txt": text, "plan.json": as_json})
    return as_json if output_format == "json" else text


def _check_out(out: Path | None) -> None:
    """Refuse, before the long run, a folder that cannot be made or written."""
    if out is None:
        return
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest} is a file", where="--out", hint="Name a folder")
    if not os.access(nearest, os.W_OK):
        raise ConfigError(f"cannot write in {nearest}", where="--out", hint="Name another folder")


def _write(out: Path, files: Mapping[str, str]) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (out / name).write_text(text, "utf-8")
    except OSError as error:
        reason = error.strerror or "it cannot be written"
        raise ConfigError(
            f"cannot write {out}: {reason}", where="--out", hint="Name another folder"
        ) from None


# What the packages call the keys of a scenario.
_KEYS = {
    "context": "context_tokens",
    "max_model_len": "workers.max_model_len",
    "tp": "workers.tp",
    "kv_dtype": "workers.kv_dtype",
    "weight_dtype": "workers.weight_dtype",
    "fabric.kind": "fabric.kinds",
    "fabric.num_gpus": "fabric.kinds",
    "fabric.num_tiers": "fabric.kinds",
    "fabric.oversubscription": "fabric.kinds",
    "": "workers",
}


@contextmanager
def _placed(path: Path | None) -> Iterator[None]:
    """Put file and line before the key of a mistake found while building its parts."""
    try:
        yield
    except ConfigError as error:
        name = BUILT_IN if path is None else str(path)
        if name in error.where or (error.where and Path(error.where.split(":")[0]).exists()):
            raise
        where = place_of(_KEYS.get(error.where, error.where), path)
        kind = UnsupportedError if isinstance(error, UnsupportedError) else ConfigError
        raise kind(error.what, where=where, hint=error.hint) from None


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _compare(request: PlanRequest, num_processes: int) -> Comparison:
    """Run the comparison, with a progress bar where somebody watches."""
    if not sys.stderr.isatty():
        return compare(request, num_processes=num_processes)
    from rich.console import Console
    from rich.progress import Progress

    # without a refresh thread: designs run in forked processes
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        tasks: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done, refresh=True)

        return compare(request, _seldom(report), num_processes=num_processes)


def _seldom(report: ReportProgress) -> ReportProgress:
    """Pass on one report in a hundred, and the last: drawing costs more than simulating."""

    def maybe_report(name: str, done: int, total: int) -> None:
        if done == total or done % max(1, total // 100) == 0:
            report(name, done, total)

    return maybe_report


def show_plan(path: Path | None, overrides: Overrides) -> str:
    """Return the scenario as YAML that can be run, each value with where it comes from."""
    loaded = load_scenario(path)
    scenario = apply_overrides(loaded, overrides)
    name = BUILT_IN if path is None else str(path)
    return "\n".join(_shown(scenario, loaded, name)) + "\n"


def _shown(section: BaseModel, loaded: BaseModel | None, name: str, indent: str = "") -> list[str]:
    lines: list[str] = []
    dumped = section.model_dump(mode="json")
    for key in type(section).model_fields:
        value = getattr(section, key)
        before = getattr(loaded, key, None)
        if isinstance(value, BaseModel):
            lines.append(f"{indent}{key}:")
            inner = before if isinstance(before, BaseModel) else None
            lines.extend(_shown(value, inner, name, indent + "  "))
            continue
        origin = name if loaded is not None and key in loaded.model_fields_set else "default"
        if value != before:
            origin = "flag"
        if value is not None:
            lines.append(f"{indent}{key}: {json.dumps(dumped[key])}  # {origin}")
    return lines
