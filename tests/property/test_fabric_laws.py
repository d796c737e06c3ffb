"""Laws of every fabric and route: INV-13 (paths), INV-14 (ports), INV-15 (bill = graph)."""

from collections import Counter

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Scope, SwitchRole, Topology
from kvfabric.fabric.measured.measures import path_lengths, switch_distances
from kvfabric.fabric.routes.load_balancing import AssigningBalancer, SubFlow, make_load_balancer
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.plan.bom import bill_of_materials

GBIT = 10**9


@st.composite
def clos_like(draw: st.DrawFn) -> Topology:
    servers = draw(st.sampled_from([1, 2, 4]))
    kind, num_servers = draw(st.sampled_from(["clos", "roft"])), draw(st.integers(2, 40))
    try:
        return build_topology(
            kind,
            servers * num_servers,
            radix=draw(st.sampled_from([4, 6, 8, 12, 16])),
            nic_rate_bps=400 * GBIT,
            gpus_per_server=servers,
            oversubscription=draw(st.sampled_from([1.0, 1.5, 2.0])),
            num_tiers=draw(st.sampled_from([None, 2, 3])),
        )
    except ConfigError:
        assume(False)
        raise


@st.composite
def flat_zcubes(draw: st.DrawFn) -> Topology:
    groups, cables = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    per_switch = groups * cables
    servers = draw(st.sampled_from([s for s in (1, 2, 4) if per_switch % s == 0]))
    return build_topology(
        "zcube",
        groups * per_switch,
        radix=2 * per_switch,
        nic_rate_bps=400 * GBIT,
        gpus_per_server=servers,
    )


@st.composite
def cored_zcubes(draw: st.DrawFn) -> Topology:
    side = draw(st.sampled_from([2, 4]))
    return build_topology(
        "zcube",
        side**3,
        radix=3 * side,
        nic_rate_bps=400 * GBIT,
        gpus_per_server=2,
        num_tiers=2,
    )


fabrics = st.one_of(clos_like(), flat_zcubes(), cored_zcubes())


def check_path(topology: Topology, part: SubFlow, src: int, dst: int) -> list[int]:
    """Assert that a sub-flow is a simple path between two GPUs; return its switches."""
    tail, head = topology.channel_tail, topology.channel_head
    nodes = [int(tail[part.channels[0]])] + [int(head[c]) for c in part.channels]
    assert [int(tail[c]) for c in part.channels] == nodes[:-1]
    assert (nodes[0], nodes[-1]) == (src, dst)
    assert len(set(nodes)) == len(nodes)
    switches = [node - topology.num_gpus for node in nodes[1:-1]]
    assert all(switch >= 0 for switch in switches)
    return switches


def gpu_pairs(topology: Topology) -> st.SearchStrategy[list[tuple[int, int]]]:
    gpu = st.integers(0, topology.num_gpus - 1)
    return st.lists(st.tuples(gpu, gpu), min_size=1, max_size=12)


@given(fabrics)
def test_no_switch_has_more_cables_than_ports(topology: Topology) -> None:
    topology.check_invariants()  # INV-14


@given(clos_like())
def test_leaves_have_the_uplinks_their_oversubscription_asks_for(topology: Topology) -> None:
    assume(topology.num_tiers > 1)
    at_leaf = np.array([switch.role is SwitchRole.LEAF for switch in topology.switches])
    host = topology.links.scope == Scope.HOST
    down = np.bincount(topology.access_switches.ravel(), minlength=topology.num_switches)
    up = topology.ports_used() - down
    assert host.sum() == topology.num_gpus
    assert (2 * up[at_leaf] >= down[at_leaf]).all()  # the strategies stay at 2:1 or better


@given(fabrics, st.sampled_from(["ecmp", "assigned"]), st.data())
def test_paths_are_simple_and_shortest(
    topology: Topology, policy: str, data: st.DataObject
) -> None:
    balancer = make_load_balancer(policy, topology, queue_pairs=2)
    distances = switch_distances(topology)
    for key, (src, dst) in enumerate(data.draw(gpu_pairs(topology))):
        for part in balancer.route(src, dst, 1000, key):  # INV-13
            switches = check_path(topology, part, src, dst)
            assert len(switches) - 1 == distances[switches[0], switches[-1]]


