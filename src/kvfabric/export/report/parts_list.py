"""The bill of materials: parts of every fabric side by side, with the source of each price."""

from collections.abc import Iterator

from kvfabric.export.report.comparison_tables import fabrics_of
from kvfabric.export.report.markup import Markup, el, join
from kvfabric.export.report.parts import Column, data_table, more, pairs
from kvfabric.export.report.words import MISSING, usd
from kvfabric.plan.bom import EXCLUDED, INCLUDED, BillOfMaterials, BomLine
from kvfabric.plan.compare import Comparison

_Key = tuple[str, str, str, str]


def parts_list(comparison: Comparison) -> Markup:
    """Return the parts of all fabrics in one table, what they leave out, and price sources."""
    boms = {label: fabric.bom for label, fabric in fabrics_of(comparison).items()}
    found: dict[_Key, BomLine] = {}
    for bom in boms.values():
        for line in bom.lines:
            found.setdefault(_key(line), line)
    lines = sorted(found.values(), key=lambda line: _ORDER.get(line.category, len(_ORDER)))
    first = next(iter(boms.values()))
    given = sorted({key for bom in boms.values() for key in bom.given_prices})
    columns = [
        Column("Part", is_text=True),
        Column("Where", is_text=True),
        Column("low", "USD", "Unit price"),
        Column("typical", "USD", "Unit price"),
        Column("high", "USD", "Unit price"),
        *(Column(label, "", "Pieces") for label in boms),
    ]
    rows = [*(_row(line, boms) for line in lines), *_totals(boms)]
    caption = f"Parts and unit prices (price book {first.price_book}, {first.price_date})"
    rules = ", ".join(f"{label} {bom.cable_rule.value}" for label, bom in boms.items())
    yours = f"Your own prices: {', '.join(given)}." if given else None
    return join(
        data_table(caption, columns, rows, foot=3),
        el("p", "Included: ", "; ".join(INCLUDED), ". Not included: ", "; ".join(EXCLUDED), "."),
        el("p", " ".join(_power(boms))),
        el("p", f"Types of cables: {rules}."),
        el("p", yours) if yours else None,
        more("Sources of the prices", pairs(_sources(lines), class_="sources")),
    )


_ORDER = {
    name: place
    for place, name in enumerate(("switch", "optic", "active-optical", "fibre", "copper", "nic"))
}


def _key(line: BomLine) -> _Key:
    return (part_name(line), line.category, line.place, line.priced_as)


def _row(line: BomLine, boms: dict[str, BillOfMaterials]) -> list[object]:
    price = line.unit_price
    counts = (_count(bom, _key(line)) for bom in boms.values())
    return [
        part_name(line),
        line.place,
        *map(usd, (price.low_usd, price.typical_usd, price.high_usd)),
        *(f"{count:,}" if count else MISSING for count in counts),
    ]


def part_name(line: BomLine) -> str:
    """Return category and part, such as ``optic 400g sr``, with the reach of modules and fibres."""
    name = f"{line.category} {line.key.removeprefix(f'{line.category}-')}"
    return name if line.reach is None else f"{name} {line.reach.value}"


def _count(bom: BillOfMaterials, key: _Key) -> int:
    return sum(line.count for line in bom.lines if _key(line) == key)


def _totals(boms: dict[str, BillOfMaterials]) -> Iterator[list[object]]:
    costs = [bom.cost() for bom in boms.values()]
    for name, amounts in (
        ("Total, typical (USD)", [cost.typical_usd for cost in costs]),
        ("Total, low (USD)", [cost.low_usd for cost in costs]),
        ("Total, high (USD)", [cost.high_usd for cost in costs]),
    ):
        yield [name, "", "", "", "", *map(usd, amounts)]


def _power(boms: dict[str, BillOfMaterials]) -> Iterator[str]:
    known = [f"{label} {bom.known_power_w() / 1e3:,.1f} kW" for label, bom in boms.items()]
    unknown = sorted({part for bom in boms.values() for part in bom.parts_of_unknown_power()})
    yield f"Power of the parts whose power is published: {', '.join(known)}."
    if unknown:
        yield f"Unpublished, so left out: {', '.join(unknown)}."


def _sources(lines: list[BomLine]) -> list[tuple[str, str]]:
    found = {line.priced_as: str(line.unit_price.source) for line in lines}
    return list(found.items())
