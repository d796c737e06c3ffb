"""Laws of the deadlock check: it equals the enumeration of every path, on small random fabrics."""

from collections.abc import Iterator
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_fabrics import GBIT, wire_fabric

from kvfabric.fabric.deadlocks.buffer_dependencies import (
    Buffer,
    BufferDependencies,
    HopPriorities,
    Route,
    route_dependencies,
)
from kvfabric.fabric.deadlocks.deadlock import deadlock_report, find_cycle, routes_to_forbid
from kvfabric.fabric.deadlocks.dependency_cycles import shortest_cycle
from kvfabric.fabric.deadlocks.relay_dependencies import relay_dependencies
from kvfabric.fabric.deadlocks.shortest_path_dependencies import cable_dependencies, forwarding_of
from kvfabric.fabric.graph import IntArray, Topology
from kvfabric.fabric.request import FabricRequest
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.topologies.bcube import build_bcube

Edges = set[tuple[int, int]]


@st.composite
def small_fabrics(draw: st.DrawFn) -> Topology:
    num_switches = draw(st.integers(2, 7))
    tree = [(draw(st.integers(0, s - 1)), s) for s in range(1, num_switches)]
    pair = st.tuples(st.integers(0, num_switches - 1), st.integers(0, num_switches - 1))
    more = draw(st.lists(pair.filter(lambda p: p[0] != p[1]), max_size=9))
    num_ports = draw(st.integers(1, 2))
    switch = st.integers(0, num_switches - 1)
    per_server = draw(st.integers(1, 2))
    port_lists = st.lists(switch, min_size=num_ports, max_size=num_ports)
    access = draw(st.lists(port_lists, min_size=2, max_size=8))
    access = access[: len(access) // per_server * per_server]
    return wire_fabric(access, tree + more, gpus_per_server=per_server)


def shortest_paths(topology: Topology, source: int, target: int) -> list[list[int]]:
    """Return the fabric channels of every shortest path between two switches."""
    tail, head = topology.channel_tail, topology.channel_head
    onward: dict[int, list[int]] = {}
    for channel in range(topology.num_channels):
        if min(tail[channel], head[channel]) >= topology.num_gpus:
            onward.setdefault(int(tail[channel]) - topology.num_gpus, []).append(channel)
    found: list[tuple[int, list[int]]] = [(source, [])]
    while True:
        done = [path for switch, path in found if switch == target]
        if done:
            return done
        found = [
            (int(head[channel]) - topology.num_gpus, [*path, channel])
            for switch, path in found
            for channel in onward[switch]
            if len(path) <= topology.num_switches
        ]


def all_routes(topology: Topology) -> list[Route]:
    """Return every path between GPUs of different servers, as the port rule has it."""
    paths = PathTable(topology)
    return [
        Route((paths.uplink(src, a), *middle, paths.downlink(dst, b)))
        for src in range(topology.num_gpus)
        for dst in range(topology.num_gpus)
        if not topology.same_server(src, dst)
        for a, b in paths.port_pairs(src, dst)
        for middle in shortest_paths(
            topology, paths.access_switch(src, a), paths.access_switch(dst, b)
        )
    ]


def length_of_shortest_cycle(edges: Edges) -> int:
    """Return the fewest edges back to a node, by a search from each; 0 if there is none."""
    lengths = []
    for start in {tail for tail, _ in edges}:
        reached, steps = {start}, 0
        seen: set[int] = set()
        while reached:
            steps += 1
            reached = {head for tail, head in edges if tail in reached}
            if start in reached:
                lengths.append(steps)
                break
            reached -= seen
            seen |= reached
    return min(lengths, default=0)


def named_edges(topology: Topology, priorities: HopPriorities) -> Edges:
    """Return the dependencies of all routes between fabric channels, as pairs of numbers."""
    fabric = topology.channel_tail >= topology.num_gpus
    fabric &= topology.channel_head >= topology.num_gpus
    edges = set()
    for route in all_routes(topology):
        hops = [(c, hop) for hop, c in enumerate(route.channels) if fabric[c]]
        numbers = [c * 10 + priorities.at(hop) for c, hop in hops]
        edges |= set(pairwise(numbers))
    return edges


@given(small_fabrics(), st.sampled_from([(), (2,), (3,), (2, 3)]))
def test_shortest_path_dependencies_equal_those_of_all_paths(
    topology: Topology, raised_at: tuple[int, ...]
) -> None:
    priorities = HopPriorities(raised_at)
    paths = PathTable(topology)
    graph = cable_dependencies(forwarding_of(paths), priorities)
    first = {c: channels[0] for channels in paths.bundle_channels for c in channels}
    numbers = [channel * 10 + priority for channel, priority in graph.buffers.tolist()]
    found = {
        (numbers[a], numbers[b])
        for a, b in zip(graph.holding.tolist(), graph.awaited.tolist(), strict=True)
    }
    every = named_edges(topology, priorities)
    assert found == {(first[a // 10] * 10 + a % 10, first[b // 10] * 10 + b % 10) for a, b in every}
    assert len(find_cycle(graph)) == length_of_shortest_cycle(every)


@given(small_fabrics())
def test_every_fix_of_a_fabric_is_checked(topology: Topology) -> None:
    report = deadlock_report(topology, "ecmp")
    assert report.can_deadlock == (report.fix is not None)
    if report.fix is not None:
        assert not length_of_shortest_cycle(named_edges(topology, report.fix))


@given(small_fabrics())
def test_routes_left_after_forbidding_some_are_free(topology: Topology) -> None:
    routes = all_routes(topology)
    forbidden = routes_to_forbid(topology, routes)
    kept = [route for number, route in enumerate(routes) if number not in set(forbidden)]
    assert not find_cycle(route_dependencies(topology, kept))


@given(st.integers(1, 12), st.data())
def test_shortest_cycle_of_any_graph(num_nodes: int, data: st.DataObject) -> None:
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.sets(st.tuples(node, node), max_size=30))
    ends: IntArray = np.array(sorted(edges), np.int64).reshape(-1, 2)
    cycle = shortest_cycle(num_nodes, ends[:, 0], ends[:, 1])
    assert len(cycle) == length_of_shortest_cycle(edges)
    assert all(edge in edges for edge in zip(cycle, cycle[1:] + cycle[:1], strict=True))
    assert len(set(cycle)) == len(cycle)
    assert not cycle or cycle[0] == min(cycle)


BCUBES = [(2, 2, 1), (3, 2, 1), (4, 2, 4), (2, 3, 1), (3, 3, 3)]  # n, k, GPUs per server


def bcube(n: int, k: int, gpus_per_server: int) -> Topology:
    return build_bcube(
        FabricRequest(
            num_gpus=n**k,
            radix=n,
            port_rate_bps=200 * GBIT,
            nic_rate_bps=k * 200 * GBIT,
            gpus_per_server=gpus_per_server,
            shape={"k": k},
        )
    )


def relayed_routes(topology: Topology) -> list[Route]:
    """Return every path between GPUs of different servers, relay by relay."""
    paths = PathTable(topology)

    def ways(switch: int, target: int, src: int | None) -> Iterator[tuple[int, ...]]:
        if switch == target:
            yield ()
            return
        hops = paths.channels_toward(switch, target)
        for hop in hops if src is None else paths.without_gpu(hops, src):
            for way in ways(paths.next_switch(hop), target, None):
                yield hop, *way

    found = set()
    for src, dst in permutations(range(topology.num_gpus), 2):
        if topology.same_server(src, dst):
            continue
        for a, b in paths.port_pairs(src, dst):
            up, down = paths.uplink(src, a), paths.downlink(dst, b)
            for way in ways(paths.access_switch(src, a), paths.access_switch(dst, b), src):
                found.add(tuple(paths.channels_of(up, way, down, dst)))
    return [Route(channels) for channels in sorted(found)]


def edges_of(graph: BufferDependencies) -> set[tuple[Buffer, Buffer]]:
    pairs = zip(graph.holding.tolist(), graph.awaited.tolist(), strict=True)
    return {(graph.buffer(held), graph.buffer(awaited)) for held, awaited in pairs}


@pytest.mark.parametrize(("n", "k", "gpus_per_server"), BCUBES)
@pytest.mark.parametrize("raised_at", [(), (2,), (2, 4)])
def test_relay_dependencies_equal_those_of_all_paths(
    n: int, k: int, gpus_per_server: int, raised_at: tuple[int, ...]
) -> None:
    topology, priorities = bcube(n, k, gpus_per_server), HopPriorities(raised_at)
    paths = PathTable(topology)
    found = relay_dependencies(paths, forwarding_of(paths), priorities)
    routes = relayed_routes(topology)
    assert edges_of(found) == edges_of(route_dependencies(topology, routes, priorities))


@pytest.mark.parametrize(("n", "k", "gpus_per_server"), BCUBES)
def test_bcube_that_corrects_digits_in_any_order_can_lock_up(
    n: int, k: int, gpus_per_server: int
) -> None:
    report = deadlock_report(bcube(n, k, gpus_per_server), "ecmp")
    assert report.can_deadlock
    assert report.fix is not None
