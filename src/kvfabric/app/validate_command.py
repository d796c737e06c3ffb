"""``kvfabric validate``: runs the comparisons with published figures and prints their errors."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from kvfabric.app.render_validate import render_markdown, render_rows
from kvfabric.app.validate_reference import ReferenceFolder
from kvfabric.export.validation_json import rows_to_dict
from kvfabric.plan.validation.comparison import Comparison
from kvfabric.plan.validation.registry import comparisons_of, run_comparisons


def run_validate(
    *,
    reference: Path | None,
    only: Sequence[str],
    output_format: str,
    with_figures: bool = False,
    tell: Callable[[str], None],
) -> tuple[str, bool]:
    """Return what the command prints, and whether no row is worse than its limit.

    Args:
        reference: folder of the reference data; without it what needs it is shown as recorded.
        only: parts; none for all.
        output_format: ``text``, ``json`` or ``markdown``.
        with_figures: whether the text lists every compared figure.
        tell: is told what runs, and what the folder lacks.

    Raises:
        ConfigError: an unknown part, no such folder, or a file of it that cannot be read.
    """
    comparisons = comparisons_of(only)
    folder = None if reference is None else ReferenceFolder(reference)
    done = 0

    def report(comparison: Comparison) -> None:
        nonlocal done
        done += 1
        tell(f"[{done}/{len(comparisons)}] {comparison.part}: {comparison.what}")
        if folder is not None and (missing := folder.missing(comparison.needs)):
            tell(f"  not in {reference}: {', '.join(missing)}; shown as recorded")

    rows = list(run_comparisons(comparisons, folder, report))
    is_within = all(row.is_within for row in rows)
    if output_format == "json":
        return json.dumps(rows_to_dict(rows), indent=2) + "\n", is_within
    if output_format == "markdown":
        return render_markdown(rows), is_within
    return render_rows(rows, with_figures=with_figures), is_within
