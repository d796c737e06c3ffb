"""The bill of materials of a fabric: every line is a count of the graph's own objects, priced."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvfabric.catalog.nics import NICS, smallest_nic
from kvfabric.catalog.optics import FIBRE_TRUNK, CableKind, CablePart, smallest_part
from kvfabric.catalog.prices import Price, PriceBook
from kvfabric.catalog.switches import smallest_class
from kvfabric.fabric.graph import IntArray, Medium, Scope, Topology

INCLUDED = (
    "switches",
    "optical modules (two per fibre link)",
    "fibre trunks",
    "copper cables",
    "NICs of the GPUs",
)
EXCLUDED = (
    "GPUs and servers",
    "the links inside a server",
    "front-end, storage and management networks",
    "spares, racks, labor, software and support",
)

_CATEGORIES = {
    CableKind.OPTIC_END: "optic",
    CableKind.FIBRE_TRUNK: "fibre",
    CableKind.COPPER: "copper",
    CableKind.ACTIVE_OPTICAL: "active-optical",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BomLine:
    """One kind of part: how many, where they stand, at what price.

    Attributes:
        category: ``switch``, ``optic``, ``fibre``, ``copper`` or ``nic``.
        key: catalog key of the part.
        place: role of the switch, or ``host`` / ``fabric`` for what belongs to a cable.
        count: pieces.
        unit_price: of one piece.
        unit_power_w: of one piece, or None where unpublished.
    """

    category: str
    key: str
    place: str
    count: int
    unit_price: Price
    unit_power_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """An amount with its range, in USD."""

    low_usd: float
    typical_usd: float
    high_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BillOfMaterials:
    """All parts of one fabric."""

    topology: str
    num_gpus: int
    price_book: str
    price_date: str
    lines: tuple[BomLine, ...]

    def count(self, category: str) -> int:
        """Return the pieces of one category."""
        return sum(line.count for line in self.lines if line.category == category)

    def cost(self, category: str | None = None) -> Cost:
        """Return the cost of one category, or of everything."""
        lines = [line for line in self.lines if category in {None, line.category}]
        return Cost(
            low_usd=sum(line.count * line.unit_price.low_usd for line in lines),
            typical_usd=sum(line.count * line.unit_price.typical_usd for line in lines),
            high_usd=sum(line.count * line.unit_price.high_usd for line in lines),
        )

    def known_power_w(self) -> float:
        """Return the power of the parts whose power is published."""
        return sum(line.count * (line.unit_power_w or 0.0) for line in self.lines)

    def parts_of_unknown_power(self) -> tuple[str, ...]:
        """Return the keys of the parts that ``known_power_w`` leaves out."""
        return tuple(sorted({line.key for line in self.lines if line.unit_power_w is None}))


def bill_of_materials(topology: Topology, price_book: PriceBook) -> BillOfMaterials:
    """Count and price the parts of a fabric.

    A switch is the smallest capacity class that has its ports; a cable's parts are the slowest that
    carry its rate; a NIC with more ports than the catalog knows counts as NICs of one port.
    """
    lines = (*_switch_lines(topology, price_book), *_cable_lines(topology, price_book))
    return BillOfMaterials(
        topology=topology.name,
        num_gpus=topology.num_gpus,
        price_book=price_book.name,
        price_date=price_book.date,
        lines=(*lines, *_nic_lines(topology, price_book)),
    )


def _switch_lines(topology: Topology, book: PriceBook) -> Iterator[BomLine]:
    counts = Counter((switch.role, switch.radix) for switch in topology.switches)
    for (role, radix), count in counts.items():
        model = smallest_class(radix * topology.port_rate_bps)
        yield BomLine(
            category="switch",
            key=model.key,
            place=role.value,
            count=count,
            unit_price=book.price(model.key),
            unit_power_w=model.power_w,
        )


def _cable_lines(topology: Topology, book: PriceBook) -> Iterator[BomLine]:
    links = topology.links
    for scope in Scope:
        of_scope = links.scope == scope
        fibre = links.rate_bps[of_scope & (links.medium == Medium.FIBRE)]
        copper = links.rate_bps[of_scope & (links.medium == Medium.COPPER)]
        place = scope.name.lower()
        for rate_bps, count in _by_rate(fibre):
            optic = smallest_part(CableKind.OPTIC_END, rate_bps)
            yield _part_line(optic, 2 * count, place, book)
            yield _part_line(FIBRE_TRUNK, count, place, book)
        for rate_bps, count in _by_rate(copper):
            yield _part_line(smallest_part(CableKind.COPPER, rate_bps), count, place, book)


def _by_rate(rates_bps: IntArray) -> list[tuple[int, int]]:
    rates, counts = np.unique(rates_bps, return_counts=True)
    return [(int(rate), int(count)) for rate, count in zip(rates, counts, strict=True)]


def _part_line(part: CablePart, count: int, place: str, book: PriceBook) -> BomLine:
    return BomLine(
        category=_CATEGORIES[part.kind],
        key=part.key,
        place=place,
        count=count,
        unit_price=book.price(part.key),
        unit_power_w=part.power_w,
    )


def _nic_lines(topology: Topology, book: PriceBook) -> Iterator[BomLine]:
    """Yield the NICs; more ports than any NIC of the catalog has are as many NICs of one port."""
    ports = topology.ports_per_nic
    per_gpu = 1 if any(nic.num_ports == ports for nic in NICS.values()) else ports
    port_rates = topology.links.rate_bps[topology.access_links]
    for rate_bps, gpus in _by_rate(port_rates[:, 0]):
        nic = smallest_nic(ports // per_gpu, rate_bps)
        yield BomLine(
            category="nic",
            key=nic.key,
            place="host",
            count=gpus * per_gpu,
            unit_price=book.price(nic.key),
            unit_power_w=None,
        )


def bom_to_dict(bom: BillOfMaterials) -> dict[str, object]:
    """Return a bill of materials ready for JSON; money rounded to cents."""
    categories = dict.fromkeys(line.category for line in bom.lines)
    return {
        "topology": bom.topology,
        "num_gpus": bom.num_gpus,
        "price_book": bom.price_book,
        "price_date": bom.price_date,
        "included": list(INCLUDED),
        "excluded": list(EXCLUDED),
        "lines": [_line_to_dict(line) for line in bom.lines],
        "totals": {
            category: {"count": bom.count(category), **_cost_to_dict(bom.cost(category))}
            for category in categories
        },
        "total": _cost_to_dict(bom.cost()),
        "typical_usd_per_gpu": round(bom.cost().typical_usd / bom.num_gpus, 2),
        "known_power_w": round(bom.known_power_w(), 1),
        "parts_of_unknown_power": list(bom.parts_of_unknown_power()),
    }


def _line_to_dict(line: BomLine) -> dict[str, object]:
    price = line.unit_price
    return {
        "category": line.category,
        "part": line.key,
        "place": line.place,
        "count": line.count,
        "unit_low_usd": price.low_usd,
        "unit_typical_usd": price.typical_usd,
        "unit_high_usd": price.high_usd,
        "typical_usd": round(line.count * price.typical_usd, 2),
        "source": str(price.source),
    }


def _cost_to_dict(cost: Cost) -> dict[str, float]:
    return {
        "low_usd": round(cost.low_usd, 2),
        "typical_usd": round(cost.typical_usd, 2),
        "high_usd": round(cost.high_usd, 2),
    }
