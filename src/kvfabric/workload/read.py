"""Picks the reader of a trace by its content or its name."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import Workload
from kvfabric.workload.azure import AZURE_COLUMNS, parse_azure
from kvfabric.workload.burstgpt import BURSTGPT_COLUMNS, parse_burstgpt
from kvfabric.workload.mooncake import MOONCAKE_BLOCK_TOKENS, parse_mooncake
from kvfabric.workload.open_text import read_lines, unpacked_suffix
from kvfabric.workload.recorded_run import FIRST_KEY, parse_recorded_run
from kvfabric.workload.row_policy import BadRowPolicy

TraceFormat = Literal["mooncake", "azure", "burstgpt", "recorded_run"]

_FORMAT_BY_SUFFIX: dict[str, TraceFormat] = {
    ".jsonl": "mooncake",
    ".json": "mooncake",
    ".csv": "azure",
}


def read_trace(
    path: Path,
    *,
    trace_format: TraceFormat | None = None,
    on_bad_rows: BadRowPolicy = "refuse",
    max_model_len: int | None = None,
    hash_block_tokens: int = MOONCAKE_BLOCK_TOKENS,
) -> Workload:
    """Return the workload of a trace file, plain, .gz or .xz.

    Args:
        path: the file.
        trace_format: skips the guess from the first line and then from the suffix.
        on_bad_rows: ``refuse`` the file at a bad row, or ``skip`` and list bad rows in the result.
        max_model_len: longest prompt plus output of the model, in tokens; rows beyond are bad.
        hash_block_tokens: tokens per hash id of a Mooncake file; the others have none.

    Raises:
        ConfigError: the file cannot be read or recognised, is empty, or has a bad row.
    """
    rows, chosen = _recognised(path, trace_format)
    if chosen == "recorded_run":
        run = parse_recorded_run(
            rows, name=path.name, on_bad_rows=on_bad_rows, max_model_len=max_model_len
        )
        return run.workload
    if chosen != "mooncake":
        parse = parse_azure if chosen == "azure" else parse_burstgpt
        return parse(rows, name=path.name, on_bad_rows=on_bad_rows, max_model_len=max_model_len)
    return parse_mooncake(
        rows,
        name=path.name,
        on_bad_rows=on_bad_rows,
        max_model_len=max_model_len,
        hash_block_tokens=hash_block_tokens,
    )


def trace_format_of(path: Path, trace_format: TraceFormat | None = None) -> TraceFormat:
    """Return the format of a file, from its first line and then from its suffix.

    Raises:
        ConfigError: the file cannot be read or recognised, or is empty.
    """
    return _recognised(path, trace_format)[1]


def _recognised(
    path: Path, trace_format: TraceFormat | None
) -> tuple[Iterator[tuple[int, str]], TraceFormat]:
    """Return the lines of a file from the first that is not blank on, and its format."""
    lines = read_lines(path)
    head = list(itertools.islice(_skip_blank(lines), 1))
    if not head:
        raise ConfigError(
            "the file is empty", where=str(path), hint="A trace needs at least one request"
        )
    chosen = _require_format(trace_format) or _guess_format(path, head[0][1])
    return itertools.chain(head, lines), chosen


def _skip_blank(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    return ((line, text) for line, text in lines if text.strip())


def _require_format(trace_format: TraceFormat | None) -> TraceFormat | None:
    if trace_format is not None and trace_format not in get_args(TraceFormat):
        raise ConfigError(
            f"read {trace_format!r}",
            where="trace_format",
            hint="Write 'mooncake', 'azure', 'burstgpt' or 'recorded_run'",
        )
    return trace_format


def _guess_format(path: Path, first_line: str) -> TraceFormat:
    if first_line.lstrip().startswith("{"):
        return "recorded_run" if f'"{FIRST_KEY}"' in first_line else "mooncake"
    if AZURE_COLUMNS[0] in first_line:
        return "azure"
    if BURSTGPT_COLUMNS[1] in first_line:
        return "burstgpt"
    suffix = unpacked_suffix(path)
    if suffix not in _FORMAT_BY_SUFFIX:
        raise ConfigError(
            f"cannot tell the format from {first_line[:120]!r} or the suffix {suffix!r}",
            where=str(path),
            hint="Name the file .jsonl (Mooncake) or .csv (Azure), or state trace_format",
        )
    return _FORMAT_BY_SUFFIX[suffix]
