"""A wiring list as CSV: a row per cable with both ends."""

import csv
import io

from kvfabric.plan.wiring import CableEnd, Wiring, WiringRow, wiring_rows

_END = ("rack", "unit", "device", "port", "breakout")
COLUMNS = (
    "cable", "label", "part", "rate_gbit_s", "length_m", "order_m",
    *(f"a_{name}" for name in _END), *(f"b_{name}" for name in _END),
)  # fmt: skip


def wiring_csv(wiring: Wiring) -> str:
    """Return every cable; lengths in metres."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(row_values, wiring_rows(wiring)))
    return text.getvalue()


def row_values(row: WiringRow) -> tuple[str | int | float, ...]:
    """Return the values of ``COLUMNS``."""
    return (
        row.cable,
        row.label,
        row.part,
        row.rate_bps / 1e9,
        row.length_m,
        row.order_m,
        *_end(row.end_a),
        *_end(row.end_b),
    )


def _end(end: CableEnd) -> tuple[str | int, ...]:
    return end.rack, end.unit, end.device, end.port, end.breakout
