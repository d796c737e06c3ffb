"""BurstGPT traces: CSV of seconds, prompt and response tokens, without reuse data.

Format: https://github.com/HPMLL/BurstGPT: ``Timestamp`` in s from the start of the trace,
``Model``, ``Request tokens``, ``Response tokens``, ``Total tokens``, ``Log Type``; later files also
have ``Session ID`` and ``Elapsed time``. Requests that failed have 0 response tokens.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from kvfabric.protocol.workload import Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.csv_rows import read_header, require_tokens, split_row
from kvfabric.workload.open_text import read_lines
from kvfabric.workload.row_policy import BadRowPolicy, RowError, TraceRow, read_rows, settle

BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")

_SECONDS = re.compile(r"(\d{1,8})(?:\.(\d{0,12}))?", re.ASCII)


def read_burstgpt(
    path: Path, *, on_bad_rows: BadRowPolicy = "refuse", max_model_len: int | None = None
) -> Workload:
    """Return the workload of a BurstGPT CSV file, plain or packed; see ``parse_burstgpt``."""
    return parse_burstgpt(
        read_lines(path), name=path.name, on_bad_rows=on_bad_rows, max_model_len=max_model_len
    )


def parse_burstgpt(
    lines: Iterable[tuple[int, str]],
    *,
    name: str,
    on_bad_rows: BadRowPolicy = "refuse",
    max_model_len: int | None = None,
) -> Workload:
    """Return the workload of numbered lines, all models together, in the order of the file.

    Instant 0 is where the file counts from. Failed requests are bad rows: a file that has some is
    read with ``skip``. The head of a file may be nearly idle, see ``rescale.unlike_whole``.

    Args:
        lines: ``(line number, text)``, the header first.
        name: what messages call the file.
        on_bad_rows: ``refuse`` the file at a bad row, or ``skip`` and list bad rows.
        max_model_len: longest prompt plus output of the model, in tokens.
    """
    rest = iter(lines)
    columns = read_header(rest, name, BURSTGPT_COLUMNS)
    rows = read_rows(rest, lambda text: _parse_row(text, columns), max_model_len=max_model_len)
    return settle(name, rows, on_bad_rows=on_bad_rows, hash_block_tokens=0)


def _parse_row(text: str, columns: list[str]) -> TraceRow:
    fields = split_row(text, columns)
    arrival_ns = _seconds_ns(fields["Timestamp"])
    num_prompt_tokens = require_tokens(fields, "Request tokens", low=0)
    num_output_tokens = require_tokens(fields, "Response tokens", low=0)
    if not num_prompt_tokens or not num_output_tokens:
        raise RowError(
            f"{num_prompt_tokens} request and {num_output_tokens} response tokens: the request "
            "failed",
            "Drop the row",
        )
    return TraceRow(
        arrival_ns=arrival_ns,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
    )


def _seconds_ns(text: str) -> int:
    """Return ns; the decimals are read as digits, those past the ninth are cut off."""
    match = _SECONDS.fullmatch(text)
    if match is None:
        raise RowError(
            f"Timestamp is not a number of seconds: {text[:120]!r}",
            "Write seconds from the start of the trace, such as 45 or 45.25",
        )
    whole, decimals = match.groups()
    return int(whole) * NS_PER_S + int((decimals or "").ljust(9, "0")[:9])
