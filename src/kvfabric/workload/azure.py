"""Azure LLM inference traces: CSV of arrival, prompt tokens and output tokens, no reuse data.

Format: https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceTrace, 2023 and 2024):
``TIMESTAMP,ContextTokens,GeneratedTokens`` with up to 7 decimals of a second, perhaps a time zone.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvfabric.protocol.workload import Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.csv_rows import read_header, require_tokens, split_row
from kvfabric.workload.open_text import read_lines
from kvfabric.workload.row_policy import (
    BadRowPolicy,
    RowError,
    TraceRow,
    read_rows,
    settle,
)

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_TIMESTAMP_HINT = "Write date and time, such as 2023-11-16 18:15:46.6805900"


def read_azure(
    path: Path, *, on_bad_rows: BadRowPolicy = "refuse", max_model_len: int | None = None
) -> Workload:
    """Return the workload of an Azure CSV file, plain or packed; see ``parse_azure``."""
    return parse_azure(
        read_lines(path), name=path.name, on_bad_rows=on_bad_rows, max_model_len=max_model_len
    )


def parse_azure(
    lines: Iterable[tuple[int, str]],
    *,
    name: str,
    on_bad_rows: BadRowPolicy = "refuse",
    max_model_len: int | None = None,
) -> Workload:
    """Return the workload of numbered lines, arrivals counted from the first good row.

    Columns may stand in any order and others beside them. Times without a zone are taken as UTC.

    Args:
        lines: ``(line number, text)``, the header first.
        name: what messages call the file.
        on_bad_rows: ``refuse`` the file at a bad row, or ``skip`` and list bad rows.
        max_model_len: longest prompt plus output of the model, in tokens.
    """
    rest = iter(lines)
    columns = read_header(rest, name, AZURE_COLUMNS)
    rows = read_rows(rest, lambda text: _parse_row(text, columns), max_model_len=max_model_len)
    arrivals_ns = (row.content.arrival_ns for row in rows if isinstance(row.content, TraceRow))
    return settle(
        name, rows, on_bad_rows=on_bad_rows, hash_block_tokens=0, origin_ns=next(arrivals_ns, 0)
    )


def _parse_row(text: str, columns: list[str]) -> TraceRow:
    fields = split_row(text, columns)
    return TraceRow(
        arrival_ns=_timestamp_ns(fields["TIMESTAMP"]),
        num_prompt_tokens=require_tokens(fields, "ContextTokens"),
        num_output_tokens=require_tokens(fields, "GeneratedTokens"),
    )


def _timestamp_ns(text: str) -> int:
    """Return ns since 1970; the decimals are read as digits, a float would lose the last ones."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise RowError(f"TIMESTAMP is not a time: {text!r}", _TIMESTAMP_HINT)
    date, clock, decimals, zone = match.groups()
    try:
        instant = datetime.fromisoformat(f"{date}T{clock}{zone or 'Z'}")
    except ValueError as error:
        raise RowError(f"TIMESTAMP is not a time ({error}): {text!r}", _TIMESTAMP_HINT) from error
    whole_s = (instant - _EPOCH) // timedelta(seconds=1)
    return whole_s * NS_PER_S + int((decimals or "").ljust(9, "0"))
