"""The files that ``kvfabric plan --out`` writes: text, JSON, report, parts and wiring lists."""

from collections.abc import Iterator

from kvfabric.errors import ConfigError
from kvfabric.export.wiring_files import fabric_files
from kvfabric.plan.bom import bill_of_materials
from kvfabric.plan.compare import Comparison, FabricFacts
from kvfabric.plan.wiring import wire


def wiring_files(comparison: Comparison) -> tuple[dict[str, str | bytes], list[str]]:
    """Return parts and wiring list of every fabric by file name, and why one has none."""
    found: dict[str, str | bytes] = {}
    problems: list[str] = []
    for fabric in _fabrics(comparison):
        try:
            files = _files_of(comparison, fabric)
        except ConfigError as error:
            problems.append(f"no wiring list of {fabric.label}: {error.what}")
            continue
        taken = found.keys() & files.keys()
        if taken:
            problems.append(f"no wiring list of {fabric.label}: {min(taken)} is of another fabric")
            continue
        found |= files
    return found, problems


def _files_of(comparison: Comparison, fabric: FabricFacts) -> dict[str, str | bytes]:
    whole = fabric.topology if fabric.whole is None else fabric.whole
    wiring = wire(whole, rule=fabric.bom.cable_rule)
    bom = bill_of_materials(whole, comparison.request.price_book, wiring.cables)
    return fabric_files(wiring, bom, label=fabric.label)


def _fabrics(comparison: Comparison) -> Iterator[FabricFacts]:
    seen: set[str] = set()
    for design in comparison.designs:
        if design.fabric is not None and design.fabric.label not in seen:
            seen.add(design.fabric.label)
            yield design.fabric
