"""The table of ``kvfabric validate`` as JSON: every comparison, its errors, its figures."""

from collections.abc import Sequence
from typing import Final

from kvfabric.plan.validation.comparison import Row, Unit, error_of

MOST_FIGURES: Final = 200
"""Of a comparison with more, such as every flow of a run, only the errors are given."""


def reference_command(row: Row) -> str:
    """Return the command that recomputes a row with the reference data at hand."""
    return f"kvfabric validate --reference DIR --only {row.comparison.part}"


def rows_to_dict(rows: Sequence[Row]) -> dict[str, object]:
    """Return all rows, ready for JSON; errors are fractions where their unit is ``%``."""
    return {
        "num_comparisons": len(rows),
        "num_recomputed": sum(row.is_recomputed for row in rows),
        "num_worse": sum(not row.is_within for row in rows),
        "rows": [_row(row) for row in rows],
    }


def _row(row: Row) -> dict[str, object]:
    comparison, errors = row.comparison, row.errors
    return {
        "part": comparison.part,
        "what": comparison.what,
        "source": comparison.source,
        "role": comparison.role.value,
        "unit": comparison.unit.value,
        "n": errors.num,
        "error_mean": errors.mean,
        "error_worst": errors.worst,
        "error_lowest": errors.lowest,
        "error_highest": errors.highest,
        "limit_mean": comparison.limit.mean,
        "limit_worst": comparison.limit.worst,
        "within": row.is_within,
        **_status(row),
        "figures": [_figure(row, place) for place in range(len(row.figures))]
        if len(row.figures) <= MOST_FIGURES
        else [],
    }


def _status(row: Row) -> dict[str, object]:
    record = row.comparison.record
    if row.is_recomputed or record is None:
        return {"status": "recomputed", "needs": list(row.comparison.needs)}
    return {
        "status": "recorded",
        "recorded_on": record.date,
        "command": reference_command(row),
        "needs": list(row.comparison.needs),
    }


def _figure(row: Row, place: int) -> dict[str, object]:
    figure = row.figures[place]
    error = error_of(figure, row.comparison.unit)
    is_finite = row.comparison.unit is not Unit.RELATIVE or figure.published != 0 or error == 0
    return {
        "name": figure.name,
        "published": figure.published,
        "ours": figure.ours,
        "error": error if is_finite else None,
    }
