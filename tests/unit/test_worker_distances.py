"""How many switches lie between workers, counted by hand on small fabrics."""

import pytest

from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.plan.worker_distances import worker_distances

GBIT = 10**9
SAME_RANKS = tuple((rank, rank) for rank in range(8))


def fabric(kind: str, num_gpus: int, radix: int) -> Topology:
    return build_topology(kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT)


def server(number: int) -> tuple[int, ...]:
    return tuple(range(8 * number, 8 * number + 8))


def test_clos_leaf_joins_neighbours_and_a_spine_the_others() -> None:
    """32 ports: 16 GPUs, two servers, on a leaf: one switch; others leaf, spine, leaf."""
    topology = fabric("clos", 64, 32)
    found = worker_distances(topology, [server(0)], [server(n) for n in range(1, 8)], SAME_RANKS)
    assert found == ((8, *[24] * 6),)


def test_rail_switch_joins_equal_ranks_and_other_ranks_cross_the_spine() -> None:
    """A leaf per rail: the same rank of another server is one switch away, another rank three."""
    topology = fabric("roft", 128, 32)
    pairs = [((0, 1, 2, 3), (8, 9, 10, 11)), ((0, 1, 2, 3), (12, 13, 14, 15))]
    found = [worker_distances(topology, [a], [b], SAME_RANKS[:4]) for a, b in pairs]
    assert found == [((4,),), ((12,),)]


def test_workers_of_one_server_are_at_no_distance() -> None:
    topology = fabric("clos", 64, 32)
    assert worker_distances(topology, [(0, 1)], [(4, 5), (8, 9)], SAME_RANKS[:2]) == ((0, 2),)


def test_zcube_is_two_switches_wide_at_most() -> None:
    """Its two groups of leaves are joined directly: GPUs share a switch or are two apart."""
    topology = fabric("zcube", 64, 16)
    found = worker_distances(topology, [server(0)], [server(n) for n in range(1, 8)], SAME_RANKS)
    assert all(8 <= distance <= 16 for distance in found[0])


def test_other_rails_of_a_rail_only_fabric_are_reached_through_the_server() -> None:
    """No switch joins two rails: one step inside the server, then the rail's switch."""
    topology = fabric("rail-only", 128, 32)
    same, other = ((0,), (8,)), ((0,), (9,))
    found = [worker_distances(topology, [a], [b], [(0, 0)]) for a, b in (same, other)]
    assert found == [((1,),), ((2,),)]


@pytest.mark.parametrize("kind", ["bcube", "dragonfly", "slim-fly", "hpn"])
def test_all_workers_of_other_fabrics_are_at_some_distance(kind: str) -> None:
    topology = build_topology(kind, 64, nic_rate_bps=400 * GBIT)
    found = worker_distances(topology, [server(0)], [server(n) for n in range(1, 8)], SAME_RANKS)
    assert all(8 <= distance < 8 * 10 for distance in found[0])
