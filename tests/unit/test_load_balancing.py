import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.measures import switches_by_role
from kvfabric.fabric.routes.load_balancing import (
    POLICIES,
    AssigningBalancer,
    EcmpBalancer,
    LoadBalancer,
    make_load_balancer,
    split_bytes,
)
from kvfabric.fabric.routes.paths import PathTable

GBIT = 10**9


def fabric(kind: str = "roft", num_gpus: int = 128, radix: int = 32) -> Topology:
    return build_topology(kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT)


@pytest.fixture(params=tuple(POLICIES))
def balancer(request: pytest.FixtureRequest) -> LoadBalancer:
    return make_load_balancer(request.param, fabric(), queue_pairs=2, seed=1)


CLOS_ONLY = {"dmodk"}


def test_route_within_a_server_is_empty(balancer: LoadBalancer) -> None:
    assert balancer.route(0, 7, 1000, 0) == ()


def test_route_of_no_bytes_is_empty(balancer: LoadBalancer) -> None:
    assert balancer.route(0, 8, 0, 0) == ()


def test_route_carries_all_bytes(balancer: LoadBalancer) -> None:
    assert sum(part.num_bytes for part in balancer.route(0, 127, 1001, 3)) == 1001


def test_route_of_the_same_rail_within_a_leaf_is_two_host_channels(balancer: LoadBalancer) -> None:
    (first, *_) = balancer.route(0, 8, 1001, 3)
    names = [balancer.channel_name(c) for c in first.channels]
    assert names == ["GPU 0 port 0 -> leaf 0", "leaf 0 -> GPU 8 port 0"]


def test_names_say_the_policy_and_its_parameters() -> None:
    names = [make_load_balancer(p, fabric(), queue_pairs=4).name for p in POLICIES]
    assert names == [
        "ecmp(4 qp)",
        "spray",
        "assigned",
        "flowlet(1048576 bytes)",
        "dmodk",
        "path-source",
        "path-destination",
    ]


def test_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="ecmp, spray, assigned"):
        make_load_balancer("magic", fabric())


def test_no_queue_pair_is_refused() -> None:
    with pytest.raises(ConfigError, match="queue pairs"):
        make_load_balancer("ecmp", fabric(), queue_pairs=0)


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - CLOS_ONLY))
def test_two_port_nic_sends_half_of_the_bytes_through_each_port(policy: str) -> None:
    topology = fabric("zcube", 64, 16)
    parts = make_load_balancer(policy, topology).route(0, 63, 1000, 0)
    assert [part.num_bytes for part in parts] == [500, 500]
    assert {part.channels[0] for part in parts} == set((2 * topology.access_links[0]).tolist())
    assert {part.channels[-1] for part in parts} == set(
        (2 * topology.access_links[63] + 1).tolist()
    )


def test_ecmp_cuts_a_message_into_queue_pairs_per_port() -> None:
    parts = make_load_balancer("ecmp", fabric("zcube", 64, 16), queue_pairs=4).route(0, 63, 800, 0)
    assert [part.num_bytes for part in parts] == [100] * 8


def test_ecmp_drops_queue_pairs_without_bytes_but_uses_all_ports() -> None:
    parts = make_load_balancer("ecmp", fabric("zcube", 64, 16), queue_pairs=4).route(0, 63, 2, 0)
    assert [part.num_bytes for part in parts] == [1, 1]
    assert len({part.channels[0] for part in parts}) == 2


def test_ecmp_sends_the_same_connection_the_same_way() -> None:
    balancer = make_load_balancer("ecmp", fabric(), seed=3)
    assert balancer.route(0, 127, 10, 5) == balancer.route(0, 127, 10, 5)


def test_ecmp_paths_depend_on_seed_and_flow_key() -> None:
    topology = fabric()
    by_seed = {make_load_balancer("ecmp", topology, seed=s).route(0, 127, 10, 5) for s in range(9)}
    balancer = make_load_balancer("ecmp", topology)
    by_key = {balancer.route(0, 127, 10, key) for key in range(9)}
    assert min(len(by_seed), len(by_key)) > 3


