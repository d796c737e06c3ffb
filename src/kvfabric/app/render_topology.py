"""Parts, prices, cables and racks of one fabric as text for people."""

from collections.abc import Iterator, Sequence

from kvfabric.app.layout import fold, table
from kvfabric.plan.bom import BillOfMaterials, BomLine
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.fabric_notes import cage_counts, findings, lengths_by_type
from kvfabric.plan.price_sensitivity import PriceSwing, price_swings
from kvfabric.plan.wiring import Wiring

NUM_PRICES = 3

_RULES = {
    CableRule.PLANNED: "as this kind of fabric was published",
    CableRule.PLACED: "by length in these racks; copper up to 3 m, else optical modules and fibre",
    CableRule.PLACED_AOC: (
        "by length in these racks; copper up to 3 m, active optical up to 30 m, else optical"
        " modules and fibre"
    ),
}


def render_parts(wiring: Wiring, bom: BillOfMaterials) -> str:
    """Return parts with totals, the prices that matter most, cables and racks."""
    parts = [
        _parts_table(bom),
        *_totals(bom),
        "",
        _swing_table(price_swings(bom)[:NUM_PRICES]),
        _length_table(wiring),
        *_rack_lines(wiring),
        *(f"Does not fit: {text}." for text in findings(wiring)),
        *(["Types that fit: --cables placed."] if wiring.too_long() else []),
    ]
    return "\n".join(fold(part) for part in parts) + "\n"


def _parts_table(bom: BillOfMaterials) -> str:
    columns = ("part", "place", "pieces", "each", "typical", "low to high", "W each", "U each")
    title = f"Parts and price (price book {bom.price_book}, {bom.price_date}; USD without tax)"
    total = bom.cost()
    rows = [_part_row(bom, line) for line in bom.lines]
    spread = _range(total.low_usd, total.high_usd)
    rows.append(["total", "", "", "", _usd(total.typical_usd), spread, "", ""])
    return table(title, columns, rows)


def _part_row(bom: BillOfMaterials, line: BomLine) -> list[str]:
    name = line.key if line.reach is None else f"{line.key}-{line.reach.value}"
    cost, price = line.cost, line.unit_price
    return [
        f"{name} *" if line.priced_as in bom.given_prices else name,
        line.place,
        f"{line.count:,}",
        _usd(price.typical_usd),
        _usd(cost.typical_usd),
        _range(cost.low_usd, cost.high_usd),
        "-" if line.unit_power_w is None else f"{line.unit_power_w:,.0f}",
        f"{line.rack_units}" if line.rack_units else "",
    ]


def _totals(bom: BillOfMaterials) -> Iterator[str]:
    if bom.given_prices:
        yield f"* Your price; also given: {_unused_prices(bom)}."
    unknown = ", ".join(bom.parts_of_unknown_power())
    yield (
        f"{_usd(bom.cost().typical_usd / bom.num_gpus)} per GPU; without GPUs and servers."
        f" Cables {_RULES[bom.cable_rule]}."
    )
    yield (
        f"Power of parts where it is published: {bom.known_power_w() / 1000:,.1f} kW; unknown:"
        f" {unknown or 'none'}. Switches fill {bom.rack_units():,} rack units."
    )


def _unused_prices(bom: BillOfMaterials) -> str:
    used = {line.priced_as for line in bom.lines}
    return ", ".join(key for key in bom.given_prices if key not in used) or "nothing else"


def _swing_table(swings: Sequence[PriceSwing]) -> str:
    columns = ("price of", "pieces", "each, low to high", "total, low to high", "swing")
    rows = [
        [
            swing.key,
            f"{swing.count:,}",
            _range(swing.price.low_usd, swing.price.high_usd),
            _range(swing.low_usd, swing.high_usd),
            _usd(swing.swing_usd),
        ]
        for swing in swings
    ]
    title = "Prices that matter most for the total (one from low to high, all others typical)"
    return table(title, columns, rows)


def _length_table(wiring: Wiring) -> str:
    columns = ("cables", "count", "mean m", "longest m", "total m")
    rows = [
        [name, f"{count:,}", f"{mean:.1f}", f"{longest:.1f}", f"{total:,.0f}"]
        for name, count, mean, longest, total in lengths_by_type(wiring)
    ]
    return table("Cable lengths (estimated from the racks, slack included)", columns, rows)


def _rack_lines(wiring: Wiring) -> Iterator[str]:
    placement = wiring.placement
    racks, rules = placement.racks, placement.rules
    num_server = sum(bool(rack.servers) for rack in racks)
    beside = sum(len(rack.switches) for rack in racks if rack.servers)
    yield (
        f"Racks: {len(racks):,} in {racks[-1].row + 1} row(s), of {rules.rack_units} units and"
        f" {rules.rack_power_w / 1000:,.1f} kW: {num_server:,} with {placement.num_servers:,}"
        f" servers, up to {placement.servers_per_rack} each (bound by {placement.bound}), and"
        f" {beside:,} switches among them; {len(racks) - num_server:,} with the other switches."
        f" The fullest draws {max(rack.power_w for rack in racks) / 1000:,.1f} kW."
    )
    cages = "; ".join(f"{count:,} x {name}" for name, count in cage_counts(wiring).items())
    yield f"Plugs in switch cages: {cages}."


def _usd(amount: float) -> str:
    return f"-${-amount:,.0f}" if amount < 0 else f"${amount:,.0f}"


def _range(low: float, high: float) -> str:
    return f"{_usd(low)} to {_usd(high)}"
