"""Where servers and switches stand: racks in rows, by height and power.

Servers fill racks in their order. A switch that its fabric joins to servers by copper within the
rack stands in the middle of the rack of its middle server, if that has room; all others stand in
network racks in the middle of each row, first the switches that serve GPUs, in the order of their
servers, then those above them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import numpy as np

from kvfabric.catalog.optics import CableKind, smallest_part
from kvfabric.catalog.switches import SwitchModel, smallest_class
from kvfabric.errors import ConfigError
from kvfabric.fabric.graph import FloatArray, IntArray, LengthClass, Medium, Scope, Topology
from kvfabric.plan.rack_rules import RackRules

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class _Rack:
    """A rack that is being filled; ``switches`` are indices."""

    servers: list[int] = field(default_factory=list[int])
    switches: list[int] = field(default_factory=list[int])
    units: int = 0
    power_w: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """What switches take of a rack; ``power_w`` is per switch."""

    rules: RackRules
    models: tuple[SwitchModel, ...]
    power_w: tuple[float, ...]

    def put(self, rack: _Rack, switch: int) -> bool:
        """Put a switch into a rack; return False and change nothing where it does not fit."""
        units = rack.units + self.models[switch].rack_units
        power_w = rack.power_w + self.power_w[switch]
        if units > self.rules.rack_units or power_w > self.rules.rack_power_w:
            return False
        rack.switches.append(switch)
        rack.units, rack.power_w = units, power_w
        return True

    def check(self) -> None:
        """Refuse switches that no empty rack takes."""
        tallest, strongest = max(model.rack_units for model in self.models), max(self.power_w)
        if tallest > self.rules.rack_units or strongest > self.rules.rack_power_w:
            raise ConfigError(
                f"a switch of {tallest} rack units and {strongest:,.0f} W does not fit into a rack"
                f" of {self.rules.rack_units} units and {self.rules.rack_power_w:,.0f} W",
                where="racks.rack_units" if tallest > self.rules.rack_units else "racks.rack_power",
                hint="Write more",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """One rack: where it stands, and what is in it.

    Attributes:
        row: from 0.
        position: within the row, from 0.
        servers: numbers of its servers.
        switches: indices of its switches.
        units: in use.
        power_w: of everything in it; switches as if every port held an optical module.
    """

    row: int
    position: int
    servers: tuple[int, ...]
    switches: tuple[int, ...]
    units: int
    power_w: float

    @property
    def name(self) -> str:
        """Return text such as ``02-07``: row and position, both from 1."""
        return f"{self.row + 1:02d}-{self.position + 1:02d}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """All racks of a fabric. Rack units count from 1 at the bottom.

    Attributes:
        rules: what a rack takes.
        racks: row by row.
        servers_per_rack: most.
        bound: what bounds them: ``height`` or ``power``.
        server_units: height of a server.
        switch_models: of every switch.
        rack_of: ``[num_servers + num_switches]``: index of the rack, servers first.
        unit_of: the same shape: lowest rack unit.
    """

    rules: RackRules
    racks: tuple[Rack, ...]
    servers_per_rack: int
    bound: str
    server_units: int
    switch_models: tuple[SwitchModel, ...]
    rack_of: IntArray
    unit_of: IntArray

    @property
    def num_servers(self) -> int:
        """Return the number of servers."""
        return len(self.rack_of) - len(self.switch_models)

    @property
    def units(self) -> IntArray:
        """Return the height of every device: ``[num_servers + num_switches]``."""
        switches = [model.rack_units for model in self.switch_models]
        return np.array([self.server_units] * self.num_servers + switches, dtype=np.int64)


def place(topology: Topology, rules: RackRules | None = None) -> Placement:
    """Return racks for all servers and switches.

    Raises:
        ConfigError: a server or a switch fits into no rack.
    """
    rules = rules or RackRules()
    models = tuple(switch_models(topology))
    per_rack, bound = rules.servers_per_rack(topology.gpus_per_server)
    racks = list(_server_racks(topology, rules, per_rack))
    powers = tuple(_switch_power_w(topology, model) for model in models)
    fit = _Fit(rules=rules, models=models, power_w=powers)
    fit.check()
    rest, whole = _place_beside_servers(topology, fit, racks)
    rows = _rows(topology, fit, racks, rest, whole)
    return _placement(topology, rules, rows, models, per_rack, bound)


def switch_models(topology: Topology) -> Iterator[SwitchModel]:
    """Yield the model of every switch: the smallest class that has its ports."""
    known = {
        radix: smallest_class(radix * topology.port_rate_bps)
        for radix in {switch.radix for switch in topology.switches}
    }
    return (known[switch.radix] for switch in topology.switches)


def _server_racks(topology: Topology, rules: RackRules, per_rack: int) -> Iterator[_Rack]:
    num_gpus = topology.gpus_per_server
    num_servers = topology.num_gpus // num_gpus
    for first in range(0, num_servers, per_rack):
        servers = list(range(first, min(first + per_rack, num_servers)))
        yield _Rack(
            servers=servers,
            units=len(servers) * rules.units_of_server(num_gpus),
            power_w=len(servers) * rules.power_of_server_w(num_gpus),
        )


def _switch_power_w(topology: Topology, model: SwitchModel) -> float:
    """Return what a rack must provide: the switch and a module in every cage it may use."""
    module = smallest_part(CableKind.OPTIC_END, min(model.cage_rate_bps, 800 * 10**9))
    cages = min(model.num_ports, model.capacity_bps // topology.port_rate_bps)
    return model.planning_power_w + cages * (module.power_w or 0.0)


def _place_beside_servers(
    topology: Topology, fit: _Fit, racks: list[_Rack]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Put switches with copper within the rack beside their servers.

    Returns all others, and the first and last rack that each of those put there serves.
    """
    links = topology.links
    by_copper = (links.scope == Scope.HOST) & (links.medium == Medium.COPPER)
    by_copper &= links.length_m == LengthClass.RACK
    switch = links.end_b[by_copper] - topology.num_gpus
    server = links.end_a[by_copper] // topology.gpus_per_server
    per_rack = len(racks[0].servers)
    rest, whole = [], []
    order = np.lexsort((server, switch))
    switch, server = switch[order], server[order]
    starts = np.searchsorted(switch, np.arange(topology.num_switches + 1))
    for idx in range(topology.num_switches):
        served = server[starts[idx] : starts[idx + 1]]
        home = racks[int(served[len(served) // 2]) // per_rack] if len(served) else None
        if home is None or not fit.put(home, idx):
            rest.append(idx)
        else:
            whole.append((int(served[0]) // per_rack, int(served[-1]) // per_rack))
    return rest, whole


def _rows(
    topology: Topology,
    fit: _Fit,
    server_racks: Sequence[_Rack],
    rest: Sequence[int],
    whole: Sequence[tuple[int, int]],
) -> list[list[_Rack]]:
    """Return the racks row by row, network racks in the middle of each row.

    Racks served by one switch among them stay side by side where rows are long enough.
    """
    serves = np.zeros(topology.num_switches, dtype=bool)
    serves[topology.access_switches.ravel()] = True
    middle = _middles(topology)
    access = sorted((s for s in rest if serves[s]), key=lambda s: (middle[s], s))
    upper = sorted((s for s in rest if not serves[s]), key=lambda s: (middle[s], s))
    num_network = len(_network_racks([*access, *upper], fit))
    num_rows = math.ceil((len(server_racks) + num_network) / fit.rules.racks_per_row)
    cuts = _Cuts(len(server_racks), whole, fit.rules.racks_per_row // 2)
    rows = []
    for row in range(num_rows):
        first, last = (cuts.nearest(len(server_racks) * (row + end) / num_rows) for end in (0, 1))
        half = min(max(first, cuts.nearest((first + last) / 2)), last)
        own = [*_chunk(access, row, num_rows), *_chunk(upper, row, num_rows)]
        network = _network_racks(own, fit)
        rows.append([*server_racks[first:half], *network, *server_racks[half:last]])
    return [racks for racks in rows if racks]


class _Cuts:
    """Where a sequence of racks may be cut without parting those that one switch serves."""

    def __init__(self, num_racks: int, whole: Sequence[tuple[int, int]], most_off: int) -> None:
        inside = np.zeros(num_racks + 1, dtype=np.int64)
        for first, last in whole:
            inside[first + 1] += 1
            inside[last + 1] -= 1
        self._allowed = np.flatnonzero(np.cumsum(inside) == 0)
        self._most_off = most_off

    def nearest(self, wanted: float) -> int:
        """Return the nearest place to cut; the wanted one itself where all others are far."""
        found = int(self._allowed[np.argmin(np.abs(self._allowed - wanted))])
        return found if abs(found - wanted) <= self._most_off else round(wanted)


def _middles(topology: Topology) -> FloatArray:
    """Return the mean number of the GPUs that each switch serves, directly or through others."""
    num_gpus, num_switches = topology.num_gpus, topology.num_switches
    host = topology.links.scope == Scope.HOST
    switch = topology.links.end_b[host] - num_gpus
    total = np.bincount(switch, topology.links.end_a[host], minlength=num_switches)
    weight = np.bincount(switch, minlength=num_switches).astype(np.float64)
    ends_a = topology.links.end_a[~host] - num_gpus
    ends_b = topology.links.end_b[~host] - num_gpus
    for _ in range(topology.num_tiers):
        unknown = weight == 0
        mean = total / np.maximum(weight, 1)
        for near, far in ((ends_a, ends_b), (ends_b, ends_a)):
            known = ~unknown[near] & unknown[far]
            total += np.bincount(far[known], mean[near[known]], minlength=num_switches)
            weight += np.bincount(far[known], minlength=num_switches)
    middles: FloatArray = total / np.maximum(weight, 1)
    return middles


def _chunk(items: Sequence[_T], idx: int, num_chunks: int) -> Sequence[_T]:
    return items[idx * len(items) // num_chunks : (idx + 1) * len(items) // num_chunks]


def _network_racks(switches: Sequence[int], fit: _Fit) -> list[_Rack]:
    racks: list[_Rack] = []
    for switch in switches:
        if not racks or not fit.put(racks[-1], switch):
            racks.append(_Rack())
            fits = fit.put(racks[-1], switch)
            assert fits, "checked before"
    return racks


def _placement(
    topology: Topology,
    rules: RackRules,
    rows: Sequence[Sequence[_Rack]],
    models: tuple[SwitchModel, ...],
    per_rack: int,
    bound: str,
) -> Placement:
    num_servers = topology.num_gpus // topology.gpus_per_server
    server_units = rules.units_of_server(topology.gpus_per_server)
    rack_of = np.full(num_servers + len(models), -1, dtype=np.int64)
    unit_of = np.zeros(num_servers + len(models), dtype=np.int64)
    racks, numbers = [], count()
    for row, in_row in enumerate(rows):
        for position, rack in enumerate(in_row):
            number, unit = next(numbers), 1
            half = -(-len(rack.servers) // 2)
            switches = [(num_servers + s, models[s].rack_units) for s in rack.switches]
            servers = [(server, server_units) for server in rack.servers]
            for device, units in (*servers[:half], *switches, *servers[half:]):
                rack_of[device], unit_of[device] = number, unit
                unit += units
            racks.append(
                Rack(
                    row=row,
                    position=position,
                    servers=tuple(rack.servers),
                    switches=tuple(rack.switches),
                    units=rack.units,
                    power_w=rack.power_w,
                )
            )
    assert bool((rack_of >= 0).all()), "everything stands somewhere"
    return Placement(
        rules=rules,
        racks=tuple(racks),
        servers_per_rack=per_rack,
        bound=bound,
        server_units=server_units,
        switch_models=models,
        rack_of=rack_of,
        unit_of=unit_of,
    )
