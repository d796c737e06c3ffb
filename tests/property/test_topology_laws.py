"""Laws of every kind of fabric: INV-14 (ports), INV-15 (bill = graph), path lengths, bisection.

Path lengths are compared with a breadth-first search over every single node.
"""

from collections import deque

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.bisection import bisection_bps
from kvfabric.fabric.measured.measures import links_by_kind, path_lengths
from kvfabric.plan.bom import bill_of_materials

GBIT = 10**9
KINDS = ("clos", "roft", "rail-only", "multi-plane", "hpn", "zcube", "dragonfly", "jellyfish")
CUBES = ("bcube", "zcube-recursive")


def cable_distances(topology: Topology, start: int) -> dict[int, int]:
    """Return the cables to every node that one GPU reaches; other GPUs pass nothing on."""
    neighbors: dict[int, list[int]] = {}
    for a, b in zip(topology.links.end_a.tolist(), topology.links.end_b.tolist(), strict=True):
        neighbors.setdefault(a, []).append(b)
        neighbors.setdefault(b, []).append(a)
    distance, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        if node >= topology.num_gpus or node == start or topology.hosts_forward:
            for other in neighbors[node]:
                if other not in distance:
                    distance[other] = distance[node] + 1
                    queue.append(other)
    return distance


@st.composite
def fabrics(draw: st.DrawFn) -> Topology:
    servers = draw(st.sampled_from([1, 2, 4]))
    try:
        return build_topology(
            draw(st.sampled_from(KINDS)),
            servers * draw(st.integers(2, 16)),
            radix=draw(st.sampled_from([4, 6, 8, 12, 16])),
            nic_rate_bps=400 * GBIT,
            gpus_per_server=servers,
            num_tiers=draw(st.sampled_from([None, 2])),
        )
    except ConfigError:
        assume(False)
        raise


@st.composite
def cubes(draw: st.DrawFn) -> Topology:
    side, levels = draw(st.sampled_from([(2, 2), (4, 2), (2, 3), (3, 3), (6, 2), (2, 4)]))
    return build_topology(
        draw(st.sampled_from(CUBES)),
        side**levels,
        radix=3 * side,
        nic_rate_bps=levels * 100 * GBIT,
        gpus_per_server=draw(st.sampled_from([1, side])),
        shape={"k": levels},
    )


@given(st.one_of(fabrics(), cubes()))
def test_path_lengths_are_those_of_a_search_from_every_gpu(topology: Topology) -> None:
    gpus, per_server = range(topology.num_gpus), topology.gpus_per_server
    cables = [cable_distances(topology, gpu) for gpu in gpus]
    pairs = [(a, b) for a in gpus for b in gpus if a != b]

    def with_scale_up(a: int, b: int) -> float:
        if topology.same_server(a, b):
            return 1
        first_a, first_b = a // per_server * per_server, b // per_server * per_server
        return min(
            (a != via) + cables[via].get(to, 1e9) + (to != b)
            for via in range(first_a, first_a + per_server)
            for to in range(first_b, first_b + per_server)
        )

    found = path_lengths(topology)
    if all(b in cables[a] for a, b in pairs):
        lengths = [cables[a][b] for a, b in pairs]
        assert found.average_links == pytest.approx(sum(lengths) / len(pairs))
        assert found.diameter_links == max(lengths)
    else:
        assert (found.average_links, found.diameter_links) == (None, None)
    longer = [with_scale_up(a, b) for a, b in pairs]
    assert found.scale_up_average_links == pytest.approx(sum(longer) / len(pairs))
    assert found.scale_up_diameter_links == max(longer)
    longest = max(cables[a][b] for a, b in pairs if b in cables[a])
    assert found.switch_hops_max == (longest // 2 if topology.hosts_forward else longest - 1)


@given(st.one_of(fabrics(), cubes()))
def test_parts_are_those_of_the_graph(topology: Topology) -> None:
    topology.check_invariants()  # INV-14
    bill = bill_of_materials(topology, PRICE_BOOK)  # INV-15
    links = links_by_kind(topology)
    fibre = links["host"]["fibre"] + links["fabric"]["fibre"]
    assert bill.count("switch") == topology.num_switches
    assert (bill.count("optic"), bill.count("fibre")) == (2 * fibre, fibre)
    assert bill.count("copper") + fibre == topology.num_links
    assert bill.count("nic") in {topology.num_gpus, topology.num_gpus * topology.ports_per_nic}


@given(st.one_of(fabrics(), cubes()))
def test_bisection_is_at_most_what_the_nics_of_the_smaller_half_carry(topology: Topology) -> None:
    flow_bps = bisection_bps(topology)
    servers = topology.num_gpus // topology.gpus_per_server
    if servers == 1:
        assert flow_bps is None
    else:
        half = servers // 2 * topology.gpus_per_server
        assert flow_bps is not None
        assert 0 < flow_bps <= half * topology.nic_rate_bps
