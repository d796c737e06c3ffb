"""``kvfabric search``: a scenario in, the cheapest design that meets its targets out."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvfabric.app.output import check_out, progress_bar, write_files
from kvfabric.app.placed import placed, require_keys
from kvfabric.app.render_search import render_search
from kvfabric.app.resolve import Overrides, apply_overrides
from kvfabric.app.resolve_search import resolve_search, with_search
from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_file import BUILT_IN, load_scenario
from kvfabric.app.search_winner import winner_yaml
from kvfabric.app.shown import shown_scenario
from kvfabric.export.search_json import search_to_dict
from kvfabric.plan.search.findings import judge_search
from kvfabric.plan.search.search import search

_NEEDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gpu": "Add the key: search sizes and prices fleets of a named GPU",
        "fabric": "Add the key: search chooses among fabrics",
    }
)


def run_search(
    path: Path | None,
    overrides: Overrides,
    *,
    output_format: str,
    out: Path | None,
    jobs: int | None = None,
) -> tuple[str, bool]:
    """Return what the command prints, and whether a design meets the targets.

    With ``out`` it also writes search.txt, search.json and, if there is one, the winner there.

    ``jobs`` designs are simulated at once; all cores by default.
    """
    name = BUILT_IN if path is None else str(path)
    scenario = _load(path, overrides)[0]
    folder = Path() if path is None else path.parent
    check_out(out)
    with placed(path), progress_bar() as report:
        request = resolve_search(scenario, folder=folder, name=name)
        result = search(request, report, num_processes=jobs or _num_cores())
    findings = judge_search(result)
    text = render_search(result, findings)
    as_json = json.dumps(search_to_dict(result, findings), indent=2) + "\n"
    if out is not None:
        files = {"search.txt": text, "search.json": as_json}
        if result.winner is not None:
            files["winner.yaml"] = winner_yaml(scenario, result, folder)
        write_files(out, files)
    return (as_json if output_format == "json" else text), result.winner is not None


def _load(path: Path | None, overrides: Overrides) -> tuple[Scenario, Scenario]:
    """Return the scenario with and without flags, its search section complete in both."""
    loaded = load_scenario(path)
    require_keys(loaded, _NEEDED, path)
    scenario = with_search(apply_overrides(loaded, overrides))
    return scenario, loaded.model_copy(update={"search": scenario.search})


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def show_search(path: Path | None, overrides: Overrides) -> str:
    """Return the scenario as YAML that can be run, each value with where it comes from."""
    scenario, loaded = _load(path, overrides)
    name = BUILT_IN if path is None else str(path)
    return shown_scenario(scenario, loaded, name)
