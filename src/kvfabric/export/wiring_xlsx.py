"""Parts, wiring, racks and assumptions as one workbook; the same fabric gives the same bytes."""

import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice

from xlsxwriter.workbook import Format, Workbook

from kvfabric.export import bom_csv, wiring_csv
from kvfabric.plan.bom import BillOfMaterials
from kvfabric.plan.fabric_notes import assumptions, findings
from kvfabric.plan.wiring import Wiring, wiring_rows

MAX_ROWS = 1_000_000  # a sheet takes 1,048,576; more cables go to further sheets
CREATED = datetime(2000, 1, 1, tzinfo=UTC)  # fixed, so that files do not differ

Cell = str | int | float | None

_RACK_COLUMNS = (
    "rack", "row", "position", "unit", "height", "device", "model", "rack_units_used",
    "rack_power_w",
)  # fmt: skip
_WIDTHS = {
    "label": 42, "part": 16, "place": 16, "category": 14, "price_source": 60, "device": 20,
    "a_device": 18, "b_device": 20, "a_port": 14, "assumption": 24, "text": 120, "model": 10,
}  # fmt: skip
_WIDTH = 11


def wiring_xlsx(wiring: Wiring, bom: BillOfMaterials) -> bytes:
    """Return the workbook with the sheets parts, wiring, racks and assumptions."""
    content = io.BytesIO()
    with Workbook(content, {"in_memory": True}) as book:
        book.set_properties({"created": CREATED, "title": wiring.topology.name})
        head = book.add_format({"bold": True, "bottom": 1})
        money = book.add_format({"num_format": "#,##0"})
        _sheet(book, "parts", bom_csv.COLUMNS, bom_csv.bom_rows(bom), head, money)
        cables = map(wiring_csv.row_values, wiring_rows(wiring))
        for name, rows in _by_sheet(cables, "wiring"):
            _sheet(book, name, wiring_csv.COLUMNS, rows, head)
        _sheet(book, "racks", _RACK_COLUMNS, _rack_rows(wiring), head)
        notes = chain(
            assumptions(wiring, bom), (("does not fit", text) for text in findings(wiring))
        )
        _sheet(book, "assumptions", ("assumption", "text"), notes, head)
    return content.getvalue()


def _by_sheet(
    rows: Iterator[Sequence[Cell]], name: str
) -> Iterator[tuple[str, list[Sequence[Cell]]]]:
    """Yield the name and the rows of each sheet; one sheet where there are no rows."""
    number = 1
    while True:
        batch = list(islice(rows, MAX_ROWS))
        if not batch and number > 1:
            return
        yield (name if number == 1 else f"{name} {number}"), batch
        number += 1


def _sheet(
    book: Workbook,
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    head: Format,
    money: Format | None = None,
) -> None:
    """Add a sheet with a frozen header and filters."""
    sheet = book.add_worksheet(name)
    sheet.freeze_panes(1, 0)
    for position, column in enumerate(columns):
        sheet.set_column(position, position, _WIDTHS.get(column, _WIDTH))
    sheet.write_row(0, 0, columns, head)
    in_usd = [money if column.endswith("_usd") else None for column in columns]
    last = 0
    for last, row in enumerate(rows, start=1):
        for position, value in enumerate(row):
            if isinstance(value, str):
                if value:
                    sheet.write_string(last, position, value)
            elif value is not None:
                sheet.write_number(last, position, value, in_usd[position])
    sheet.autofilter(0, 0, last, len(columns) - 1)


def _rack_rows(wiring: Wiring) -> Iterator[Sequence[Cell]]:
    """Yield every device, rack by rack from the bottom up."""
    placement, switches = wiring.placement, wiring.topology.switches
    unit_of, num_servers = placement.unit_of.tolist(), placement.num_servers
    for rack in placement.racks:
        place = (rack.name, rack.row + 1, rack.position + 1)
        devices: list[tuple[int, int, str, str]] = [
            (unit_of[server], placement.server_units, f"server {server}", "server")
            for server in rack.servers
        ]
        for idx in rack.switches:
            model = placement.switch_models[idx]
            unit = unit_of[num_servers + idx]
            devices.append((unit, model.rack_units, switches[idx].name, model.key))
        for device in sorted(devices):
            yield (*place, *device, rack.units, rack.power_w)
