"""``kvfabric plan``: a scenario in, the comparison as text, JSON or HTML out."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvfabric.app.output import check_out, progress_bar, write_files
from kvfabric.app.placed import placed, require_keys
from kvfabric.app.plan_files import wiring_files
from kvfabric.app.price_book_file import load_price_book
from kvfabric.app.render import render_plan
from kvfabric.app.report_file import check_html, write_html
from kvfabric.app.resolve import Overrides, apply_overrides, resolve
from kvfabric.app.scenario import Scenario
from kvfabric.app.scenario_file import BUILT_IN, load_scenario
from kvfabric.app.shown import shown_scenario
from kvfabric.export.plan_json import comparison_to_dict
from kvfabric.export.report.page import report_html
from kvfabric.plan.compare import Comparison, compare
from kvfabric.plan.verdict import judge

_NEEDED: Final = MappingProxyType(
    {
        "gpu": "Add the key: plan sizes and prices a fleet of named GPUs",
        "users": "Add the key: plan sizes the KV cache of so many users",
        "context_tokens": "Add the key: plan sizes the KV cache of users with so many tokens",
        "fabric": "Add the key: plan compares fabrics; 'kvfabric simulate' can do without",
    }
)

_COMMAND: Final = "kvfabric plan scenario.yaml --html report.html"


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """What is written besides stdout: a folder with everything, and the report alone."""

    out: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Refuse, before the long run, what cannot be written."""
        check_out(self.out)
        check_html(self.html)


def run_plan(
    path: Path | None,
    overrides: Overrides,
    *,
    output_format: str,
    files: PlanFiles,
    prices: Path | None = None,
    jobs: int | None = None,
) -> tuple[str, bool]:
    """Return what the command prints, and whether no fabric can deadlock.

    ``prices`` is the user's price book; ``jobs`` designs are simulated at once, all cores by
    default.
    """
    loaded, name = load_scenario(path), _name(path)
    scenario = _with_prices(apply_overrides(loaded, overrides), prices)
    require_keys(scenario, _NEEDED, path)
    folder = Path() if path is None else path.parent
    files.check()
    with placed(path), progress_bar() as report:
        request = resolve(scenario, folder=folder, name=name)
        comparison = compare(request, report, num_processes=jobs or _num_cores())
    verdicts = judge(comparison)
    text = render_plan(comparison, verdicts)
    as_json = json.dumps(comparison_to_dict(comparison, verdicts), indent=2) + "\n"
    page = ""
    if files.out is not None or files.html is not None:
        shown = shown_scenario(scenario, loaded, name)
        page = report_html(comparison, verdicts, scenario=shown, command=_COMMAND)
    if files.out is not None:
        _write_out(files.out, comparison, {"plan.txt": text, "plan.json": as_json}, page)
    if files.html is not None:
        write_html(files.html, page)
    return (as_json if output_format == "json" else text), not comparison.can_deadlock


def _write_out(out: Path, comparison: Comparison, texts: dict[str, str], page: str) -> None:
    lists, problems = wiring_files(comparison)
    write_files(out, {**texts, "report.html": page, **lists})
    for problem in problems:
        print(f"kvfabric: {problem}", file=sys.stderr)  # noqa: T201 - the result stays on stdout


def _with_prices(scenario: Scenario, prices: Path | None) -> Scenario:
    """Return the scenario with the user's price book, which is read here to name the flag."""
    if prices is None:
        return scenario
    load_price_book(str(prices), where="--prices")
    return scenario.model_copy(update={"prices": str(prices.absolute())})


def _name(path: Path | None) -> str:
    return BUILT_IN if path is None else str(path)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def show_plan(path: Path | None, overrides: Overrides, *, prices: Path | None = None) -> str:
    """Return the scenario as YAML that can be run, each value with where it comes from."""
    loaded = load_scenario(path)
    scenario = _with_prices(apply_overrides(loaded, overrides), prices)
    return shown_scenario(scenario, loaded, _name(path))
