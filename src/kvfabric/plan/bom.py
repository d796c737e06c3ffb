"""The bill of materials of a fabric: every line is a count of the graph's own objects, priced."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvfabric.catalog.nics import NICS, smallest_nic
from kvfabric.catalog.optics import FIBRE_TRUNK, CableKind, Reach
from kvfabric.catalog.prices import Price, PriceBook
from kvfabric.catalog.switches import smallest_class
from kvfabric.fabric.graph import Scope, Topology
from kvfabric.plan.cabling import CableChoice, CableRule, CableType, planned_cables

INCLUDED = (
    "switches",
    "optical modules (two per fibre link)",
    "fibre trunks",
    "copper cables",
    "active optical cables",
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
class Cost:
    """An amount with its range, in USD."""

    low_usd: float
    typical_usd: float
    high_usd: float


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
        reach: of an optical module or a fibre.
        price_key: where the price book has the price, if not under ``key``.
        rack_units: height of one piece; NICs and cables take none.
    """

    category: str
    key: str
    place: str
    count: int
    unit_price: Price
    unit_power_w: float | None
    reach: Reach | None = None
    price_key: str = ""
    rack_units: int = 0

    @property
    def priced_as(self) -> str:
        """Return the key of its price in the price book."""
        return self.price_key or self.key

    @property
    def cost(self) -> Cost:
        """Return the cost of all its pieces."""
        price = self.unit_price
        return Cost(
            low_usd=self.count * price.low_usd,
            typical_usd=self.count * price.typical_usd,
            high_usd=self.count * price.high_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BillOfMaterials:
    """All parts of one fabric.

    Attributes:
        topology: its name.
        num_gpus: each with its NIC.
        price_book: name of the prices.
        price_date: ISO date of the newest of them.
        lines: kinds of parts; sums over them are the totals.
        cable_rule: what decided which part a cable is.
        given_prices: keys of the price book whose price is the user's.
    """

    topology: str
    num_gpus: int
    price_book: str
    price_date: str
    lines: tuple[BomLine, ...]
    cable_rule: CableRule = CableRule.PLANNED
    given_prices: tuple[str, ...] = ()

    def count(self, category: str) -> int:
        """Return the pieces of one category."""
        return sum(line.count for line in self.lines if line.category == category)

    def cost(self, category: str | None = None) -> Cost:
        """Return the cost of one category, or of everything."""
        lines = [line for line in self.lines if category in {None, line.category}]
        return Cost(
            low_usd=sum(line.cost.low_usd for line in lines),
            typical_usd=sum(line.cost.typical_usd for line in lines),
            high_usd=sum(line.cost.high_usd for line in lines),
        )

    def rack_units(self) -> int:
        """Return the height of all switches."""
        return sum(line.count * line.rack_units for line in self.lines)

    def known_power_w(self) -> float:
        """Return the power of the parts whose power is published."""
        return sum(line.count * (line.unit_power_w or 0.0) for line in self.lines)

    def parts_of_unknown_power(self) -> tuple[str, ...]:
        """Return the keys of the parts that ``known_power_w`` leaves out."""
        return tuple(sorted({line.key for line in self.lines if line.unit_power_w is None}))


def bill_of_materials(
    topology: Topology, price_book: PriceBook, cables: CableChoice | None = None
) -> BillOfMaterials:
    """Count and price the parts of a fabric.

    A switch is the smallest capacity class that has its ports; a cable's parts are the slowest that
    carry its rate; a NIC with more ports than the catalog knows counts as NICs of one port.

    Args:
        topology: the fabric.
        price_book: prices of its parts.
        cables: the type of every cable; what the graph plans by default.
    """
    chosen = planned_cables(topology) if cables is None else cables
    lines = (*_switch_lines(topology, price_book), *_cable_lines(topology, chosen, price_book))
    return BillOfMaterials(
        topology=topology.name,
        num_gpus=topology.num_gpus,
        price_book=price_book.name,
        price_date=price_book.date,
        lines=(*lines, *_nic_lines(topology, price_book)),
        cable_rule=chosen.rule,
        given_prices=tuple(sorted(price_book.given)),
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
            rack_units=model.rack_units,
        )


def _cable_lines(topology: Topology, cables: CableChoice, book: PriceBook) -> Iterator[BomLine]:
    num_types = len(cables.types)
    for scope in Scope:
        of_scope = cables.type_of[topology.links.scope == scope]
        place = scope.name.lower()
        for idx, count in enumerate(np.bincount(of_scope, minlength=num_types).tolist()):
            kind = cables.types[idx]
            if not count:
                continue
            if kind.part.kind is CableKind.OPTIC_END:
                yield _part_line(kind, 2 * count, place, book)
                yield _part_line(CableType(FIBRE_TRUNK, kind.reach), count, place, book)
            else:
                yield _part_line(kind, count, place, book)


def _part_line(kind: CableType, count: int, place: str, book: PriceBook) -> BomLine:
    part = kind.part
    return BomLine(
        category=_CATEGORIES[part.kind],
        key=part.key,
        place=place,
        count=count,
        unit_price=book.price(book.key_of(part.key, kind.reach)),
        unit_power_w=part.power_w,
        reach=kind.reach,
        price_key=book.key_of(part.key, kind.reach),
    )


def _nic_lines(topology: Topology, book: PriceBook) -> Iterator[BomLine]:
    """Yield the NICs; more ports than any NIC of the catalog has are as many NICs of one port."""
    ports = topology.ports_per_nic
    per_gpu = 1 if any(nic.num_ports == ports for nic in NICS.values()) else ports
    port_rates = topology.links.rate_bps[topology.access_links]
    rates, counts = np.unique(port_rates[:, 0], return_counts=True)
    for rate_bps, gpus in zip(rates.tolist(), counts.tolist(), strict=True):
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
        "cable_rule": bom.cable_rule.value,
        "given_prices": list(bom.given_prices),
        "switch_rack_units": bom.rack_units(),
        "known_power_w": round(bom.known_power_w(), 1),
        "parts_of_unknown_power": list(bom.parts_of_unknown_power()),
    }


def _line_to_dict(line: BomLine) -> dict[str, object]:
    price = line.unit_price
    return {
        "category": line.category,
        "part": line.key,
        "reach": None if line.reach is None else line.reach.value,
        "place": line.place,
        "count": line.count,
        "unit_low_usd": price.low_usd,
        "unit_typical_usd": price.typical_usd,
        "unit_high_usd": price.high_usd,
        "typical_usd": round(line.count * price.typical_usd, 2),
        "unit_power_w": line.unit_power_w,
        "unit_rack_units": line.rack_units,
        "source": str(price.source),
    }


def _cost_to_dict(cost: Cost) -> dict[str, float]:
    return {
        "low_usd": round(cost.low_usd, 2),
        "typical_usd": round(cost.typical_usd, 2),
        "high_usd": round(cost.high_usd, 2),
    }
