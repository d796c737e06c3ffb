from itertools import pairwise

import numpy as np
import pytest
from small_fabrics import channel_between, path_over, wire_fabric

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.deadlocks import dependency_cycles
from kvfabric.fabric.deadlocks.buffer_dependencies import (
    Buffer,
    HopPriorities,
    Route,
    route_dependencies,
)
from kvfabric.fabric.deadlocks.deadlock import (
    check_routes,
    deadlock_report,
    find_cycle,
    routes_to_forbid,
)
from kvfabric.fabric.deadlocks.dependency_cycles import shortest_cycle
from kvfabric.fabric.deadlocks.switch_pairs import switch_pairs
from kvfabric.fabric.routes.paths import PathTable

SQUARE = wire_fabric([[0], [1], [2], [3]], [(0, 1), (1, 2), (2, 3), (3, 0)])


def around(first: int, num_switches: int) -> Route:
    switches = [(first + step) % 4 for step in range(num_switches)]
    return Route(path_over(SQUARE, first, switches, switches[-1]))


def test_priorities_rise_at_the_named_hops() -> None:
    priorities = HopPriorities((2, 4))
    assert [priorities.at(hop) for hop in range(6)] == [1, 1, 2, 2, 3, 3]
    assert priorities.num_priorities == 3


@pytest.mark.parametrize("hops", [(1,), (0, 2), (3, 2), (2, 2), tuple(range(2, 10))])
def test_priorities_that_cannot_be_are_refused(hops: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="Write"):
        HopPriorities(hops)


def test_every_frame_waits_for_its_next_buffer() -> None:
    graph = route_dependencies(SQUARE, [around(0, 3)])
    names = [
        (graph.buffer(held).channel, graph.buffer(awaited).channel)
        for held, awaited in zip(graph.holding.tolist(), graph.awaited.tolist(), strict=True)
    ]
    channels = around(0, 3).channels
    assert sorted(names) == sorted(pairwise(channels))
    assert len(graph.buffers) == 4


def test_priority_on_the_first_cable_between_switches_is_the_first() -> None:
    graph = route_dependencies(SQUARE, [around(0, 4)], HopPriorities((2,)))
    by_channel = dict(graph.buffers.tolist())
    assert [by_channel[channel] for channel in around(0, 4).channels] == [1, 1, 2, 2, 2]


def test_a_route_that_begins_at_a_switch_begins_with_hop_one() -> None:
    inner = Route(around(0, 4).channels[1:])
    graph = route_dependencies(SQUARE, [inner], HopPriorities((2,)))
    by_channel = dict(graph.buffers.tolist())
    assert [by_channel[channel] for channel in inner.channels] == [1, 2, 2, 2]


def test_cycle_is_told_by_names_with_two_ways_out() -> None:
    report = check_routes(SQUARE, [around(first, 3) for first in range(4)])
    assert report.cycle[0] == Buffer(channel_between(SQUARE, 4, 5), 1)
    assert report.lines() == [
        (
            "deadlock possible: 4 buffers wait for each other in a circle "
            "(4 routes, 1 lossless priority)"
        ),
        "  leaf 0 -> leaf 1 (priority 1) waits for",
        "  leaf 1 -> leaf 2 (priority 1) waits for",
        "  leaf 2 -> leaf 3 (priority 1) waits for",
        "  leaf 3 -> leaf 0 (priority 1) waits for",
        "  leaf 0 -> leaf 1 again",
        (
            "fix: send with the next priority from hop 2 on, 2 lossless priorities in all: "
            "checked, no cycle"
        ),
        "or do not use routes 0: checked",
    ]
    assert report.as_dict()["can_deadlock"] is True
    assert report.as_dict()["fix_raise_priority_at_hops"] == [2]


def test_both_fixes_are_free_when_checked_by_hand() -> None:
    routes = [around(first, 3) for first in range(4)]
    assert not find_cycle(route_dependencies(SQUARE, routes, HopPriorities((2,))))
    assert not find_cycle(route_dependencies(SQUARE, routes[1:]))


def test_named_priorities_are_kept_and_raised_beyond_all_named() -> None:
    routes = [Route(around(first, 3).channels, (2, 2, 2, 2)) for first in range(4)]
    report = check_routes(SQUARE, routes)
    assert {buffer.priority for buffer in report.cycle} == {2}
    raised = route_dependencies(SQUARE, routes, HopPriorities((2,)))
    assert set(raised.buffers[:, 1].tolist()) == {2, 4}


