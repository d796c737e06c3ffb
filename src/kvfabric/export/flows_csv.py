"""Flow completion times as a row of CSV per flow; instants in microseconds, as they came."""

import csv
import io

from kvfabric.plan.flow_run import FlowResult, FlowRun

COLUMNS = ("id", "src", "dst", "start_us", "bytes", "end_us", "fct_us", "slowdown", "subflows")


def flows_csv(run: FlowRun) -> str:
    """Return the rows under a header; no slowdown for flows within a server."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_row, run.results))
    return text.getvalue()


def _row(result: FlowResult) -> list[object]:
    flow, slowdown = result.flow, result.slowdown
    return [
        flow.flow_id,
        flow.src,
        flow.dst,
        _us(flow.start_ns),
        flow.num_bytes,
        _us(result.end_ns),
        _us(result.fct_ns),
        "" if slowdown is None else f"{slowdown:.4f}",
        result.num_subflows,
    ]


def _us(instant_ns: int) -> str:
    return f"{instant_ns // 1000}.{instant_ns % 1000:03d}"
