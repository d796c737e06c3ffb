"""Laws of parts, racks and wiring of every kind of fabric: INV-14 (ports), INV-15 (parts)."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvfabric.catalog.optics import FIBRE_TRUNK, CableKind
from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import BUILDERS, build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.measures import topology_report
from kvfabric.plan.bom import bill_of_materials
from kvfabric.plan.cable_lengths import SLACK_M, sold_length_m
from kvfabric.plan.cabling import CableRule
from kvfabric.plan.rack_rules import RackRules
from kvfabric.plan.racks import Placement
from kvfabric.plan.wiring import Wiring, wire, wiring_rows

GBIT = 10**9
CABLE_CATEGORIES = {"optic", "fibre", "copper", "active-optical"}


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    servers = draw(st.sampled_from([1, 2, 4, 8]))
    kind = draw(st.sampled_from(list(BUILDERS)))
    square = draw(st.integers(2, 8)) ** 2
    num_gpus = draw(st.sampled_from([square, 8, 16, 24, 32, 64, 72, 128]))
    try:
        return build_topology(
            kind,
            num_gpus,
            radix=draw(st.sampled_from([8, 12, 16, 32, 64])),
            nic_rate_bps=draw(st.sampled_from([100, 200, 400, 800])) * GBIT,
            gpus_per_server=servers,
        )
    except ConfigError:
        assume(False)
        raise


@st.composite
def wirings(draw: st.DrawFn) -> Wiring:
    rules = RackRules(
        rack_units=draw(st.integers(10, 48)),
        rack_power_w=draw(st.sampled_from([12_000.0, 45_000.0, 120_000.0])),
        racks_per_row=draw(st.integers(1, 20)),
    )
    return wire(draw(topologies()), rules, draw(st.sampled_from(CableRule)))


@given(wirings())
def test_parts_list_wiring_list_and_graph_agree(wiring: Wiring) -> None:
    bill = bill_of_materials(wiring.topology, PRICE_BOOK, wiring.cables)
    in_bill: Counter[tuple[str, str | None]] = Counter()
    for line in bill.lines:
        if line.category in CABLE_CATEGORIES:
            in_bill[line.key, line.reach.value if line.reach else None] += line.count
    rows = list(wiring_rows(wiring))
    kinds = {kind.name: kind for kind in wiring.cables.types}
    in_rows: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        kind = kinds[row.part]
        reach = kind.reach.value if kind.reach else None
        is_optical = kind.part.kind is CableKind.OPTIC_END
        in_rows[kind.part.key, reach] += 2 if is_optical else 1
        in_rows[FIBRE_TRUNK.key, reach] += int(is_optical)
        assert kind.part.rate_bps >= row.rate_bps
    assert +in_rows == in_bill == wiring.parts()
    assert len(rows) == wiring.topology.num_links
    assert bill.count("switch") == len({row.end_b.device for row in rows} | _leaves(wiring))


def _leaves(wiring: Wiring) -> set[str]:
    return {switch.name for switch in wiring.topology.switches}


@given(topologies())
def test_planned_cables_are_those_of_the_graph(topology: Topology) -> None:
    bill, report = bill_of_materials(topology, PRICE_BOOK), topology_report(topology)
    assert bill.count("optic") == report["optics"]
    assert bill.count("fibre") == report["links_fibre"]
    assert bill.count("copper") == report["links_copper"]
    assert bill.count("active-optical") == 0


@given(wirings())
def test_every_end_is_where_the_graph_has_it(wiring: Wiring) -> None:
    topology, links = wiring.topology, wiring.topology.links
    for row in wiring_rows(wiring):
        end_a, end_b = int(links.end_a[row.cable]), int(links.end_b[row.cable])
        assert row.end_b.device == topology.node_name(end_b)
        if end_a < topology.num_gpus:
            server, nic = divmod(end_a, topology.gpus_per_server)
            port = topology.access_links[end_a].tolist().index(row.cable)
            assert row.end_a.device == f"server {server}"
            assert row.end_a.port == f"NIC {nic + 1} port {port + 1}"
        else:
            assert row.end_a.device == topology.node_name(end_a)


@given(wirings())
def test_no_port_is_used_twice_and_lanes_are_complete(wiring: Wiring) -> None:
    rows = list(wiring_rows(wiring))
    ends = [end for row in rows for end in (row.end_a, row.end_b)]
    assert len({(end.device, end.port) for end in ends}) == len(ends)  # INV-14
    assert len({end.label for end in ends}) == len(ends)
    assert len({row.label for row in rows}) == len(rows)
    lanes = defaultdict(list)
    for end in ends:
        if not end.port.startswith("NIC"):
            cage, _, lane = end.port.partition("/")
            split = int(end.breakout.split(" of ")[1]) if lane else 1
            lanes[end.device, int(cage)].append((int(lane or 1), split))
    for used in lanes.values():
        splits = {split for _, split in used}
        assert len(splits) == 1
        assert sorted(lane for lane, _ in used) == list(range(1, len(used) + 1))
        assert len(used) <= splits.pop()
    cages = defaultdict(set)
    for device, number in lanes:
        cages[device].add(number)
    assert all(numbers == set(range(1, len(numbers) + 1)) for numbers in cages.values())


@given(wirings())
def test_switches_have_the_cages_and_one_plug_fills_a_cage(wiring: Wiring) -> None:
    ports = wiring.ports
    assert ports.num_beyond == 0
    if ports.num_mixed == 0:
        assert all(len(cage.types) == 1 for cage in ports.cages)
    for cage in ports.cages:
        assert 1 <= cage.num_cables <= cage.lanes
        model = wiring.placement.switch_models[cage.switch]
        assert cage.number * cage.lanes <= 8 * model.num_ports


@given(wirings())
def test_racks_hold_everything_once_within_height_and_power(wiring: Wiring) -> None:
    placement = wiring.placement
    servers = [server for rack in placement.racks for server in rack.servers]
    switches = [switch for rack in placement.racks for switch in rack.switches]
    assert sorted(servers) == list(range(placement.num_servers))
    assert sorted(switches) == list(range(wiring.topology.num_switches))
    assert len({rack.name for rack in placement.racks}) == len(placement.racks)
    for number, rack in enumerate(placement.racks):
        assert rack.power_w <= placement.rules.rack_power_w
        assert len(rack.servers) <= placement.servers_per_rack
        taken = _units_taken(placement, number)
        assert len(set(taken)) == len(taken) == rack.units
        assert min(taken) == 1
        assert max(taken) <= placement.rules.rack_units


def _units_taken(placement: Placement, rack: int) -> list[int]:
    inside = np.flatnonzero(placement.rack_of == rack)
    starts, heights = placement.unit_of[inside], placement.units[inside]
    return [
        unit
        for start, height in zip(starts.tolist(), heights.tolist(), strict=True)
        for unit in range(start, start + height)
    ]


@given(wirings())
def test_cables_are_long_enough_and_placed_ones_carry_that_far(wiring: Wiring) -> None:
    assert bool((wiring.length_m >= SLACK_M).all())
    assert bool((sold_length_m(wiring.length_m) >= wiring.length_m).all())
    if wiring.cables.rule is not CableRule.PLANNED:
        assert wiring.too_long() == {}


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_kind_is_wired_with_default_racks(kind: str) -> None:
    topology = build_topology(kind, 64, nic_rate_bps=400 * GBIT)
    wiring = wire(topology)
    assert wiring.ports.num_mixed == wiring.ports.num_beyond == 0
    assert len(list(wiring_rows(wiring))) == topology.num_links