def test_ecmp_without_switch_salt_polarizes() -> None:
    # 16 cables up and 16 down are 256 paths; switches that choose alike use 16 of them
    topology = build_topology(
        "clos", 32, radix=32, nic_rate_bps=GBIT, gpus_per_server=1, num_tiers=2
    )
    salted, plain = (
        EcmpBalancer(PathTable(topology), salt_by_switch=salt) for salt in (True, False)
    )
    used = [
        {balancer.route(0, 31, 10, key)[0].channels for key in range(2000)}
        for balancer in (salted, plain)
    ]
    assert len(used[1]) == 16
    assert len(used[0]) > 250


def test_spray_pools_all_uplinks_of_a_leaf_and_all_downlinks_of_the_other() -> None:
    topology = fabric("clos", 512)
    balancer = make_load_balancer("spray", topology)
    (part,) = balancer.route(0, 511, 1000, 0)
    capacity = balancer.channel_capacity_bps
    assert capacity[list(part.channels)].tolist() == [400e9, 16 * 400e9, 16 * 400e9, 400e9]
    assert part.channels[1] >= topology.num_channels
    name = balancer.channel_name(part.channels[1])
    assert name == "all 16 channels like leaf 0 -> spine 0"


def test_spray_pools_whole_pods_above_the_leaves() -> None:
    topology = fabric("roft", 1024)
    balancer = make_load_balancer("spray", topology)
    (part,) = balancer.route(0, 1023, 1000, 0)
    gbit = [int(balancer.channel_capacity_bps[c]) // GBIT for c in part.channels]
    assert gbit == [400, 16 * 400, 256 * 400, 256 * 400, 16 * 400, 400]


def test_spray_keeps_the_real_channel_where_there_is_no_choice() -> None:
    topology = fabric("zcube", 64, 16)
    balancer = make_load_balancer("spray", topology)
    assert len(balancer.channel_capacity_bps) == topology.num_channels
    assert all(max(p.channels) < topology.num_channels for p in balancer.route(0, 63, 10, 0))


def test_spray_over_partly_overlapping_stages_is_refused() -> None:
    topology = build_topology(
        "zcube", 64, radix=12, nic_rate_bps=400 * GBIT, gpus_per_server=4, num_tiers=2
    )
    with pytest.raises(UnsupportedError, match="overlap"):
        make_load_balancer("spray", topology)


def test_assigned_fills_all_uplinks_before_it_doubles_one() -> None:
    balancer = make_load_balancer("assigned", fabric("clos", 512))
    routes = [balancer.route(gpu, 496 + gpu, 1000, gpu) for gpu in range(16)]
    assert len({parts[0].channels[1] for parts in routes}) == 16
    assert len({parts[0].channels[2] for parts in routes}) == 16


def test_assigned_takes_the_lowest_channels_of_an_idle_fabric() -> None:
    balancer = make_load_balancer("assigned", fabric("clos", 512))
    (part,) = balancer.route(0, 511, 1000, 0)
    names = [balancer.channel_name(c) for c in part.channels[1:-1]]
    assert names == ["leaf 0 -> spine 0", "spine 0 -> leaf 31"]


def test_assigned_avoids_a_loaded_second_hop() -> None:
    # leaf 1 loads the way down to leaf 31 over spine 0; leaf 0 must see that before it starts
    balancer = make_load_balancer("assigned", fabric("clos", 512))
    balancer.route(16, 511, 1000, 0)
    (part,) = balancer.route(0, 510, 1000, 1)
    assert balancer.channel_name(part.channels[1]) == "leaf 0 -> spine 1"


def test_assigned_uses_all_paths_of_an_idle_fabric_in_turn() -> None:
    """Ties rotate: else every lone message would wear the first spine."""
    topology = fabric("clos", 512)
    num_spines = switches_by_role(topology)["spine"]
    balancer = make_load_balancer("assigned", topology)
    taken = []
    for key in range(num_spines):
        (part,) = balancer.route(0, 511, 1000, key)
        balancer.release((part,))
        taken.append(balancer.channel_name(part.channels[1]).split(" -> ")[1])
    assert len(set(taken)) == num_spines


def test_assigned_release_of_what_was_never_routed_is_caught() -> None:
    topology = fabric("clos", 512)
    foreign = make_load_balancer("assigned", topology).route(0, 511, 1000, 0)
    balancer = AssigningBalancer(PathTable(topology))
    with pytest.raises(AssertionError, match="I1"):
        balancer.release(foreign)


def test_split_bytes_differs_by_at_most_one() -> None:
    assert split_bytes(11, 4) == [3, 3, 3, 2]


def test_flowlets_are_cut_by_size_up_to_sixteen() -> None:
    balancer = make_load_balancer("flowlet", fabric(), flowlet_bytes=1000)
    sizes = [
        [part.num_bytes for part in balancer.route(0, 127, num_bytes, 3)]
        for num_bytes in (999, 1001, 3000, 10**6)
    ]
    assert sizes[:3] == [[999], [501, 500], [1000] * 3]
    assert sizes[3] == [62_500] * 16


def test_flowlets_of_a_message_take_different_paths() -> None:
    (first, *rest) = make_load_balancer("flowlet", fabric("clos", 512), flowlet_bytes=1000).route(
        0, 511, 16_000, 3
    )
    assert len({part.channels for part in (first, *rest)}) > 4


def test_flowlet_of_no_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="flowlets of 0 bytes"):
        make_load_balancer("flowlet", fabric(), flowlet_bytes=0)