def test_eight_priorities_are_all_there_are() -> None:
    """Twelve switches, ways of eleven: nine classes would be asked for at two by two hops."""
    ring = [(switch, (switch + 1) % 12) for switch in range(12)]
    topology = wire_fabric([[switch] for switch in range(12)], ring)
    routes = [
        Route(path_over(topology, first, [(first + i) % 12 for i in range(12)], (first + 11) % 12))
        for first in range(12)
    ]
    named = [Route(route.channels, (5,) * len(route.channels)) for route in routes]
    report = check_routes(topology, named)
    assert report.fix is None
    assert report.forbidden_routes
    assert report.lines()[-1].startswith("fix: do not use routes")


def test_no_routes_are_no_deadlock() -> None:
    assert not check_routes(SQUARE, []).can_deadlock
    assert routes_to_forbid(SQUARE, []) == ()


def test_nothing_is_forbidden_where_nothing_can_lock() -> None:
    assert routes_to_forbid(SQUARE, [around(0, 3), around(1, 3)]) == ()


def test_host_keeps_what_it_receives_unless_hosts_forward() -> None:
    """Three GPUs with two ports each, three switches between them, and relays all the way."""
    access = [[0, 1], [1, 2], [2, 0]]
    relayed = []
    still = wire_fabric(access, [])
    forwarding = wire_fabric(access, [], hosts_forward=True)
    for first in range(3):
        second, third = (first + 1) % 3, (first + 2) % 3
        # GPU i meets GPU i + 1 at switch i + 1
        nodes = [first, 3 + second, second, 3 + third, third]
        hops = [channel_between(still, a, b) for a, b in pairwise(nodes)]
        relayed.append(Route(tuple(hops)))
    with pytest.raises(ConfigError, match="does not forward"):
        check_routes(still, relayed)
    report = check_routes(forwarding, relayed)
    assert report.can_deadlock
    assert report.fix == HopPriorities((2,))


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (Route(()), "Write one or more channels"),
        (Route((0, 999)), "Write one or more channels"),
        (Route((-1,)), "Write one or more channels"),
        (Route((0, 2)), "does not begin where GPU 0 port 0 -> leaf 0 ends"),
        (Route((0,), (1, 1)), "priorities"),
        (Route((0,), (0,)), "priorities"),
    ],
)
def test_bad_routes_are_refused(route: Route, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_routes(SQUARE, [around(0, 2), route])
    assert "route 1" in str(caught.value)


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="Write one of ecmp"):
        deadlock_report(SQUARE, "valiant")


def test_fabric_of_4096_gpus_is_checked_whole() -> None:
    topology = build_topology("roft", 4096, radix=64, nic_rate_bps=400 * 10**9)
    report = deadlock_report(topology, "ecmp")
    assert not report.can_deadlock
    # both ways between 128 leaves and 32 spines each, and between 128 spines and 2 cores each
    assert report.num_buffers == 2 * (128 * 32 + 128 * 2)


def test_servers_that_fill_their_switches_send_nothing_over_them() -> None:
    topology = wire_fabric([[0], [0], [1], [1]], [(0, 1)], gpus_per_server=4)
    assert not switch_pairs(PathTable(topology)).any()


def test_shortest_cycle_is_found_beyond_the_first_batch_of_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One cycle of 300 nodes, and one of 4 behind it, searched 64 starts at a time."""
    monkeypatch.setattr(dependency_cycles, "_BYTES_AT_ONCE", 1)
    long = [(i, (i + 1) % 300) for i in range(300)]
    short = [(300, 301), (301, 302), (302, 303), (303, 300)]
    ends = np.array(long + short)
    assert shortest_cycle(304, ends[:, 0], ends[:, 1]) == (300, 301, 302, 303)


def test_search_that_costs_too_much_ends_with_the_first_batch_that_finds_a_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """54 nodes that lie on no cycle, one of ten nodes, and one of two in the next batch."""
    monkeypatch.setattr(dependency_cycles, "_BYTES_AT_ONCE", 1)
    monkeypatch.setattr(dependency_cycles, "_MOST_WORK", 0)
    line = [(i, i + 1) for i in range(54)]
    ten = [(54 + i, 54 + (i + 1) % 10) for i in range(10)]
    pair = [(200, 201), (201, 200), (201, 0)]
    ends = np.array(line + ten + pair)
    assert shortest_cycle(202, ends[:, 0], ends[:, 1]) == tuple(range(54, 64))
    monkeypatch.undo()
    assert shortest_cycle(202, ends[:, 0], ends[:, 1]) == (200, 201)