@given(flat_zcubes(), st.sampled_from(["ecmp", "assigned"]), st.data())
def test_flat_zcube_pairs_are_two_switches_apart_through_opposite_groups(
    topology: Topology, policy: str, data: st.DataObject
) -> None:
    balancer = make_load_balancer(policy, topology)
    for key, (src, dst) in enumerate(data.draw(gpu_pairs(topology))):
        for part in balancer.route(src, dst, 1000, key):
            roles = [topology.switches[s].role for s in check_path(topology, part, src, dst)]
            assert len(roles) == 1 or set(roles) == {
                SwitchRole.MULTI_RAIL,
                SwitchRole.SINGLE_RAIL,
            }
            assert len(roles) <= 2


@given(cored_zcubes(), st.data())
def test_cored_zcube_pairs_are_at_most_four_switches_apart(
    topology: Topology, data: st.DataObject
) -> None:
    balancer = make_load_balancer("ecmp", topology)
    for key, (src, dst) in enumerate(data.draw(gpu_pairs(topology))):
        for part in balancer.route(src, dst, 1000, key):
            assert len(check_path(topology, part, src, dst)) <= 4


@given(
    st.one_of(clos_like(), flat_zcubes()),
    st.sampled_from(["ecmp", "spray", "assigned"]),
    st.integers(1, 10**9),
    st.data(),
)
def test_routes_carry_every_byte_over_all_ports(
    topology: Topology, policy: str, num_bytes: int, data: st.DataObject
) -> None:
    balancer = make_load_balancer(policy, topology, queue_pairs=3)
    for key, (src, dst) in enumerate(data.draw(gpu_pairs(topology))):
        parts = balancer.route(src, dst, num_bytes, key)
        if topology.same_server(src, dst):
            assert parts == ()
            continue
        assert sum(part.num_bytes for part in parts) == num_bytes
        used = {part.channels[0] for part in parts}, {part.channels[-1] for part in parts}
        ports = min(num_bytes, topology.ports_per_nic)
        assert (len(used[0]), len(used[1])) == (ports, ports)


@given(st.one_of(clos_like(), flat_zcubes()), st.data())
def test_sprayed_stage_has_the_capacity_that_hashed_paths_can_reach(
    topology: Topology, data: st.DataObject
) -> None:
    spray, hashed = (make_load_balancer(policy, topology) for policy in ("spray", "ecmp"))
    capacity = spray.channel_capacity_bps
    for src, dst in data.draw(gpu_pairs(topology)):
        whole = spray.route(src, dst, 1000, 0)
        tried = [hashed.route(src, dst, 1000, key) for key in range(40)]
        for number, part in enumerate(whole):
            for stage, channel in enumerate(part.channels):
                members = {parts[number].channels[stage] for parts in tried}
                assert capacity[channel] >= sum(capacity[c] for c in members)


@given(fabrics, st.data())
def test_released_load_leaves_nothing_behind(topology: Topology, data: st.DataObject) -> None:
    balancer = AssigningBalancer(PathTable(topology))
    pairs = data.draw(gpu_pairs(topology))
    routes = [balancer.route(src, dst, 1000 + key, key) for key, (src, dst) in enumerate(pairs)]
    crossed = {c for parts in routes for part in parts for c in part.channels[1:-1]}
    assert balancer.num_loaded_channels == len(crossed)
    for parts in data.draw(st.permutations(routes)):
        balancer.release(parts)
    assert balancer.num_loaded_channels == 0


@given(fabrics)
def test_average_path_length_equals_the_mean_over_all_pairs(topology: Topology) -> None:
    distances, access = switch_distances(topology), topology.access_switches
    lengths = [
        2 + min(int(distances[a, b]) for a in access[src] for b in access[dst])
        for src in range(topology.num_gpus)
        for dst in range(topology.num_gpus)
        if src != dst
    ]
    assume(lengths)
    measured = path_lengths(topology)
    assert measured.average_links is not None
    assert abs(measured.average_links - sum(lengths) / len(lengths)) < 1e-9
    assert measured.diameter_links == max(lengths)


@given(fabrics)
def test_bill_equals_the_sum_over_the_graph(topology: Topology) -> None:
    bill = bill_of_materials(topology, PRICE_BOOK)  # INV-15
    cables = [topology.link(link_id) for link_id in range(topology.num_links)]
    fibre = sum(cable.medium is Medium.FIBRE for cable in cables)
    counts = Counter({line.category: 0 for line in bill.lines})
    for line in bill.lines:
        counts[line.category] += line.count
    assert counts["switch"] == topology.num_switches
    assert (counts["fibre"], counts["optic"]) == (fibre, 2 * fibre)
    assert counts["copper"] == topology.num_links - fibre
    assert counts["nic"] == topology.num_gpus
    assert bill.cost().typical_usd == sum(
        line.count * PRICE_BOOK.price(line.key).typical_usd for line in bill.lines
    )
