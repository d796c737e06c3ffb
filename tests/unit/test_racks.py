"""Servers and switches in racks, and the lengths that follow, against sums done by hand."""

import numpy as np
import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Scope
from kvfabric.plan.cable_lengths import cable_lengths_m, device_ends, sold_length_m
from kvfabric.plan.cabling import CableRule, placed_cables, planned_cables
from kvfabric.plan.rack_rules import RackRules
from kvfabric.plan.racks import place
from kvfabric.plan.wiring import wire

GBIT = 10**9


def test_a_rack_takes_four_servers_of_eight_gpus_by_power() -> None:
    # Source: NVIDIA DGX H100, 8 units and 10.2 kW; DGX SuperPOD puts four into a rack
    assert RackRules().servers_per_rack(8) == (4, "power")
    assert RackRules(rack_power_w=100_000).servers_per_rack(8) == (5, "height")
    assert RackRules(rack_units=48, rack_power_w=100_000).servers_per_rack(8) == (6, "height")
    assert RackRules(server_units=2, server_power_w=3_000.0).servers_per_rack(8) == (15, "power")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (RackRules(rack_units=7), "a server of 8 rack units does not fit into a rack of 7"),
        (RackRules(rack_power_w=10_000), "a server of 10,200 W is more than the 10,000 W"),
        (
            RackRules(rack_units=1, server_units=1, rack_power_w=20_000),
            "a switch of 2 rack units and 1,964 W does not fit",
        ),
        (
            RackRules(server_power_w=100.0, rack_power_w=1_000),
            "a switch of 2 rack units and 1,964 W does not fit",
        ),
    ],
)
def test_what_fits_into_no_rack_is_refused(rules: RackRules, message: str) -> None:
    topology = build_topology("roft", 64, nic_rate_bps=400 * GBIT)
    with pytest.raises(ConfigError, match=message):
        place(topology, rules)


def test_single_rail_leaves_stand_in_the_middle_of_their_servers() -> None:
    # 128 GPUs per switch are 16 servers, four racks; the copper reaches two racks to either side
    topology = build_topology("zcube", 1024, nic_rate_bps=400 * GBIT)
    placement = place(topology)
    servers = placement.num_servers
    for leaf in range(8):
        rack = placement.racks[placement.rack_of[servers + 8 + leaf]]
        assert rack.switches == (8 + leaf,)
        assert rack.servers == tuple(range(16 * leaf + 8, 16 * leaf + 12))
        assert placement.unit_of[servers + 8 + leaf] == 17  # above two servers of 8 units
    assert wire(topology).too_long() == {}


def test_other_switches_stand_in_the_middle_of_the_row() -> None:
    placement = place(build_topology("roft", 64, nic_rate_bps=400 * GBIT))
    assert [(len(rack.servers), len(rack.switches)) for rack in placement.racks] == [
        (4, 0),
        (0, 1),
        (4, 0),
    ]
    assert [rack.name for rack in placement.racks] == ["01-01", "01-02", "01-03"]


def test_rows_hold_about_as_many_racks_as_asked() -> None:
    topology = build_topology("roft", 1024, nic_rate_bps=400 * GBIT)
    placement = place(topology, RackRules(racks_per_row=10))
    rows = np.bincount([rack.row for rack in placement.racks])
    assert len(rows) == 4
    assert rows.max() <= 10


def test_lengths_are_manhattan_distances_with_slack() -> None:
    # two servers of 8 U at U1 and U9, the switch (2 U) in the next rack at U1: middles at 4, 12 and
    # 1 units of 44.45 mm; one rack of 0.6 m to the side; 1 m of slack
    topology = build_topology("roft", 16, nic_rate_bps=400 * GBIT)
    placement = place(topology)
    lengths = cable_lengths_m(topology, placement)
    first = round(3 * 0.04445 + 0.6 + 1, 1)
    second = round(11 * 0.04445 + 0.6 + 1, 1)
    assert lengths.tolist() == [first] * 8 + [second] * 8


def test_far_cables_go_over_the_tray() -> None:
    topology = build_topology("roft", 256, nic_rate_bps=400 * GBIT)
    placement = place(topology)
    lengths = cable_lengths_m(topology, placement)
    server, switch = device_ends(topology)
    assert topology.links.scope[0] == Scope.HOST
    racks = [placement.racks[placement.rack_of[end[0]]] for end in (server, switch)]
    assert [(rack.row, rack.position) for rack in racks] == [(0, 0), (0, 4)]
    tray = 42 * 0.04445 + 0.3
    heights = 4 * 0.04445, 1 * 0.04445
    assert lengths[0] == pytest.approx(2 * tray - sum(heights) + 4 * 0.6 + 1, abs=0.05)


def test_lengths_on_sale() -> None:
    asked = np.array([0.4, 1.0, 2.6, 3.0, 3.1, 30.1, 100.0, 100.1])
    assert sold_length_m(asked).tolist() == [0.5, 1.0, 3.0, 3.0, 5.0, 50.0, 100.0, 101.0]


def test_cables_are_chosen_by_length_where_asked() -> None:
    topology = build_topology("roft", 64, nic_rate_bps=400 * GBIT)
    lengths = np.tile([2.9, 3.0, 3.1, 30.0, 30.1, 51.0, 501.0, 7.0], 8)
    names = placed_cables(topology, lengths, CableRule.PLACED).names()
    assert names[:8] == [
        "dac-400g",
        "dac-400g",
        "optic-400g-sr",
        "optic-400g-sr",
        "optic-400g-sr",
        "optic-400g-dr",
        "optic-400g-fr",
        "optic-400g-sr",
    ]
    names = placed_cables(topology, lengths, CableRule.PLACED_AOC).names()
    assert names[2:5] == ["aoc-400g", "aoc-400g", "optic-400g-sr"]


def test_no_module_spans_more_than_two_kilometres() -> None:
    topology = build_topology("roft", 64, nic_rate_bps=400 * GBIT)
    with pytest.raises(ConfigError, match="a cable of 2,001 m"):
        placed_cables(topology, np.full(64, 2_001.0), CableRule.PLACED)


def test_planned_cables_keep_what_the_kind_was_published_with() -> None:
    names = planned_cables(build_topology("zcube", 64, nic_rate_bps=400 * GBIT)).names()
    assert (names[0], names[64], names[128]) == ("optic-200g-sr", "dac-200g", "optic-200g-sr")
