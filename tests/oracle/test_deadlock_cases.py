"""Fabrics of which it is known whether priority flow control can lock them up.

Sources: an up-down route never turns up again, so folded Clos is free (Leiserson 1985; the
"valley-free" routes of Hu et al., HotNets 2016). Bipartite leaves: derived in the project's notes
on ZCube: dual-homed hosts enter one group and leave by the other and cross one fabric cable, which
cannot wait for another; transit through the other group, or a detour after a failure, crosses two.
Dragonfly: Kim et al., ISCA 2008, section 4: minimal routing needs two virtual channels. Rings:
Dally and Seitz, IEEE Trans. Computers C-36 (1987).
"""

from itertools import pairwise, permutations, product

import numpy as np
import pytest
from small_fabrics import path_over, wire_fabric

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.deadlocks.buffer_dependencies import HopPriorities, Route
from kvfabric.fabric.deadlocks.deadlock import SHORTEST_PATH_POLICIES, check_routes, deadlock_report
from kvfabric.fabric.failures import Failures, without
from kvfabric.fabric.graph import Scope, Topology

GBIT = 10**9


def built(kind: str, num_gpus: int, radix: int, tiers: int | None = None) -> Topology:
    return build_topology(
        kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT, num_tiers=tiers, gpus_per_server=8
    )


def bipartite(group: int, hosts_per_leaf: int = 1) -> Topology:
    """Return two completely joined groups of leaves with single-homed hosts."""
    access = [[leaf] for leaf in range(2 * group) for _ in range(hosts_per_leaf)]
    return wire_fabric(access, [(a, group + b) for a in range(group) for b in range(group)])


