"""What must be known about a parts list and its wiring: assumptions, and what does not work out."""

from collections.abc import Iterator

from kvfabric.catalog.optics import REACHES, CableKind
from kvfabric.catalog.switches import SHAPES
from kvfabric.plan.bom import EXCLUDED, INCLUDED, BillOfMaterials
from kvfabric.plan.cable_lengths import ROUTING
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.rack_rules import HALL, RACK, SERVER
from kvfabric.plan.wiring import Wiring

_RULES = {
    CableRule.PLANNED: "as this kind of fabric was published: copper or fibre, 3, 15 or 30 m",
    CableRule.PLACED: "by length as placed: copper up to 3 m, optical modules and fibre beyond",
    CableRule.PLACED_AOC: "by length as placed: copper up to 3 m, active optical cables up to 30 m,"
    " optical modules and fibre beyond",
}

_PIECES = (
    "modules are counted per cable end and copper per link, as published counts are; what is"
    " plugged into a switch cage that is split into lanes serves 2, 4 or 8 of them"
)


def assumptions(wiring: Wiring, bom: BillOfMaterials) -> list[tuple[str, str]]:
    """Return topic and text of everything that parts, racks and lengths rest on."""
    return [
        ("prices", f"{bom.price_book}, {bom.price_date}; USD per piece without tax"),
        ("prices given by the user", ", ".join(bom.given_prices) or "none"),
        ("in the total", "; ".join(INCLUDED)),
        ("not in the total", "; ".join(EXCLUDED)),
        ("type of cable", _RULES[bom.cable_rule]),
        ("reach", str(REACHES)),
        ("pieces", _PIECES),
        *_rack_assumptions(wiring),
        ("switches", f"{SHAPES}; planned with a module in every cage"),
        ("rows", str(HALL)),
        ("lengths", str(ROUTING)),
    ]


def _rack_assumptions(wiring: Wiring) -> Iterator[tuple[str, str]]:
    placement = wiring.placement
    rules = placement.rules
    power_w = rules.power_of_server_w(wiring.topology.gpus_per_server)
    yield (
        "racks",
        f"{rules.rack_units} rack units and {rules.rack_power_w:,.0f} W each; defaults {RACK}",
    )
    servers = (
        f"{placement.server_units} rack units and {power_w:,.0f} W each,"
        f" {placement.servers_per_rack} to a rack, bound by {placement.bound}; defaults {SERVER}"
    )
    yield "servers", servers


def findings(wiring: Wiring) -> Iterator[str]:
    """Yield what does not work out as planned."""
    total = wiring.cables.names()
    for name, count in wiring.too_long().items():
        reach_m = next(kind.reach_m for kind in wiring.cables.types if kind.name == name)
        yield (
            f"{count:,} of {total.count(name):,} cables {name} are longer than its {reach_m} m in"
            " these racks"
        )
    ports = wiring.ports
    if ports.num_mixed:
        yield (
            f"{ports.num_mixed:,} switch cages would hold cables of several types, which no plug"
            " does"
        )
    if ports.num_beyond:
        yield f"the switches lack {ports.num_beyond:,} cages for their cables"


def cage_counts(wiring: Wiring) -> dict[str, int]:
    """Return the plugs at switches by type and split, such as ``optic-400g-sr, 2 to a cage``."""
    counts: dict[str, int] = {}
    for cage in wiring.ports.cages:
        kinds = sorted(wiring.cables.types[idx].name for idx in cage.types)
        name = f"{' + '.join(kinds)}, {cage.lanes} to a cage"
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def lengths_by_type(wiring: Wiring) -> list[tuple[str, int, float, float, float]]:
    """Return type, cables, mean and longest length, and metres to order, by type of cable."""
    rows = []
    for idx, kind in enumerate(wiring.cables.types):
        of_type = wiring.length_m[wiring.cables.type_of == idx]
        name = f"{kind.name} (fibre)" if kind.part.kind is CableKind.OPTIC_END else kind.name
        total = float(of_type.sum())
        rows.append((name, len(of_type), total / len(of_type), float(of_type.max()), total))
    return rows


def racks_to_dict(wiring: Wiring) -> dict[str, object]:
    """Return racks, cages and lengths ready for JSON."""
    placement = wiring.placement
    racks = placement.racks
    return {
        "racks": len(racks),
        "rows": len({rack.row for rack in racks}),
        "server_racks": sum(bool(rack.servers) for rack in racks),
        "network_racks": sum(not rack.servers for rack in racks),
        "servers": placement.num_servers,
        "servers_per_rack": placement.servers_per_rack,
        "servers_per_rack_bound_by": placement.bound,
        "rack_units": placement.rules.rack_units,
        "rack_power_w": placement.rules.rack_power_w,
        "power_of_fullest_rack_w": max(rack.power_w for rack in racks),
        "switches_in_server_racks": sum(len(rack.switches) for rack in racks if rack.servers),
        "switch_cages": cage_counts(wiring),
        "cable_lengths": [
            {
                "type": name,
                "cables": count,
                "mean_m": round(mean, 1),
                "longest_m": longest,
                "total_m": round(total, 1),
            }
            for name, count, mean, longest, total in lengths_by_type(wiring)
        ],
        "findings": list(findings(wiring)),
        "assumptions": {
            "servers": str(SERVER),
            "racks": str(RACK),
            "rows": str(HALL),
            "lengths": str(ROUTING),
            "switches": str(SHAPES),
            "reach": str(REACHES),
        },
    }
