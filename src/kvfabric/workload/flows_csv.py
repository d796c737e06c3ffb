"""Lists of flows in CSV: ``id,src,dst,start_us,bytes`` and, if wanted, the path of each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from kvfabric.errors import ConfigError
from kvfabric.workload.csv_rows import read_header, split_row
from kvfabric.workload.open_text import read_lines
from kvfabric.workload.row_policy import RowError

FLOW_COLUMNS = ("id", "src", "dst", "start_us", "bytes")
PATH_COLUMN = "path"

_MICROSECONDS = re.compile(r"\d{1,12}(\.\d{0,12})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,15}", re.ASCII)
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRow:
    """One flow as it stands in the file.

    Attributes:
        line: of the file.
        flow_id: any text, once in a file.
        src: index of the GPU that sends.
        dst: index of the GPU that receives.
        start_ns: rounded to whole nanoseconds.
        num_bytes: payload, at least 1.
        path: names of the nodes between the GPUs; empty: the load balancer chooses.
    """

    line: int
    flow_id: str
    src: int
    dst: int
    start_ns: int
    num_bytes: int
    path: tuple[str, ...] = ()


def read_flows(path: Path, num_gpus: int) -> tuple[FlowRow, ...]:
    """Return the flows of a file, plain or packed; see ``parse_flows``."""
    return parse_flows(read_lines(path), name=str(path), num_gpus=num_gpus)


def parse_flows(
    lines: Iterable[tuple[int, str]], *, name: str, num_gpus: int
) -> tuple[FlowRow, ...]:
    """Return the flows of numbered lines, in the order of the file.

    Args:
        lines: ``(line number, text)``, the header first; columns in any order, others are ignored.
        name: what messages call the file.
        num_gpus: of the fabric.

    Raises:
        ConfigError: the first bad row, with its line; nothing is read in part.
    """
    rest = iter(lines)
    columns = read_header(rest, name, FLOW_COLUMNS)
    flows: list[FlowRow] = []
    lines_by_id: dict[str, int] = {}
    for line, text in rest:
        if not text.strip():
            continue
        try:
            flow = _parse_row(line, split_row(text, columns), num_gpus)
            _check_new(flow, lines_by_id)
        except RowError as error:
            raise ConfigError(
                f"{error.reason} in {text[:120]!r}", where=f"{name}: line {line}", hint=error.hint
            ) from None
        flows.append(flow)
        lines_by_id[flow.flow_id] = line
    if not flows:
        raise ConfigError("no flows", where=name, hint="Write a row per flow under the header")
    return tuple(flows)


def _parse_row(line: int, cells: dict[str, str], num_gpus: int) -> FlowRow:
    flow_id = cells["id"]
    if not flow_id:
        raise RowError("id is empty", "Write a name or number that no other flow has")
    src, dst = (_gpu(cells[key], key, num_gpus) for key in ("src", "dst"))
    if src == dst:
        raise RowError(f"src and dst are both {src}", "Write two GPUs")
    return FlowRow(
        line=line,
        flow_id=flow_id,
        src=src,
        dst=dst,
        start_ns=_start_ns(cells["start_us"]),
        num_bytes=_num_bytes(cells["bytes"]),
        path=tuple(cells.get(PATH_COLUMN, "").split()),
    )


def _gpu(text: str, key: str, num_gpus: int) -> int:
    if not _WHOLE.fullmatch(text) or int(text) >= num_gpus:
        raise RowError(
            f"{key} is {text!r}, no GPU of this fabric", f"Write a number from 0 to {num_gpus - 1}"
        )
    return int(text)


def _start_ns(text: str) -> int:
    if not _MICROSECONDS.fullmatch(text):
        raise RowError(f"start_us is {text!r}", "Write microseconds from 0 on, such as 12.5")
    return round(Decimal(text) * _NS_PER_US)


def _num_bytes(text: str) -> int:
    if not _WHOLE.fullmatch(text) or int(text) < 1:
        raise RowError(f"bytes is {text!r}", "Write a whole number from 1 on")
    return int(text)


def _check_new(flow: FlowRow, lines_by_id: dict[str, int]) -> None:
    if flow.flow_id in lines_by_id:
        raise RowError(
            f"id {flow.flow_id!r} stands on line {lines_by_id[flow.flow_id]} already",
            "Give every flow its own id",
        )
