"""What happens to rows of a trace that cannot be used: each is told by line, none is dropped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kvfabric.errors import ConfigError
from kvfabric.protocol.workload import BadRow, RequestSpec, Workload
from kvfabric.workload.limits import MAX_NUM_TOKENS, require_int

BadRowPolicy = Literal["refuse", "skip"]

_MAX_TEXT = 120  # characters of a bad row that are kept


class RowError(Exception):
    """One row cannot be used: why, and what to write instead. Never leaves this package."""

    def __init__(self, reason: str, hint: str) -> None:
        """Keep both texts."""
        super().__init__(reason)
        self.reason, self.hint = reason, hint


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """The usable content of one row; the arrival counts from whatever the file counts from."""

    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    block_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRow:
    """One data row as read: where it stands, how it began, and what it means or why it cannot."""

    line: int
    text: str
    content: TraceRow | RowError


def read_rows(
    lines: Iterable[tuple[int, str]],
    parse: Callable[[str], TraceRow],
    *,
    max_model_len: int | None = None,
) -> list[ReadRow]:
    """Return every row with its meaning or its error; blank lines are no rows.

    Besides what ``parse`` refuses, a row is bad if it arrives before the last good row, or is
    longer than the model.
    """
    if max_model_len is not None:
        require_int(max_model_len, "max_model_len", low=2, high=MAX_NUM_TOKENS)
    rows: list[ReadRow] = []
    last_ns = 0
    for line, text in lines:
        if not text.strip():
            continue
        content = _parse_or_error(text, parse, last_ns, max_model_len)
        rows.append(ReadRow(line, _shorten(text), content))
        if isinstance(content, TraceRow):
            last_ns = content.arrival_ns
    return rows


def _parse_or_error(
    text: str, parse: Callable[[str], TraceRow], last_ns: int, max_model_len: int | None
) -> TraceRow | RowError:
    try:
        row = parse(text)
        _check_order(row, last_ns)
        if max_model_len is not None:
            _check_fits_model(row, max_model_len)
    except RowError as error:
        return error
    return row


def _check_order(row: TraceRow, last_ns: int) -> None:
    if row.arrival_ns < last_ns:
        raise RowError(
            f"time goes back by {last_ns - row.arrival_ns} ns from the last good row",
            "Sort the rows by time",
        )


def _check_fits_model(row: TraceRow, max_model_len: int) -> None:
    hint = f"Choose a model with a longer context than {max_model_len} tokens, or drop the row"
    if row.num_prompt_tokens + 1 > max_model_len:
        raise RowError(
            f"prompt of {row.num_prompt_tokens} tokens leaves no room for an output token "
            f"in {max_model_len}",
            hint,
        )
    if row.num_prompt_tokens + row.num_output_tokens > max_model_len:
        raise RowError(
            f"prompt of {row.num_prompt_tokens} and output of {row.num_output_tokens} tokens "
            f"together exceed {max_model_len}",
            hint,
        )


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def require_whole(value: object, key: str, *, low: int, high: int) -> int:
    """Return ``value`` if it is a whole number in ``[low, high]``, else raise ``RowError``."""
    if type(value) is int and low <= value <= high:
        return value
    raise RowError(
        f"{key} is {_complaint(value, low)}", f"Write a whole number from {low} to {high}"
    )


def _complaint(value: object, low: int) -> str:
    shown = _shorten(repr(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"not a number: {shown}"
    if not isinstance(value, int):
        return f"not a whole number: {shown}"
    if value < 0 or value < low:
        return f"negative: {shown}" if value < 0 else f"zero: {shown}"
    return f"too large: {shown}"


def settle(
    name: str,
    rows: Sequence[ReadRow],
    *,
    on_bad_rows: BadRowPolicy,
    hash_block_tokens: int,
    origin_ns: int = 0,
) -> Workload:
    """Return the workload of the good rows, arrivals counted from ``origin_ns``.

    Raises:
        ConfigError: a row is bad and the policy is ``refuse``, or no row is good.
    """
    if on_bad_rows not in get_args(BadRowPolicy):
        raise ConfigError(
            f"read {on_bad_rows!r}", where="on_bad_rows", hint="Write 'refuse' or 'skip'"
        )
    good = [row.content for row in rows if isinstance(row.content, TraceRow)]
    bad = [(row, row.content) for row in rows if isinstance(row.content, RowError)]
    if bad and (on_bad_rows == "refuse" or not good):
        raise _refusal(name, bad, num_rows=len(rows), can_skip=bool(good))
    if not good:
        raise ConfigError("no rows", where=name, hint="A trace needs at least one request")
    return Workload(
        name=name,
        requests=tuple(_to_request(idx, row, origin_ns) for idx, row in enumerate(good)),
        hash_block_tokens=hash_block_tokens,
        num_rows=len(rows),
        bad_rows=tuple(BadRow(row.line, error.reason, row.text) for row, error in bad),
    )


def _to_request(request_id: int, row: TraceRow, origin_ns: int) -> RequestSpec:
    return RequestSpec(
        request_id=request_id,
        arrival_ns=row.arrival_ns - origin_ns,
        num_prompt_tokens=row.num_prompt_tokens,
        num_output_tokens=row.num_output_tokens,
        block_hashes=row.block_hashes,
    )


def _refusal(
    name: str, bad: Sequence[tuple[ReadRow, RowError]], *, num_rows: int, can_skip: bool
) -> ConfigError:
    """Return the message about the first bad row, and how many are like it."""
    row, error = bad[0]
    num_more = len(bad) - 1
    count = f"; {num_more} more of {num_rows} rows are bad" if num_more else ""
    skip = ", or skip bad rows with on_bad_rows: skip" if can_skip else "; no row can be used"
    return ConfigError(
        f"{error.reason} in {row.text!r}{count}",
        where=f"{name}: line {row.line}",
        hint=f"{error.hint}{skip}",
    )