def dragonfly(hosts: int, routers: int, global_links: int) -> Topology:
    """Return the canonical dragonfly of ``routers * global_links + 1`` groups."""
    groups = routers * global_links + 1
    cables = [
        (group * routers + a, group * routers + b)
        for group in range(groups)
        for a in range(routers)
        for b in range(a + 1, routers)
    ]
    cables += [
        (a * routers + (b - 1) // global_links, b * routers + a // global_links)
        for a in range(groups)
        for b in range(a + 1, groups)
    ]
    num_gpus = groups * routers * hosts
    return wire_fabric([[gpu // hosts] for gpu in range(num_gpus)], cables)


@pytest.mark.parametrize("policy", SHORTEST_PATH_POLICIES)
@pytest.mark.parametrize(
    ("kind", "num_gpus", "radix", "tiers"),
    [("clos", 512, 32, 2), ("clos", 1024, 32, 3), ("roft", 512, 32, 2), ("roft", 1024, 32, 3)],
)
def test_folded_clos_has_none(
    policy: str, kind: str, num_gpus: int, radix: int, tiers: int
) -> None:
    report = deadlock_report(built(kind, num_gpus, radix, tiers), policy)
    assert not report.can_deadlock
    assert report.num_dependencies
    assert report.lines()[0].startswith("no deadlock")


@pytest.mark.parametrize(
    ("kind", "num_gpus", "radix"),
    [("rail-only", 1024, 32), ("multi-plane", 512, 16), ("hpn", 1024, 64)],
)
def test_planes_of_folded_clos_have_none(kind: str, num_gpus: int, radix: int) -> None:
    report = deadlock_report(built(kind, num_gpus, radix), "ecmp")
    assert not report.can_deadlock
    assert report.num_dependencies


@pytest.mark.parametrize(("num_gpus", "radix"), [(64, 16), (1024, 64), (1024, 256)])
def test_zcube_enters_by_one_group_and_leaves_by_the_other(num_gpus: int, radix: int) -> None:
    report = deadlock_report(built("zcube", num_gpus, radix), "ecmp")
    assert not report.can_deadlock
    assert report.num_dependencies == 0  # one fabric cable per path: nothing waits


def test_zcube_with_cores_has_none() -> None:
    report = deadlock_report(built("zcube", 512, 24, tiers=2), "ecmp")
    assert not report.can_deadlock
    assert report.num_dependencies


@pytest.mark.parametrize("group", [2, 8])
def test_transit_through_the_other_group_locks_up(group: int) -> None:
    topology = bipartite(group)
    report = deadlock_report(topology, "ecmp")
    assert len(report.cycle) == 4  # a to b, b to a', a' to b', b' to a
    assert report.fix == HopPriorities((2,))
    assert not deadlock_report(topology, "ecmp", report.fix).can_deadlock


def test_transit_of_one_group_alone_is_free() -> None:
    topology = bipartite(2)
    routes = [
        Route(path_over(topology, a, (a, 2 + b, 1 - a), 1 - a)) for a in (0, 1) for b in (0, 1)
    ]
    assert not check_routes(topology, routes).can_deadlock


def dual_homed(group: int) -> Topology:
    """Return a flat ZCube(n, 2): GPU i at leaf ``i % n`` of one group, ``i // n`` of the other."""
    access = [[gpu % group, group + gpu // group] for gpu in range(group * group)]
    return wire_fabric(access, [(a, group + b) for a in range(group) for b in range(group)])


def detours(topology: Topology, group: int) -> list[Route]:
    """Return what remains when paths of one fabric cable fail: three switches, both ways round."""
    routes = []
    for a, c in permutations(range(group), 2):
        for b in range(group):
            src, dst = a + group * b, c + group * ((b + 1) % group)
            routes.append(Route(path_over(topology, src, (a, group + b, c), dst)))
            src, dst = b + group * a, (b + 1) % group + group * c
            routes.append(Route(path_over(topology, src, (group + a, b, group + c), dst)))
    return routes


def test_three_switch_detours_lock_up_without_a_second_priority() -> None:
    topology = dual_homed(3)
    routes = detours(topology, 3)
    report = check_routes(topology, routes)
    assert len(report.cycle) == 4
    assert report.fix == HopPriorities((2,))
    assert not check_routes(topology, routes, HopPriorities((2,))).can_deadlock


def test_zcube_after_one_and_two_failed_cables() -> None:
    """One loss makes detours through one group alone; two can make them through both.

    So the notes' "a detour after a failure creates a cycle" needs two failures, at four leaves.
    """
    whole = built("zcube", 64, 16)
    first = int(np.flatnonzero(whole.links.scope == Scope.FABRIC)[0])
    second = first + 8 + 1  # multi-rail leaf 1 to single-rail leaf 1
    one = without(whole, Failures(links=frozenset([first])))
    report = deadlock_report(one, "ecmp")
    assert report.num_dependencies
    assert not report.can_deadlock
    two = without(whole, Failures(links=frozenset([first, second])))
    report = deadlock_report(two, "ecmp")
    assert len(report.cycle) == 4
    assert report.fix == HopPriorities((2,))
    assert not deadlock_report(two, "ecmp", report.fix).can_deadlock


def test_detours_with_their_second_priority_named_hop_by_hop_are_free() -> None:
    topology = dual_homed(3)
    routes = [Route(r.channels, (1, 1, 2, 2)) for r in detours(topology, 3)]
    assert not check_routes(topology, routes).can_deadlock


def test_detours_over_three_fabric_cables() -> None:
    """Odd, even, odd, even, and the way back: two priorities are one too few."""
    topology = dual_homed(3)
    routes = []
    for a, b, c, d in product(range(3), repeat=4):
        if a == c or b == d:
            continue
        src, dst = a + 3 * ((b + 1) % 3), (a + 1) % 3 + 3 * d
        routes.append(Route(path_over(topology, src, (a, 3 + b, c, 3 + d), dst)))
        routes.append(Route(path_over(topology, dst, (3 + d, c, 3 + b, a), src)))
    report = check_routes(topology, routes)
    assert report.can_deadlock
    assert check_routes(topology, routes, HopPriorities((2,))).can_deadlock
    assert report.fix == HopPriorities((2, 3))


def test_dragonfly_with_one_priority_locks_up() -> None:
    report = deadlock_report(dragonfly(2, 4, 2), "ecmp")
    assert report.can_deadlock
    assert report.fix is not None


@pytest.mark.parametrize(
    ("kind", "num_gpus", "radix", "shape"),
    [("slim-fly", 200, 11, {}), ("zcube-recursive", 64, 12, {"k": 3})],
)
def test_fabrics_of_diameter_two_need_a_second_priority(
    kind: str, num_gpus: int, radix: int, shape: dict[str, int]
) -> None:
    """No more than two cables between switches, so that from hop 2 on nothing waits again."""
    topology = build_topology(
        kind,
        num_gpus,
        radix=radix,
        nic_rate_bps=600 * GBIT,
        gpus_per_server=4,
        shape=shape,
    )
    report = deadlock_report(topology, "ecmp")
    assert report.can_deadlock
    assert report.fix == HopPriorities((2,))


def minimal_routes(topology: Topology, routers: int, global_links: int, hosts: int) -> list[Route]:
    """Return the one minimal route per pair of groups and routers: local, global, local."""
    groups, routes = routers * global_links + 1, []
    for a, b in permutations(range(groups), 2):
        leave = a * routers + (b - 1 if b > a else b) // global_links
        enter = b * routers + (a - 1 if a > b else a) // global_links
        for source in range(a * routers, (a + 1) * routers):
            for target in range(b * routers, (b + 1) * routers):
                hops = [source, leave, enter, target]
                switches = hops[:1] + [after for before, after in pairwise(hops) if before != after]
                routes.append(Route(path_over(topology, source * hosts, switches, target * hosts)))
    return routes


def test_dragonfly_minimal_routes_need_two_channels_on_local_cables() -> None:
    hosts, routers, global_links = 1, 4, 1
    topology = dragonfly(hosts, routers, global_links)
    routes = minimal_routes(topology, routers, global_links, hosts)
    report = check_routes(topology, routes)
    assert report.can_deadlock
    after_global = [
        Route(route.channels, tuple(1 + crossed for crossed in crossings(topology, route, routers)))
        for route in routes
    ]
    assert not check_routes(topology, after_global).can_deadlock


def crossings(topology: Topology, route: Route, routers: int) -> list[int]:
    """Return, per channel, whether a global cable was crossed before it."""
    nodes = topology.channel_tail[list(route.channels[1:])] - topology.num_gpus
    groups = [int(node) // routers for node in nodes]
    return [0] + [int(group != groups[0]) for group in groups]


@pytest.mark.parametrize("size", [5, 6, 9])
def test_ring_locks_up_and_a_line_does_not(size: int) -> None:
    access = [[switch] for switch in range(size)]
    line = [(switch, switch + 1) for switch in range(size - 1)]
    report = deadlock_report(wire_fabric(access, [*line, (size - 1, 0)]), "ecmp")
    assert len(report.cycle) == size
    assert not deadlock_report(wire_fabric(access, line), "ecmp").can_deadlock


@pytest.mark.parametrize("size", [3, 4])
def test_ring_of_short_ways_is_as_its_longest_way(size: int) -> None:
    """In a ring of three every way is one cable; of four, two cables, all the way round."""
    ring = [(switch, (switch + 1) % size) for switch in range(size)]
    report = deadlock_report(wire_fabric([[switch] for switch in range(size)], ring), "ecmp")
    assert report.can_deadlock == (size == 4)


@pytest.mark.parametrize("policy", ["dmodk", "path-source"])
def test_policies_that_use_some_shortest_paths_are_free_where_all_are(policy: str) -> None:
    report = deadlock_report(built("roft", 512, 32, 2), policy)
    assert not report.can_deadlock
    assert "uses some of them" in report.paths


def test_ring_with_a_dateline_is_free() -> None:
    """Dally and Seitz: the second channel from the crossing of a fixed place on."""
    size = 6
    ring = [(switch, (switch + 1) % size) for switch in range(size)]
    topology = wire_fabric([[switch] for switch in range(size)], ring)
    one_way, dated = [], []
    for src in range(size):
        for steps in range(1, size):
            switches = [(src + step) % size for step in range(steps + 1)]
            channels = path_over(topology, src, switches, switches[-1])
            crossed = [1 + (switch < src) for switch in switches]
            one_way.append(Route(channels))
            dated.append(Route(channels, (1, *crossed)))
    assert check_routes(topology, one_way).can_deadlock
    assert not check_routes(topology, dated).can_deadlock
