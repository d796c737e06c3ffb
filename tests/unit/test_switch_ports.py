"""Ports as the front panel numbers them, against plugs counted by hand."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from small_fabrics import wire_fabric

from kvfabric.catalog.optics import CableKind, Reach, smallest_part
from kvfabric.catalog.switches import SWITCHES, lanes_of
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.plan.cabling import CableChoice, CableRule, CableType, planned_cables
from kvfabric.plan.racks import switch_models
from kvfabric.plan.switch_ports import PortPlan, plan_ports

GBIT = 10**9


def planned_ports(topology: Topology) -> PortPlan:
    return plan_ports(topology, planned_cables(topology), list(switch_models(topology)))


@pytest.mark.parametrize(
    ("cage", "rate", "lanes"),
    [(800, 800, 1), (800, 400, 2), (800, 200, 4), (800, 100, 8), (800, 50, 8), (400, 300, 1)],
)
def test_a_cage_splits_into_equal_lanes(cage: int, rate: int, lanes: int) -> None:
    assert lanes_of(cage * GBIT, rate * GBIT) == lanes


def test_a_full_leaf_has_gpus_first_and_two_lanes_to_a_cage() -> None:
    # Source: 128 x 400G = 64 cages of 800G (FS N9600-64OD, NVIDIA SN5600)
    topology = build_topology("roft", 1024, nic_rate_bps=400 * GBIT)
    ports = planned_ports(topology)
    host = topology.access_links[:, 0]
    at_first_leaf = host[topology.access_switches[:, 0] == 0]
    shown = list(zip(ports.cage[1, at_first_leaf], ports.lane[1, at_first_leaf], strict=True))
    assert shown == [(1 + idx // 2, 1 + idx % 2) for idx in range(64)]
    assert bool((ports.cage[0, host] == 0).all())  # the other end is a NIC
    assert len(ports.cages) == topology.num_switches * 64
    assert set(ports.num_cages.tolist()) == {64}


def test_copper_and_modules_do_not_share_a_cage() -> None:
    ports = planned_ports(build_topology("zcube", 1024, nic_rate_bps=400 * GBIT))
    assert ports.num_mixed == ports.num_beyond == 0
    assert Counter(cage.lanes for cage in ports.cages) == {4: 1024}


def test_cages_of_two_rates_are_split_differently() -> None:
    # leaves of a dual-plane fabric: 200G to GPUs, 400G up, out of the same 64 cages of 800G
    topology = build_topology("hpn", 1024, nic_rate_bps=400 * GBIT)
    at_first = [cage for cage in planned_ports(topology).cages if cage.switch == 0]
    assert Counter(cage.lanes for cage in at_first) == {4: 32, 2: 32}


def one_switch(kinds: Sequence[int]) -> tuple[Topology, CableChoice]:
    """Return a switch with one cable of each given type: 0 is copper, 1 a module."""
    topology = wire_fabric([[0]] * len(kinds), [])
    rate = 200 * GBIT
    types = (
        CableType(smallest_part(CableKind.COPPER, rate)),
        CableType(smallest_part(CableKind.OPTIC_END, rate), Reach.SR),
    )
    return topology, CableChoice(rule=CableRule.PLANNED, types=types, type_of=np.array(kinds))


def test_a_change_of_type_starts_a_new_cage() -> None:
    ports = plan_ports(*one_switch([0, 1, 0, 1, 0]), [SWITCHES["51.2t"]])
    assert ports.cage[1].tolist() == [1, 2, 1, 2, 1]
    assert ports.lane[1].tolist() == [1, 1, 2, 2, 3]
    assert ports.num_mixed == 0


def test_types_share_a_cage_only_where_cages_run_out() -> None:
    # 63 x 4 copper and 4 lanes left: one copper more, three modules
    ports = plan_ports(*one_switch([0] * 253 + [1] * 3), [SWITCHES["51.2t"]])
    assert (len(ports.cages), ports.num_mixed, ports.num_beyond) == (64, 1, 0)


def test_more_cables_than_a_switch_has_ports_go_on_beyond_and_are_counted() -> None:
    ports = plan_ports(*one_switch([0] * 66), [SWITCHES["12.8t"]])  # 32 cages of 2 x 200G
    assert (len(ports.cages), ports.num_beyond) == (33, 1)
