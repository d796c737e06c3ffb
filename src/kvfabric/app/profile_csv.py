"""The CSV files of an operator profile: every row checked, every mistake with its line."""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple, TypeVar

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.perf.attention_grid import AttentionPoint
from kvfabric.perf.curve import FS_PER_US, Curve
from kvfabric.perf.moe import ExpertTable
from kvfabric.perf.profile_tables import check_operator
from kvfabric.workload.open_text import read_lines

_Key = TypeVar("_Key")
_TIME = "time_us"
_ATTENTION_KERNEL = "attention"


class _Row(NamedTuple):
    """One measurement: its place in the file, its columns as text by name, its time."""

    where: str
    fields: dict[str, str]
    time_fs: int

    def count(self, column: str) -> int:
        """Return a whole number from 0 that stands in a column."""
        text = self.fields[column]
        if not text.isascii() or not text.isdecimal():
            raise ConfigError(
                f"{column} {text!r}", where=self.where, hint="Write a whole number from 0"
            )
        return int(text)


def read_curves(path: Path, size_column: str, operators: Sequence[str]) -> dict[str, Curve]:
    """Return time by size per operator from ``layer,<size_column>,time_us``.

    Raises:
        ConfigError: unreadable file, a column or value that is none, an unknown operator, or one
            size of an operator twice.
    """
    points: dict[str, dict[int, int]] = {}
    for row in _rows(path, ("layer", size_column)):
        check_operator(row.fields["layer"], operators, where=row.where)
        size = row.count(size_column)
        if size < 1:
            raise ConfigError(f"{size_column} 0", where=row.where, hint="Write a number from 1")
        curve = points.setdefault(row.fields["layer"], {})
        _add(curve, size, row, f"{row.fields['layer']} at {size} {size_column}")
    return {name: _curve(curve) for name, curve in points.items()}


def read_attention(path: Path) -> dict[AttentionPoint, int]:
    """Return time in fs by point, of the plain attention kernel with one token per decode.

    Raises:
        ConfigError: as ``read_curves``.
        UnsupportedError: another kernel, or prefill by query-weighted keys.
    """
    points: dict[AttentionPoint, int] = {}
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    for row in _rows(path, columns):
        kernel = row.fields.get("layer", _ATTENTION_KERNEL)
        if kernel != _ATTENTION_KERNEL:
            raise UnsupportedError(
                f"attention kernel {kernel!r}",
                where=row.where,
                hint="Only models with plain attention on every layer can be composed",
            )
        if "decode_q_len" in row.fields and row.count("decode_q_len") != 1:
            continue  # speculative decoding
        chunk, history, decodes, context = (row.count(column) for column in columns)
        point = AttentionPoint(chunk, history, decodes, context)
        _add(points, point, row, f"the point {tuple(point)}")
    return points


def read_experts(path: Path, num_shards: int) -> ExpertTable:
    """Return the time of routed experts on one of ``num_shards`` ranks.

    Files with a column ``ep`` hold one table per number of ranks; the wanted one is taken, else
    that of one rank. Files without it hold that of one rank.

    Raises:
        ConfigError: as ``read_curves``, or neither table is there.
    """
    tables: dict[int, dict[int, dict[int, int]]] = {}
    for row in _rows(path, ("tokens", "activated_experts")):
        ranks = row.count("ep") if "ep" in row.fields else 1
        tokens, activated = row.count("tokens"), row.count("activated_experts")
        if not ranks or not tokens or not activated:
            raise ConfigError(
                f"tokens {tokens}, activated_experts {activated}, ep {ranks}",
                where=row.where,
                hint="Write numbers from 1",
            )
        curve = tables.setdefault(ranks, {}).setdefault(activated, {})
        _add(curve, tokens, row, f"{tokens} tokens with {activated} experts")
    measured = num_shards if num_shards in tables else 1
    if measured not in tables:
        raise ConfigError(
            f"experts measured for ep {', '.join(map(str, sorted(tables)))}",
            where=str(path),
            hint=f"Add rows for ep {num_shards}, or for ep 1",
        )
    rows = sorted(tables[measured].items())
    return ExpertTable(
        tuple(activated for activated, _ in rows),
        tuple(_curve(points) for _, points in rows),
        measured,
    )


def _curve(points: dict[int, int]) -> Curve:
    sizes = tuple(sorted(points))
    return Curve(sizes, tuple(points[size] for size in sizes))


def _add(points: dict[_Key, int], key: _Key, row: _Row, name: str) -> None:
    if key in points:
        raise ConfigError(f"{name} stands twice", where=row.where, hint="Keep one of the rows")
    points[key] = row.time_fs


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows of a file that has at least these columns and a time."""
    lines = read_lines(path)
    number, header = next(lines, (1, ""))
    names = [name.strip() for name in header.split(",")]
    missing = [name for name in (*columns, _TIME) if name not in names]
    if missing:
        raise ConfigError(
            f"header {header[:100]!r} lacks {', '.join(missing)}",
            where=f"{path}:{number}",
            hint=f"Write columns {', '.join((*columns, _TIME))}",
        )
    is_empty = True
    for number, line in lines:
        if line.strip():
            is_empty = False
            yield _row(f"{path}:{number}", names, line)
    if is_empty:
        raise ConfigError("no rows below the header", where=str(path), hint="Add measurements")


def _row(where: str, names: Sequence[str], line: str) -> _Row:
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(names):
        raise ConfigError(
            f"{len(values)} values under {len(names)} columns: {line[:100]!r}",
            where=where,
            hint="Write one value per column",
        )
    fields = dict(zip(names, values, strict=True))
    return _Row(where, fields, _time_fs(fields[_TIME], where))


def _time_fs(text: str, where: str) -> int:
    try:
        time_us = Decimal(text)
    except InvalidOperation:
        time_us = Decimal("nan")
    if not math.isfinite(time_us) or not 0 < time_us < 10**9:
        raise ConfigError(f"{_TIME} {text!r}", where=where, hint="Write microseconds above 0")
    return max(1, int(time_us * FS_PER_US))
