import numpy as np

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import LengthClass, Link, Medium, Scope, Topology

GBIT = 10**9


def two_tier() -> Topology:
    return build_topology(
        "clos", 16, radix=8, nic_rate_bps=400 * GBIT, gpus_per_server=2, num_tiers=2
    )


def test_channel_two_i_leaves_end_a_and_the_next_one_comes_back() -> None:
    topology = two_tier()
    for link_id in (0, 20):
        link = topology.link(link_id)
        tail, head = topology.channel_tail, topology.channel_head
        assert (tail[2 * link_id], head[2 * link_id]) == (link.end_a, link.end_b)
        assert (tail[2 * link_id + 1], head[2 * link_id + 1]) == (link.end_b, link.end_a)


def test_link_returns_one_cable_as_a_record() -> None:
    assert two_tier().link(0) == Link(
        link_id=0,
        end_a=0,
        end_b=16,
        rate_bps=400 * GBIT,
        scope=Scope.HOST,
        medium=Medium.COPPER,
        length=LengthClass.RACK,
    )


def test_channel_capacity_is_the_rate_of_the_cable_both_ways() -> None:
    topology = build_topology(
        "clos",
        16,
        radix=8,
        nic_rate_bps=100 * GBIT,
        port_rate_bps=400 * GBIT,
        gpus_per_server=2,
        num_tiers=2,
    )
    capacity = topology.channel_capacity_bps
    assert capacity.tolist() == [100e9] * 32 + [400e9] * (len(capacity) - 32)


def test_channel_name_says_both_ends() -> None:
    topology = two_tier()
    first_uplink = 2 * topology.num_gpus
    assert topology.channel_name(0) == "GPU 0 port 0 -> leaf 0"
    assert topology.channel_name(1) == "leaf 0 -> GPU 0 port 0"
    assert topology.channel_name(first_uplink) == "leaf 0 -> spine 0"
    assert topology.channel_name(first_uplink + 1) == "spine 0 -> leaf 0"


def test_channel_name_numbers_parallel_cables() -> None:
    topology = two_tier()
    names = [topology.channel_name(c) for c in range(topology.num_channels)]
    assert names[2 * topology.num_gpus + 2] == "leaf 0 -> spine 0 #1"
    assert len(set(names)) == len(names)


def test_channel_name_tells_the_ports_of_a_two_port_nic_apart() -> None:
    topology = build_topology("zcube", 16, radix=8, nic_rate_bps=400 * GBIT, gpus_per_server=2)
    up = 2 * topology.access_links
    assert topology.channel_name(int(up[5, 0])) == "GPU 5 port 0 -> multi-rail leaf 1"
    assert topology.channel_name(int(up[5, 1])) == "GPU 5 port 1 -> single-rail leaf 1"


def test_access_switches_stand_at_the_far_end_of_the_nic_ports() -> None:
    topology = two_tier()
    assert topology.access_switches[:, 0].tolist() == [gpu // 4 for gpu in range(16)]


def test_same_server_groups_consecutive_gpus() -> None:
    topology = two_tier()
    assert topology.same_server(2, 3)
    assert not topology.same_server(1, 2)


def test_ports_used_counts_both_ends_of_every_cable() -> None:
    topology = two_tier()
    assert int(topology.ports_used().sum()) == 2 * topology.num_links - topology.num_gpus


def test_sixteen_thousand_gpus_are_held_in_arrays() -> None:
    topology = build_topology("roft", 16384, radix=128, nic_rate_bps=400 * GBIT, num_tiers=3)
    assert topology.num_links == 49152
    assert topology.links.end_a.dtype == np.int64
