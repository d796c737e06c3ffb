"""``kvfabric simulate``: a scenario in, what requests went through as text, JSON or files out."""

import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvfabric.app.flags import told_by_flag
from kvfabric.app.output import check_out, progress_bar, write_files
from kvfabric.app.placed import placed
from kvfabric.app.render_simulate import render_run
from kvfabric.app.resolve import Overrides, apply_overrides, resolve
from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_file import BUILT_IN, load_scenario
from kvfabric.app.shown import shown_scenario, with_whole_paths
from kvfabric.errors import ConfigError
from kvfabric.export.bench_serve import bench_serve_dict
from kvfabric.export.requests_csv import requests_csv
from kvfabric.export.simulate_json import run_to_dict
from kvfabric.plan.compare import ReportProgress
from kvfabric.plan.request import PlanRequest
from kvfabric.plan.simulate import SimulatedRun, simulate
from kvfabric.plan.verdict import judge_run

_FLAGS: Final = MappingProxyType({"window": "--window", "fabric.label": "--fabric"})


def run_simulate(
    path: Path | None,
    overrides: Overrides,
    *,
    output_format: str,
    out: Path | None,
    fabric: str | None = None,
    load_balancing: str | None = None,
    window: tuple[int, int] | None = None,
) -> str:
    """Return what the command prints; with ``out`` also write the files of the run there."""
    name = BUILT_IN if path is None else str(path)
    loaded = _load(path)
    scenario = apply_overrides(loaded, overrides)
    folder = Path() if path is None else path.parent
    check_out(out)
    with placed(path), told_by_flag(_FLAGS), progress_bar() as report:
        request = resolve(scenario, folder=folder, name=name)
        run = simulate(
            request,
            _report_on(request, report),
            fabric=fabric,
            load_balancing=load_balancing,
            window=window,
        )
    verdicts = judge_run(run.request, run.fleet, run.result)
    text = render_run(run, verdicts)
    as_json = _as_json(run_to_dict(run, verdicts))
    if out is not None:
        whole, before = (with_whole_paths(part, folder) for part in (scenario, loaded))
        shown = shown_scenario(whole, before, name)
        write_files(out, _files(run) | {"result.json": as_json, "scenario.yaml": shown})
    return as_json if output_format == "json" else text


def _report_on(request: PlanRequest, report: ReportProgress | None) -> Callable[[int], None] | None:
    """Return what tells the bar how many requests have ended."""
    if report is None:
        return None
    total = len(request.workload.requests)
    return lambda done: report("simulate", done, total)


def _files(run: SimulatedRun) -> dict[str, str]:
    return {
        "requests.csv": requests_csv(run.records, decode_first=run.request.decode_first),
        "bench_serve.json": _as_json(bench_serve_dict(run)),
    }


def _as_json(values: dict[str, object]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _load(path: Path | None) -> Scenario:
    """Return the scenario, with asynchronous scheduling unless it says otherwise."""
    scenario = load_scenario(path)
    if scenario.workers.async_scheduling is not None:
        return scenario
    workers = scenario.workers.model_copy(update={"async_scheduling": True})
    workers.model_fields_set.discard("async_scheduling")  # a default, not the file's
    return scenario.model_copy(update={"workers": workers})


def show_simulate(path: Path | None, overrides: Overrides) -> str:
    """Return the scenario as YAML that can be run, each value with where it comes from."""
    loaded = _load(path)
    name = BUILT_IN if path is None else str(path)
    return shown_scenario(apply_overrides(loaded, overrides), loaded, name)


def parse_window(text: str | None) -> tuple[int, int] | None:
    """Return first and last request from text such as ``3:110``."""
    if text is None:
        return None
    first, _, last = text.partition(":")
    if first.isdecimal() and last.isdecimal() and int(first) <= int(last):
        return int(first), int(last)
    raise ConfigError(
        f"read {text!r}",
        where="--window",
        hint="Write first and last request, counted from 0 by arrival, such as 3:110",
    )
