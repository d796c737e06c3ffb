import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Scope, Topology
from kvfabric.fabric.measures import switches_by_role

GBIT = 10**9


def zcube(num_gpus: int, radix: int | None = None, **options: int) -> Topology:
    return build_topology("zcube", num_gpus, radix=radix, nic_rate_bps=400 * GBIT, **options)


def test_published_figure_example_has_eight_switches() -> None:
    # z.ai/blog/zcube, figure: 2 ports, 32 GPUs, 8 per switch
    topology = zcube(32, 16)
    assert topology.num_switches == 8
    assert topology.access_switches[:, 0].tolist() == [gpu % 4 for gpu in range(32)]
    assert topology.access_switches[:, 1].tolist() == [4 + gpu // 8 for gpu in range(32)]


def test_single_rail_switch_holds_whole_servers() -> None:
    single = zcube(1024).access_switches[:, 1]
    assert all(len(set(single[s : s + 8])) == 1 for s in range(0, 1024, 8))


def test_parallel_cables_per_switch_pair_are_k_squared_over_n() -> None:
    # 1,024 GPUs on 51.2T: 16 switches, 128^2 / 1024 = 16 cables per pair
    topology = zcube(1024)
    assert switches_by_role(topology) == {"multi-rail leaf": 8, "single-rail leaf": 8}
    fabric = topology.links.scope == Scope.FABRIC
    ends = np.stack([topology.links.end_a[fabric], topology.links.end_b[fabric]])
    _, cables = np.unique(ends, axis=1, return_counts=True)
    assert cables.tolist() == [16] * 64


def test_only_the_single_rail_port_is_copper() -> None:
    topology = zcube(256, 32)
    medium = topology.links.medium[topology.access_links]
    assert (medium[:, 0] == Medium.FIBRE).all()
    assert (medium[:, 1] == Medium.COPPER).all()
    fabric = topology.links.scope == Scope.FABRIC
    assert (topology.links.medium[fabric] == Medium.FIBRE).all()


def test_nic_port_has_half_the_nic_rate() -> None:
    topology = zcube(256, 32)
    assert set(topology.links.rate_bps.tolist()) == {200 * GBIT}


def test_capped_nic_leaves_the_fabric_at_its_rate() -> None:
    topology = build_topology(
        "zcube", 256, radix=32, nic_rate_bps=200 * GBIT, port_rate_bps=200 * GBIT
    )
    is_host = topology.links.scope == Scope.HOST
    assert set(topology.links.rate_bps[is_host].tolist()) == {100 * GBIT}
    assert set(topology.links.rate_bps[~is_host].tolist()) == {200 * GBIT}


def test_cores_join_pairs_of_multi_rail_leaves_of_all_cubes() -> None:
    topology = zcube(64, 12, gpus_per_server=4)
    roles = {"multi-rail leaf": 16, "single-rail leaf": 16, "core": 8}
    assert switches_by_role(topology) == roles
    assert topology.ports_used().tolist() == [12] * 16 + [8] * 16 + [8] * 8


def test_cores_can_be_asked_for() -> None:
    assert zcube(64, 24, gpus_per_server=4, num_tiers=2).num_tiers == 2
    assert zcube(64, 24, gpus_per_server=4).num_tiers == 1


def test_size_that_does_not_exist_is_refused_with_the_nearest() -> None:
    # n GPUs = g groups x k per switch with g dividing k <= 128: 968 = 11 x 88, 1024 = 8 x 128
    with pytest.raises(ConfigError, match="Nearest sizes: 968 or 1024"):
        zcube(1016)


def test_nearest_sizes_can_be_built() -> None:
    topology = zcube(968)
    assert topology.num_switches == 22
    assert set(topology.ports_used().tolist()) == {2 * 88}


def test_too_many_gpus_for_one_layer_are_refused() -> None:
    with pytest.raises(ConfigError, match="Nearest sizes: 1024"):
        zcube(4096, 64, num_tiers=1)


def test_oversubscription_is_not_modelled() -> None:
    with pytest.raises(UnsupportedError, match="oversubscription"):
        build_topology("zcube", 1024, nic_rate_bps=400 * GBIT, oversubscription=2.0)


def test_three_tiers_are_refused() -> None:
    with pytest.raises(ConfigError, match="Write 1"):
        zcube(1024, num_tiers=3)


def test_nic_rate_that_does_not_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 port"):
        build_topology("zcube", 32, radix=16, nic_rate_bps=400 * GBIT + 1, port_rate_bps=GBIT)
