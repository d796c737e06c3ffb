"""``kvfabric plan``: a scenario in, the comparison as text or JSON out."""

import json
import os
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvfabric.app.output import check_out, progress_bar, write_files
from kvfabric.app.placed import placed, require_keys
from kvfabric.app.render import render_plan
from kvfabric.app.resolve import Overrides, apply_overrides, resolve
from kvfabric.app.scenario_file import BUILT_IN, load_scenario
from kvfabric.app.shown import shown_scenario
from kvfabric.export.plan_json import comparison_to_dict
from kvfabric.plan.compare import compare
from kvfabric.plan.verdict import judge

_NEEDED: Final = MappingProxyType(
    {
        "gpu": "Add the key: plan sizes and prices a fleet of named GPUs",
        "users": "Add the key: plan sizes the KV cache of so many users",
        "context_tokens": "Add the key: plan sizes the KV cache of users with so many tokens",
        "fabric": "Add the key: plan compares fabrics; 'kvfabric simulate' can do without",
    }
)


def run_plan(
    path: Path | None,
    overrides: Overrides,
    *,
    output_format: str,
    out: Path | None,
    jobs: int | None = None,
) -> tuple[str, bool]:
    """Return what the command prints, and whether no fabric can deadlock.

    With ``out`` it also writes plan.txt and plan.json there.

    ``jobs`` designs are simulated at once; all cores by default.
    """
    name = BUILT_IN if path is None else str(path)
    scenario = apply_overrides(load_scenario(path), overrides)
    require_keys(scenario, _NEEDED, path)
    folder = Path() if path is None else path.parent
    check_out(out)
    with placed(path), progress_bar() as report:
        request = resolve(scenario, folder=folder, name=name)
        comparison = compare(request, report, num_processes=jobs or _num_cores())
    verdicts = judge(comparison)
    text = render_plan(comparison, verdicts)
    as_json = json.dumps(comparison_to_dict(comparison, verdicts), indent=2) + "\n"
    if out is not None:
        write_files(out, {"plan.txt": text, "plan.json": as_json})
    return (as_json if output_format == "json" else text), not comparison.can_deadlock


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def show_plan(path: Path | None, overrides: Overrides) -> str:
    """Return the scenario as YAML that can be run, each value with where it comes from."""
    loaded = load_scenario(path)
    name = BUILT_IN if path is None else str(path)
    return shown_scenario(apply_overrides(loaded, overrides), loaded, name)
