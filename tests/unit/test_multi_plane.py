from collections.abc import Mapping

import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.measured.measures import path_lengths, switch_distances, switches_by_role

GBIT = 10**9


def multi_plane(
    num_gpus: int, radix: int, *, shape: Mapping[str, int] | None = None, tiers: int | None = None
) -> Topology:
    return build_topology(
        "multi-plane",
        num_gpus,
        radix=radix,
        nic_rate_bps=400 * GBIT,
        num_tiers=tiers,
        shape=shape or {},
    )


def plane_of_leaf(topology: Topology) -> list[int]:
    """Return a plane number per leaf: the number of the first leaf it is joined with."""
    num_leaves = switches_by_role(topology)["leaf"]
    reached = switch_distances(topology)[:num_leaves, :num_leaves] < 255
    first: list[int] = reached.argmax(axis=1).tolist()
    return first


def test_gpu_i_of_every_server_is_in_plane_i() -> None:
    topology = multi_plane(256, 8)
    planes = plane_of_leaf(topology)
    found = [planes[leaf] for leaf in topology.access_switches[:, 0]]
    assert len(set(found[:8])) == 8
    assert found == found[:8] * 32


def test_fewer_planes_take_several_gpus_of_a_server_each() -> None:
    topology = multi_plane(64, 16, shape={"planes": 2}, tiers=2)
    planes = plane_of_leaf(topology)
    found = [planes[leaf] for leaf in topology.access_switches[:, 0]]
    assert found == [found[0], found[1]] * 32
    assert found[0] != found[1]
    # 32 NICs per plane on 16 ports: four leaves, two spines
    assert switches_by_role(topology) == {"leaf": 8, "spine": 4}


def test_nic_with_a_port_per_plane_reaches_every_gpu_over_cables() -> None:
    topology = multi_plane(64, 16, shape={"planes": 4, "ports": 4})
    assert topology.ports_per_nic == 4
    assert topology.link(0).rate_bps == 100 * GBIT
    planes = plane_of_leaf(topology)
    for row in topology.access_switches[[0, 1, 63]]:
        assert [planes[leaf] for leaf in row] == [planes[leaf] for leaf in range(0, 32, 8)]
    assert path_lengths(topology).diameter_links == 4


def test_one_plane_is_a_clos_over_fibre() -> None:
    one, clos = (
        multi_plane(64, 16, shape={"planes": 1}),
        build_topology("clos", 64, radix=16, nic_rate_bps=400 * GBIT),
    )
    assert one.links.end_a.tolist() == clos.links.end_a.tolist()
    assert one.links.end_b.tolist() == clos.links.end_b.tolist()


def test_planes_of_three_tiers_have_cores_of_their_own() -> None:
    topology = multi_plane(64, 4, shape={"planes": 4})
    # 16 NICs per plane in a three-tier fat-tree of 4-port switches: 5 * 4^2 / 4 switches
    assert topology.num_switches == 4 * 20
    assert set(topology.ports_used().tolist()) == {4}


@pytest.mark.parametrize("planes", [3, 16])
def test_planes_that_do_not_share_a_servers_ports_evenly_are_refused(planes: int) -> None:
    with pytest.raises(ConfigError, match="Write planes as 1, 2, 4, 8"):
        multi_plane(64, 16, shape={"planes": planes})


def test_more_gpus_than_the_planes_hold_are_refused_with_the_largest_size() -> None:
    assert multi_plane(2 * 8 * 8, 8, tiers=2).num_gpus == 128
    with pytest.raises(ConfigError, match="largest that fits is 256 GPUs"):
        multi_plane(264, 8, tiers=2)


def test_unknown_size_of_the_shape_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="Write planes or ports"):
        multi_plane(64, 16, shape={"plane": 4})
