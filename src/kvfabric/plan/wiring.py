"""The wiring list: one row per cable with both ends, as a technician finds them.

Row number = link id of the graph. GPUs and switches keep the numbers that reports give them, from
0; NICs within a server, NIC ports, rows, racks, rack units, cages and lanes count from 1.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvfabric.catalog.optics import FIBRE_TRUNK, CableKind
from kvfabric.fabric.graph import FloatArray, Topology
from kvfabric.plan.cable_lengths import cable_lengths_m, device_ends, sold_length_m
from kvfabric.plan.cabling import CableChoice, CableRule, placed_cables, planned_cables
from kvfabric.plan.rack_rules import RackRules
from kvfabric.plan.racks import Placement, place
from kvfabric.plan.switch_ports import PortPlan, plan_ports


@dataclass(frozen=True, slots=True)
class CableEnd:
    """Where one end of a cable is plugged in.

    Attributes:
        rack: such as ``02-07``.
        unit: lowest rack unit of the device.
        device: such as ``server 3`` or ``leaf 5``.
        port: such as ``NIC 2 port 1``, ``7`` or ``7/2``.
        breakout: such as ``2 of 4``; empty where the cable has the port alone.
    """

    rack: str
    unit: int
    device: str
    port: str
    breakout: str

    @property
    def label(self) -> str:
        """Return text that no other end has, such as ``02-07 U12 7/2``."""
        return f"{self.rack} U{self.unit} {self.port}"


@dataclass(frozen=True, slots=True)
class WiringRow:
    """One cable.

    Attributes:
        cable: link id of the graph.
        end_a: the NIC of a cable to a GPU.
        end_b: always at a switch.
        part: type of cable, such as ``optic-400g-sr``: two such modules and a fibre.
        rate_bps: per direction.
        length_m: estimate.
        order_m: the next length on sale.
    """

    cable: int
    end_a: CableEnd
    end_b: CableEnd
    part: str
    rate_bps: int
    length_m: float
    order_m: float

    @property
    def label(self) -> str:
        """Return what is printed on the cable."""
        return f"{self.end_a.label} - {self.end_b.label}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wiring:
    """A fabric in its racks, with every cable and port.

    Attributes:
        topology: the fabric, whole.
        placement: racks.
        cables: type of every cable.
        ports: port of every cable end at a switch.
        length_m: ``[num_links]``, estimates.
    """

    topology: Topology
    placement: Placement
    cables: CableChoice
    ports: PortPlan
    length_m: FloatArray

    def parts(self) -> Counter[tuple[str, str | None]]:
        """Return the cable parts by catalog key and reach, counted over the cables."""
        counts: Counter[tuple[str, str | None]] = Counter()
        for idx in self.cables.type_of.tolist():
            kind = self.cables.types[idx]
            reach = None if kind.reach is None else kind.reach.value
            if kind.part.kind is CableKind.OPTIC_END:
                counts[kind.part.key, reach] += 2
                counts[FIBRE_TRUNK.key, reach] += 1
            else:
                counts[kind.part.key, reach] += 1
        return counts

    def too_long(self) -> dict[str, int]:
        """Return how many cables of each type are longer as placed than the type carries."""
        counts = {}
        for idx, kind in enumerate(self.cables.types):
            longer = (self.cables.type_of == idx) & (self.length_m > kind.reach_m)
            if longer.any():
                counts[kind.name] = int(longer.sum())
        return counts


def wire(
    topology: Topology, rules: RackRules | None = None, rule: CableRule = CableRule.PLANNED
) -> Wiring:
    """Return racks, cable types and ports of a fabric.

    Args:
        topology: the whole fabric, without failures.
        rules: what a rack takes.
        rule: what decides the type of a cable.

    Raises:
        ConfigError: a server or a switch fits into no rack.
    """
    placement = place(topology, rules)
    length_m = cable_lengths_m(topology, placement)
    if rule is CableRule.PLANNED:
        cables = planned_cables(topology)
    else:
        cables = placed_cables(topology, length_m, rule)
    return Wiring(
        topology=topology,
        placement=placement,
        cables=cables,
        ports=plan_ports(topology, cables, placement.switch_models),
        length_m=length_m,
    )


def cables_by_rule(topology: Topology, rule: CableRule) -> CableChoice:
    """Return the type of every cable, in default racks where the length decides.

    Raises:
        ConfigError: a server or a switch fits into no rack.
    """
    if rule is CableRule.PLANNED:
        return planned_cables(topology)
    return wire(topology, rule=rule).cables


def wiring_rows(wiring: Wiring) -> Iterator[WiringRow]:
    """Yield every cable, in the order of the graph."""
    sides = [list(_ends(wiring, side)) for side in (0, 1)]
    columns = (
        *sides,
        wiring.cables.names(),
        wiring.topology.links.rate_bps.tolist(),
        wiring.length_m.tolist(),
        sold_length_m(wiring.length_m).tolist(),
    )
    for cable, values in enumerate(zip(*columns, strict=True)):
        yield WiringRow(cable, *values)


def _ends(wiring: Wiring, side: int) -> Iterator[CableEnd]:
    topology, placement, ports = wiring.topology, wiring.placement, wiring.ports
    devices = device_ends(topology)[side].tolist()
    names = _device_names(wiring)
    racks = [rack.name for rack in placement.racks]
    rack_of, unit_of = placement.rack_of.tolist(), placement.unit_of.tolist()
    nic_ports = _nic_ports(topology) if side == 0 else {}
    numbers = zip(
        ports.cage[side].tolist(),
        ports.lane[side].tolist(),
        ports.lanes[side].tolist(),
        strict=True,
    )
    for link, (device, (cage, lane, lanes)) in enumerate(zip(devices, numbers, strict=True)):
        if cage == 0:
            port, breakout = nic_ports[link], ""
        elif lanes == 1:
            port, breakout = f"{cage}", ""
        else:
            port, breakout = f"{cage}/{lane}", f"{lane} of {lanes}"
        yield CableEnd(racks[rack_of[device]], unit_of[device], names[device], port, breakout)


def _device_names(wiring: Wiring) -> list[str]:
    servers = [f"server {server}" for server in range(wiring.placement.num_servers)]
    return servers + [switch.name for switch in wiring.topology.switches]


def _nic_ports(topology: Topology) -> dict[int, str]:
    """Return the port of every cable at a NIC, by link id."""
    return {
        int(link): f"NIC {gpu % topology.gpus_per_server + 1} port {port + 1}"
        for (gpu, port), link in np.ndenumerate(topology.access_links)
    }
