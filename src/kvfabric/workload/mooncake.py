"""Mooncake traces: one JSON object a line, with ids of the 512-token blocks of each prompt.

Format: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces): ``timestamp`` in ms,
``input_length`` and ``output_length`` in tokens, ``hash_ids`` chained from the first block on, the
last one for what is left of the prompt.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from kvfabric.protocol.workload import Workload
from kvfabric.units import ceil_div
from kvfabric.workload.limits import MAX_NUM_TOKENS, require_int
from kvfabric.workload.open_text import read_lines
from kvfabric.workload.row_policy import (
    BadRowPolicy,
    ReadRow,
    RowError,
    TraceRow,
    read_rows,
    require_whole,
    settle,
)

MOONCAKE_BLOCK_TOKENS = 512

_NS_PER_MS = 1_000_000
_MAX_TIMESTAMP_MS = 4_000_000_000_000  # as an epoch: the year 2096; in ns still below 2**62
_MAX_HASH_ID = 2**64 - 1
_START = -1  # what the first id of a row follows


def read_mooncake(
    path: Path,
    *,
    on_bad_rows: BadRowPolicy = "refuse",
    max_model_len: int | None = None,
    hash_block_tokens: int = MOONCAKE_BLOCK_TOKENS,
) -> Workload:
    """Return the workload of a Mooncake file, plain or packed; see ``parse_mooncake``."""
    return parse_mooncake(
        read_lines(path),
        name=path.name,
        on_bad_rows=on_bad_rows,
        max_model_len=max_model_len,
        hash_block_tokens=hash_block_tokens,
    )


def parse_mooncake(
    lines: Iterable[tuple[int, str]],
    *,
    name: str,
    on_bad_rows: BadRowPolicy = "refuse",
    max_model_len: int | None = None,
    hash_block_tokens: int = MOONCAKE_BLOCK_TOKENS,
) -> Workload:
    """Return the workload of numbered lines, all rows in the order of the file.

    Timestamps are kept as they are: instant 0 is where the file counts from. ``block_hashes``
    covers the prompt only. A file whose rows all lack ``hash_ids`` is read with
    ``hash_block_tokens`` 0; if only some rows lack them, those are bad. So are rows in which an id
    follows another one than in an earlier row: ids of contents alone would count hits that no cache
    can give, since the KV of a block depends on all tokens before it.

    Args:
        lines: ``(line number, text)``.
        name: what messages call the file.
        on_bad_rows: ``refuse`` the file at a bad row, or ``skip`` and list bad rows.
        max_model_len: longest prompt plus output of the model, in tokens.
        hash_block_tokens: tokens per hash id.
    """
    require_int(hash_block_tokens, "hash_block_tokens", low=1, high=MAX_NUM_TOKENS)
    rows = read_rows(
        lines, lambda text: _parse_row(text, hash_block_tokens), max_model_len=max_model_len
    )
    has_hashes = any(_has_hashes(row) for row in rows)
    if has_hashes:
        rows = _require_chains([_require_hashes(row) for row in rows])
    return settle(
        name,
        rows,
        on_bad_rows=on_bad_rows,
        hash_block_tokens=hash_block_tokens if has_hashes else 0,
    )


def _has_hashes(row: ReadRow) -> bool:
    return isinstance(row.content, TraceRow) and bool(row.content.block_hashes)


def _require_hashes(row: ReadRow) -> ReadRow:
    if isinstance(row.content, RowError) or row.content.block_hashes:
        return row
    error = RowError(
        "hash_ids is missing, though other rows have it", "Give all rows hash_ids, or none"
    )
    return replace(row, content=error)


def _require_chains(rows: Sequence[ReadRow]) -> list[ReadRow]:
    """Mark the rows with an id that follows another one than in an earlier row."""
    before: dict[int, int] = {}
    return [_require_chain(row, before) for row in rows]


def _require_chain(row: ReadRow, before: dict[int, int]) -> ReadRow:
    """Return the row, or its error; ``before`` learns which id each one follows."""
    if isinstance(row.content, RowError):
        return row
    last, learn = _START, before.setdefault
    for hash_id in row.content.block_hashes:
        if learn(hash_id, last) != last:
            return replace(row, content=_unchained(hash_id, last, before[hash_id]))
        last = hash_id
    return row


def _unchained(hash_id: int, last: int, earlier: int) -> RowError:
    now, then = ("at the start" if i == _START else f"after {i}" for i in (last, earlier))
    return RowError(
        f"hash_ids has {hash_id} {now}, an earlier row has it {then}",
        "Chain each id over all tokens before it: equal ids mean equal prefixes",
    )


def _parse_row(text: str, block_tokens: int) -> TraceRow:
    fields = _parse_object(text)
    timestamp_ms = require_whole(
        _field(fields, "timestamp"), "timestamp", low=0, high=_MAX_TIMESTAMP_MS
    )
    num_prompt_tokens = _tokens(fields, "input_length")
    return TraceRow(
        arrival_ns=timestamp_ms * _NS_PER_MS,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=_tokens(fields, "output_length"),
        block_hashes=_hash_ids(fields.get("hash_ids"), num_prompt_tokens, block_tokens),
    )


def _parse_object(text: str) -> dict[str, object]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):  # ValueError: also a number of too many digits
        fields = None
    if not isinstance(fields, dict):
        raise RowError(
            "not a JSON object",
            'Write one object a line, such as {"timestamp": 0, "input_length": 600, '
            '"output_length": 20, "hash_ids": [1, 2]}',
        )
    return fields


def _field(fields: dict[str, object], key: str) -> object:
    if key not in fields:
        raise RowError(f"{key} is missing", f"Add {key}")
    return fields[key]


def _tokens(fields: dict[str, object], key: str) -> int:
    return require_whole(_field(fields, key), key, low=1, high=MAX_NUM_TOKENS)


def _hash_ids(value: object, num_prompt_tokens: int, block_tokens: int) -> tuple[int, ...]:
    """Return the checked ids; empty if the row has none."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RowError("hash_ids is not a list", "Write a list of whole numbers")
    expected = ceil_div(num_prompt_tokens, block_tokens)
    if len(value) != expected:
        raise RowError(
            f"hash_ids has {len(value)} ids for {num_prompt_tokens} input tokens",
            f"Write one id per {block_tokens} tokens: {expected}",
        )
    if not all(type(hash_id) is int and 0 <= hash_id <= _MAX_HASH_ID for hash_id in value):
        _refuse_hash_id(value)
    if len(set(value)) < len(value):
        raise RowError(
            "hash_ids names a block twice, but equal ids mean equal prefixes",
            "Chain each id over all tokens before it",
        )
    return tuple(value)


def _refuse_hash_id(value: list[object]) -> None:
    for idx, hash_id in enumerate(value):
        require_whole(hash_id, f"hash_ids[{idx}]", low=0, high=_MAX_HASH_ID)