@pytest.mark.parametrize(("kind", "num_gpus", "tiers"), [("clos", 512, 2), ("roft", 1024, 3)])
@pytest.mark.parametrize("policy", ["dmodk", "path-source"])
def test_no_two_messages_of_a_shift_share_a_channel(
    policy: str, kind: str, num_gpus: int, tiers: int
) -> None:
    """D-mod-k routes every shift of the NIC ports, in leaf order, without contention.

    Source: Zahavi, J. Parallel Distrib. Comput. 72, 2012. S-mod-k mirrors it.
    """
    topology = build_topology(
        kind, num_gpus, radix=32, nic_rate_bps=400 * GBIT, gpus_per_server=8, num_tiers=tiers
    )
    balancer = make_load_balancer(policy, topology)
    in_order = topology.access_switches[:, 0].argsort(kind="stable").tolist()
    for shift in (16, 48, num_gpus // 2, num_gpus - 16):
        used: set[int] = set()
        for place, src in enumerate(in_order):
            dst = in_order[(place + shift) % num_gpus]
            for part in balancer.route(src, dst, 1000, 0):
                assert not used & set(part.channels)
                used.update(part.channels)


def test_dmodk_has_one_path_down_per_destination_and_spine() -> None:
    topology = fabric("clos", 512)
    balancer = make_load_balancer("dmodk", topology)
    routes = [balancer.route(src, 511, 1000, 0)[0].channels for src in range(0, 480, 5)]
    assert len({channels[-2:] for channels in routes}) == 1


def test_dmodk_without_up_and_down_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no up and down"):
        make_load_balancer("dmodk", fabric("zcube", 64, 16))


@pytest.mark.parametrize("policy", ["path-source", "path-destination"])
def test_path_rules_spread_a_server_and_a_rank_over_the_parallel_cables(policy: str) -> None:
    """1,024 GPUs on 51.2T switches: 16 cables per pair, 8 switches per group."""
    topology = build_topology("zcube", 1024, nic_rate_bps=400 * GBIT)
    balancer = make_load_balancer(policy, topology)
    by_source = policy == "path-source"
    one_rank = [(8 * s, 1016) if by_source else (0, 512 + 8 * s) for s in range(16, 32)]
    one_server = [(r, 1016) if by_source else (0, 1016 + r) for r in range(8)]
    port = 1 if by_source else 0  # single-rail side of the 16 servers of one switch
    for pairs in (one_rank, one_server):
        routes = [balancer.route(src, dst, 1000, 0)[port].channels for src, dst in pairs]
        assert len({channels[1] for channels in routes}) == len(pairs)


def test_path_rules_ignore_the_other_end() -> None:
    topology = build_topology("zcube", 1024, nic_rate_bps=400 * GBIT)
    for policy, fixed in (("path-source", 0), ("path-destination", 1)):
        balancer = make_load_balancer(policy, topology)
        others = range(512, 640)  # all on one single-rail switch
        pairs = [(0, other) if fixed == 0 else (other, 0) for other in others]
        port = 0 if fixed == 0 else 1
        taken = {balancer.route(src, dst, 1000, 0)[port].channels[1] for src, dst in pairs}
        assert len(taken) == 1
