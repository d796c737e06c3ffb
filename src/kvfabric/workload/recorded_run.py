"""Recorded runs of a real engine: one JSON object a line, what was asked and when it was answered.

Format: LLMServingSim (MIT), bench/results: ``input_toks``, ``output_toks`` and ``arrival_time``, in
seconds of a wall clock; where measured also ``queued_ts``, ``scheduled_ts``, ``first_token_ts`` and
``last_token_ts``, in seconds of the engine's clock.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvfabric.protocol.workload import Workload
from kvfabric.units import NS_PER_S
from kvfabric.workload.limits import MAX_NUM_TOKENS
from kvfabric.workload.open_text import read_lines
from kvfabric.workload.row_policy import (
    BadRowPolicy,
    RowError,
    TraceRow,
    read_rows,
    require_whole,
    settle,
)

FIRST_KEY = "input_toks"
_MEASURED = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_MAX_SECONDS = 4e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequest:
    """What the engine did with a request; ns counted from the first ``queued_ts`` of the run.

    ``queued`` is when the engine read the request, between two steps; its own TTFT starts there.
    """

    request_id: int
    queued_ns: int
    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The requests of a recorded run, and those of them that were measured, in order of id."""

    workload: Workload
    measured: tuple[MeasuredRequest, ...]


def read_recorded_run(
    path: Path, *, on_bad_rows: BadRowPolicy = "refuse", max_model_len: int | None = None
) -> RecordedRun:
    """Return the run in a file, plain or packed; see ``parse_recorded_run``."""
    return parse_recorded_run(
        read_lines(path), name=path.name, on_bad_rows=on_bad_rows, max_model_len=max_model_len
    )


def parse_recorded_run(
    lines: Iterable[tuple[int, str]],
    *,
    name: str,
    on_bad_rows: BadRowPolicy = "refuse",
    max_model_len: int | None = None,
) -> RecordedRun:
    """Return the run of numbered lines, requests by arrival, equal ones in the order of the file.

    Instant 0 is the first arrival. Every client asks for exactly the tokens it got, so the engine
    knows where each request ends. A request is measured if its row has all four instants of the
    engine.

    Args:
        lines: ``(line number, text)``.
        name: what messages call the file.
        on_bad_rows: ``refuse`` the file at a bad row, or ``skip`` and list bad rows.
        max_model_len: longest prompt plus output of the model, in tokens.

    Raises:
        ConfigError: a bad row under ``refuse``, or no good one.
    """
    ordered = sorted(((n, text) for n, text in lines if text.strip()), key=_arrival_or_first)
    origin = min((_arrival_or_first(line) for line in ordered), default=0.0)
    origin = origin if math.isfinite(origin) else 0.0
    rows = read_rows(ordered, _row_parser(origin), max_model_len=max_model_len)
    workload = settle(name, rows, on_bad_rows=on_bad_rows, hash_block_tokens=0)
    texts = dict(ordered)
    good = [texts[row.line] for row in rows if isinstance(row.content, TraceRow)]
    requests = tuple(replace(spec, max_tokens=spec.num_output_tokens) for spec in workload.requests)
    return RecordedRun(replace(workload, requests=requests), _measured(good))


def _arrival_or_first(line: tuple[int, str]) -> float:
    """Return when a row arrives; a row without a time comes first, where it is told."""
    try:
        return _seconds(_parse_object(line[1]), "arrival_time")
    except RowError:
        return -math.inf


def _row_parser(origin: float) -> Callable[[str], TraceRow]:
    def parse(text: str) -> TraceRow:
        fields = _parse_object(text)
        arrival = _seconds(fields, "arrival_time")
        _engine_seconds(fields)
        return TraceRow(
            arrival_ns=round((arrival - origin) * NS_PER_S),
            num_prompt_tokens=_tokens(fields, FIRST_KEY),
            num_output_tokens=_tokens(fields, "output_toks"),
        )

    return parse


def _measured(texts: Iterable[str]) -> tuple[MeasuredRequest, ...]:
    found = [
        (request_id, seconds, fields)
        for request_id, fields in enumerate(map(_parse_object, texts))
        if (seconds := _engine_seconds(fields)) is not None
    ]
    origin = min((seconds[0] for _, seconds, _ in found), default=0.0)
    measured: list[MeasuredRequest] = []
    for request_id, seconds, fields in found:
        queued, scheduled, first, last = (round((s - origin) * NS_PER_S) for s in seconds)
        measured.append(
            MeasuredRequest(
                request_id=request_id,
                queued_ns=queued,
                scheduled_ns=scheduled,
                first_token_ns=first,
                last_token_ns=last,
                num_output_tokens=_tokens(fields, "output_toks"),
            )
        )
    return tuple(measured)


def _parse_object(text: str) -> Mapping[str, object]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RowError(
            "not a JSON object",
            'Write one object a line, such as {"input_toks": 600, "output_toks": 20, '
            '"arrival_time": 0.5}',
        )
    return fields


def _field(fields: Mapping[str, object], key: str) -> object:
    if key not in fields:
        raise RowError(f"{key} is missing", f"Add {key}")
    return fields[key]


def _tokens(fields: Mapping[str, object], key: str) -> int:
    return require_whole(_field(fields, key), key, low=1, high=MAX_NUM_TOKENS)


def _seconds(fields: Mapping[str, object], key: str) -> float:
    value = _field(fields, key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= float(str(value)) <= _MAX_SECONDS:
        raise RowError(f"{key} is {value!r}", f"Write seconds from 0 to {_MAX_SECONDS:.0f}")
    return float(str(value))


def _engine_seconds(fields: Mapping[str, object]) -> tuple[float, float, float, float] | None:
    """Return the four instants of the engine; None if one was not measured."""
    if any(fields.get(key) is None for key in _MEASURED):
        return None
    queued, scheduled, first, last = (_seconds(fields, key) for key in _MEASURED)
    if not queued <= scheduled <= first <= last:
        raise RowError(
            f"{' <= '.join(_MEASURED)} does not hold", "Give instants of one clock, in order"
        )
    return queued, scheduled, first, last
