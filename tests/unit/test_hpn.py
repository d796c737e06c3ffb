from collections.abc import Mapping

import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths, switch_distances, switches_by_role

GBIT = 10**9


def hpn(
    num_gpus: int, radix: int, *, shape: Mapping[str, int] | None = None, tiers: int | None = None
) -> Topology:
    return build_topology(
        "hpn", num_gpus, radix=radix, nic_rate_bps=400 * GBIT, num_tiers=tiers, shape=shape or {}
    )


def test_ports_of_a_nic_go_to_different_planes() -> None:
    topology = hpn(512, 32)
    distances = switch_distances(topology)
    first, second = topology.access_switches.T
    assert (distances[first, second] == 255).all()
    assert (distances[first[:1], first] < 255).all()
    assert (distances[second[:1], second] < 255).all()


def test_leaf_carries_one_rail_of_one_segment() -> None:
    topology = hpn(512, 32)  # 16 GPUs per leaf: segments of 16 servers
    server, rail = np.divmod(np.arange(512), 8)
    for port in range(2):
        leaf = topology.access_switches[:, port]
        keys = set(zip(leaf.tolist(), rail.tolist(), (server // 16).tolist(), strict=True))
        assert len(keys) == len(set(leaf.tolist())) == 4 * 8


def test_trunks_have_twice_the_rate_of_a_nic_port_and_take_two_switch_ports() -> None:
    topology = hpn(512, 32)
    links = topology.links
    assert set(links.rate_bps[links.scope == Scope.HOST].tolist()) == {200 * GBIT}
    assert set(links.rate_bps[links.scope == Scope.FABRIC].tolist()) == {400 * GBIT}
    num_leaves = switches_by_role(topology)["leaf"]
    assert set(topology.ports_used()[:num_leaves].tolist()) == {16 + 2 * 8}


def test_partly_filled_leaves_get_only_the_uplinks_they_need() -> None:
    # 4 servers: 4 GPUs per leaf need 2 trunks; 8 leaves of a plane fill 16 ports of one switch
    topology = hpn(32, 32)
    assert switches_by_role(topology) == {"leaf": 16, "aggregation": 2}


def test_cores_join_pods_and_keep_planes_apart() -> None:
    topology = hpn(1024, 32, shape={"core_uplinks": 8}, tiers=3)
    # 8 of 16 trunks go up, so a pod is one segment: 8 leaves x 8 uplinks on 8 switches per plane
    assert switches_by_role(topology) == {"leaf": 128, "aggregation": 128, "core": 64}
    distances = switch_distances(topology)
    first, second = topology.access_switches.T
    assert (distances[first, second] == 255).all()
    assert path_lengths(topology).diameter_links == 6


def test_fewest_tiers_are_taken() -> None:
    assert [hpn(size, 32).num_tiers for size in (256, 264)] == [2, 3]


def test_more_gpus_than_the_pods_hold_are_refused_with_the_largest_size() -> None:
    assert hpn(256, 32, tiers=2).num_gpus == 256
    with pytest.raises(ConfigError, match="largest that fits is 256 GPUs"):
        hpn(264, 32, tiers=2)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ({"uplinks": 9}, "1 to 8 uplinks"),
        ({"gpus_per_leaf": 32}, "1 to 30 GPUs per leaf"),
        ({"gpus_per_leaf": 0}, "1 to 30 GPUs per leaf"),
        ({"uplinks": 0}, "1 to 8 uplinks"),
        ({"core_uplinks": 0}, "core_uplinks is 0"),
    ],
)
def test_ports_a_leaf_does_not_have_are_refused(shape: Mapping[str, int], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        hpn(64, 32, shape=shape)


def test_switch_without_room_for_a_gpu_and_a_trunk_is_refused() -> None:
    with pytest.raises(ConfigError, match="Use switches with more ports"):
        hpn(8, 2)


def test_oversubscription_is_refused_with_the_keys_that_set_it() -> None:
    with pytest.raises(UnsupportedError, match="uplinks and core_uplinks"):
        build_topology("hpn", 64, nic_rate_bps=400 * GBIT, oversubscription=2.0)


def test_one_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match="Write 2 or 3"):
        hpn(64, 32, tiers=1)
