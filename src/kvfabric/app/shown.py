"""A scenario as YAML that can be run, each value with where it comes from."""

import json
from pathlib import Path

from pydantic import BaseModel

from kvfabric.app.models import is_catalog_name
from kvfabric.app.scenario import Scenario


def with_whole_paths(scenario: Scenario, folder: Path) -> Scenario:
    """Return the scenario with paths that hold from anywhere, as its copy may lie elsewhere."""
    changes: dict[str, object] = {}
    for key in ("workload", "perf"):
        section = getattr(scenario, key)
        path = getattr(section, "path", None)
        if path is not None:
            whole = str((folder / path).absolute())
            changes[key] = section.model_copy(update={"path": whole})
    if isinstance(scenario.prices, str):
        changes["prices"] = str((folder / scenario.prices).absolute())
    if not is_catalog_name(scenario.model):
        changes["model"] = str((folder / scenario.model).absolute())
    return scenario.model_copy(update=changes)


def shown_scenario(scenario: Scenario, loaded: Scenario, name: str, changed: str = "flag") -> str:
    """Return the scenario as text.

    Args:
        scenario: what would run.
        loaded: what the file says, before flags.
        name: of the file.
        changed: origin of what differs between the two.
    """
    return "\n".join(_shown(scenario, loaded, name, changed)) + "\n"


def _shown(
    section: BaseModel, loaded: BaseModel | None, name: str, changed: str, indent: str = ""
) -> list[str]:
    lines: list[str] = []
    dumped = section.model_dump(mode="json")
    for key in type(section).model_fields:
        value = getattr(section, key)
        before = getattr(loaded, key, None)
        if isinstance(value, BaseModel):
            inner = before if isinstance(before, BaseModel) else None
            below = _shown(value, inner, name, changed, indent + "  ")
            lines += [f"{indent}{key}:", *below] if below else [f"{indent}{key}: {{}}"]
            continue
        origin = name if loaded is not None and key in loaded.model_fields_set else "default"
        if value != before:
            origin = changed
        if value is not None:
            lines.append(f"{indent}{key}: {json.dumps(dumped[key])}  # {origin}")
    return lines
