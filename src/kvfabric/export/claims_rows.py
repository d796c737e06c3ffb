"""Every cell of the sweep as a flat row: settings, figures of both sides, changes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

from kvfabric.plan.claims.changes import Change
from kvfabric.plan.claims.figures import RunFigures
from kvfabric.plan.claims.settings import RunSettings

Value = str | int | float | None

_CHANGES = ("ttft_mean_ns", "ttft_p50_ns", "ttft_p99_ns", "requests_per_s", "output_tokens_per_s",
            "wire_mean_ns", "wire_p99_ns")  # fmt: skip


def change_rows(changes: Sequence[Change]) -> list[dict[str, Value]]:
    """Return one row per cell, engine and seed; all rows have the same keys.

    Settings of the run before stand under their names, those of the run after that differ under
    ``after_*`` too; figures under ``before_*`` and ``after_*``.
    """
    return [row for change in changes for row in _rows(change)]


def _rows(change: Change) -> Iterator[dict[str, Value]]:
    if not change.before:
        yield _row(change, None, None, None)
        return
    for seed, before, after in zip(change.cell.seeds, change.before, change.after, strict=True):
        yield _row(change, seed, before, after)


def _row(
    change: Change, seed: int | None, before: RunFigures | None, after: RunFigures | None
) -> dict[str, Value]:
    cell = change.cell
    settings = asdict(cell.before) | {"engine": change.engine, "seed": seed}
    row: dict[str, Value] = {
        "cell": cell.name,
        "kind": cell.kind,
        "factor": cell.factor,
        "value": cell.value,
        "evidence": change.evidence.value,
        "reason": change.reason,
    }
    row |= {f"setting_{key}": value for key, value in settings.items()}
    left = ("engine", "seed")
    row |= {
        f"after_setting_{item.name}": getattr(cell.after, item.name)
        for item in fields(RunSettings)
        if item.name not in left
    }
    for side, figures in (("before", before), ("after", after)):
        row |= {
            f"{side}_{item.name}": None if figures is None else getattr(figures, item.name)
            for item in fields(RunFigures)
        }
    row |= {f"change_{name}": _relative(before, after, name) for name in _CHANGES}
    return row


def _relative(before: RunFigures | None, after: RunFigures | None, name: str) -> float | None:
    if before is None or after is None or not getattr(before, name):
        return None
    return float(getattr(after, name) / getattr(before, name) - 1)
