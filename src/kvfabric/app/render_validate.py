"""The table of ``kvfabric validate`` as text and as Markdown."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from kvfabric.export.validation_json import MOST_FIGURES, reference_command
from kvfabric.plan.validation.comparison import Row, Unit, error_of

_COLUMNS: Final = ("what", "n", "mean", "worst", "limit", "role", "status")
_TINY: Final = 1e-12
_DIGITS: Final = 1e-5


def render_rows(rows: Sequence[Row], *, with_figures: bool = False) -> str:
    """Return the table as text: two lines per comparison, its source on the second.

    Args:
        rows: in order of their parts.
        with_figures: whether every compared figure gets a line too.
    """
    lines = [
        "How far each part is from published figures: ours over published, minus 1, or the",
        "difference where a unit stands; mean without signs, and the one farthest off.",
        *(["Below each row: every figure as published, ours, and the error."] * with_figures),
        "",
        _line(_COLUMNS),
    ]
    for part, rows_of_part in groupby(rows, key=lambda row: row.comparison.part):
        lines.append(part)
        for row in rows_of_part:
            lines += _row_lines(row)
            if with_figures:
                lines += _figure_lines(row)
    return "\n".join([*lines, "", *_summary(rows)]) + "\n"


def render_markdown(rows: Sequence[Row]) -> str:
    """Return the table as Markdown, a line per comparison."""
    head = ("part", "what", "against", "n", "mean", "worst", "limit", "role", "status")
    cells = [head, ("---",) * len(head), *(_cells(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _cells(row: Row) -> tuple[str, ...]:
    comparison = row.comparison
    what, *numbers, role, status = _values(row)
    return (comparison.part, what, comparison.source, *numbers, role, status)


def _values(row: Row) -> tuple[str, ...]:
    comparison, errors = row.comparison, row.errors
    record = comparison.record
    recorded = "" if record is None else f"recorded {record.date}"
    return (
        comparison.what,
        f"{errors.num:,}",
        error_text(errors.mean, comparison.unit),
        error_text(errors.worst, comparison.unit, signed=True),
        error_text(comparison.limit.worst, comparison.unit),
        comparison.role.value,
        "recomputed" if row.is_recomputed else recorded,
    )


def error_text(error: float, unit: Unit, *, signed: bool = False) -> str:
    """Return an error for people: ``none``, ``+3.4 %``, ``2.1e-12`` or ``+0.44 GiB``."""
    sign = "+" if signed else ""
    size = abs(error)
    if size == 0:
        return "none"
    if unit is not Unit.RELATIVE:
        return f"{error:{sign}.2f} {unit.value}"
    if size < _TINY:
        return f"< {_TINY:.0e}"
    if size < _DIGITS:
        return f"{error:{sign}.1e}"
    digits = 1 if size >= 0.001 else 3
    return f"{100 * error:{sign}.{digits}f} %"


def _line(values: Sequence[str]) -> str:
    what, num, mean, worst, limit, role, status = values
    text = f"  {what:<58} {num:>6} {mean:>9} {worst:>9} {limit:>9}  {role:<10}"
    return f"{text} {status.split(' ')[0]}"


def _row_lines(row: Row) -> Iterator[str]:
    yield _line(_values(row))
    record = row.comparison.record
    if row.is_recomputed or record is None:
        yield f"      {row.comparison.source}"
        return
    needs = ", ".join(row.comparison.needs)
    yield f"      {row.comparison.source}; on {record.date}, needs {needs}"


def _figure_lines(row: Row) -> Iterator[str]:
    if not row.figures or len(row.figures) > MOST_FIGURES:
        yield f"        {row.errors.num:,} figures, not shown one by one"
        return
    unit = row.comparison.unit
    for figure in row.figures:
        error = error_text(error_of(figure, unit), unit, signed=True)
        values = f"{figure.published:>14,.7g} {figure.ours:>14,.7g}"
        yield f"        {figure.name:<58} {values} {error:>9}"


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    recorded = [row for row in rows if not row.is_recomputed]
    yield f"{len(rows)} comparisons, {len(rows) - len(recorded)} recomputed now."
    if recorded:
        parts = dict.fromkeys(row.comparison.part for row in recorded)
        yield (
            f"{len(recorded)} as recorded, because the package does not carry their data"
            f" ({', '.join(parts)}):"
        )
        yield from (
            f"  {command}" for command in dict.fromkeys(reference_command(row) for row in recorded)
        )
    worse = [row for row in rows if not row.is_within]
    yield from (_finding(row) for row in worse)
    if not worse:
        yield "None is worse than its limit."


def _finding(row: Row) -> str:
    comparison, errors = row.comparison, row.errors
    mean, worst, mean_limit, worst_limit = (
        error_text(error, comparison.unit)
        for error in (errors.mean, abs(errors.worst), comparison.limit.mean, comparison.limit.worst)
    )
    return (
        f"WORSE: {comparison.part}, {comparison.what}: mean {mean} (limit {mean_limit}),"
        f" worst {worst} (limit {worst_limit})"
    )
