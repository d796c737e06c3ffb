"""A parts list as CSV: a row per kind of part and place, then the total."""

import csv
import io
from collections.abc import Iterator

from kvfabric.catalog.prices import Price
from kvfabric.plan.bom import BillOfMaterials, BomLine, Cost

COLUMNS = (
    "category", "part", "reach", "place", "count",
    "unit_low_usd", "unit_typical_usd", "unit_high_usd", "low_usd", "typical_usd", "high_usd",
    "unit_power_w", "unit_rack_units", "price_source",
)  # fmt: skip


def bom_csv(bom: BillOfMaterials) -> str:
    """Return the parts of a fabric; money in USD rounded to cents, power in W."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(bom_rows(bom))
    return text.getvalue()


def bom_rows(bom: BillOfMaterials) -> Iterator[list[str | int | float | None]]:
    """Yield the values of ``COLUMNS`` of every line, and of the total."""
    yield from map(_row, bom.lines)
    nothing = [None] * 7
    yield ["total", *nothing, *_amounts(bom.cost()), None, bom.rack_units(), bom.price_book]


def _row(line: BomLine) -> list[str | int | float | None]:
    price = line.unit_price
    return [
        line.category,
        line.key,
        None if line.reach is None else line.reach.value,
        line.place,
        line.count,
        *_amounts(price),
        *_amounts(line.cost),
        line.unit_power_w,
        line.rack_units,
        str(price.source),
    ]


def _amounts(cost: Cost | Price) -> list[float]:
    return [round(usd, 2) for usd in (cost.low_usd, cost.typical_usd, cost.high_usd)]
