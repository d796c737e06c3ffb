"""Rows of a trace in CSV: the header that names columns, and cells that must be numbers."""

import csv
import re
from collections.abc import Iterator, Sequence

from kvfabric.errors import ConfigError
from kvfabric.workload.limits import MAX_NUM_TOKENS
from kvfabric.workload.row_policy import RowError, require_whole

_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def read_header(lines: Iterator[tuple[int, str]], name: str, needed: Sequence[str]) -> list[str]:
    """Return the columns of the first line that is not blank.

    Raises:
        ConfigError: a needed column is not there exactly once.
    """
    line, text = next(((line, text) for line, text in lines if text.strip()), (1, ""))
    columns = [column.strip() for column in text.split(",")]
    missing = [column for column in needed if columns.count(column) != 1]
    if missing:
        raise ConfigError(
            f"the header {text[:120]!r} lacks {', '.join(missing)}"
            if text
            else "the file is empty",
            where=f"{name}: line {line}",
            hint=f"The first line must read {','.join(needed)}",
        )
    return columns


def split_row(text: str, columns: Sequence[str]) -> dict[str, str]:
    """Return the cells of a row by column, or raise ``RowError``."""
    try:
        cells = [cell.strip() for cell in next(csv.reader([text]))]
    except csv.Error as error:
        raise RowError(f"not a CSV row ({error})", "Write values between commas") from error
    if len(cells) != len(columns):
        raise RowError(
            f"{len(cells)} columns where the header has {len(columns)}",
            f"Write {','.join(columns)}",
        )
    return dict(zip(columns, cells, strict=True))


def require_tokens(fields: dict[str, str], key: str, *, low: int = 1) -> int:
    """Return a cell that is a number of tokens from ``low`` on, or raise ``RowError``."""
    return require_whole(_number(fields[key]), key, low=low, high=MAX_NUM_TOKENS)


def _number(text: str) -> int | float | str:
    """Return the text as the kind of number it is, or as it stands if it is none."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
