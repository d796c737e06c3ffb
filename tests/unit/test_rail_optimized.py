import numpy as np
import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Topology
from kvfabric.fabric.measured.measures import switches_by_role

GBIT = 10**9


def roft(num_gpus: int, radix: int, *, servers: int = 8, tiers: int | None = None) -> Topology:
    return build_topology(
        "roft",
        num_gpus,
        radix=radix,
        nic_rate_bps=400 * GBIT,
        gpus_per_server=servers,
        num_tiers=tiers,
    )


def test_every_leaf_carries_one_rail() -> None:
    topology = roft(1024, 32)
    leaf, rail = topology.access_switches[:, 0], np.arange(1024) % 8
    assert all(len(set(rail[leaf == one])) == 1 for one in set(leaf.tolist()))


def test_same_rail_of_neighbor_servers_shares_a_leaf() -> None:
    leaf = roft(512, 128).access_switches[:, 0]
    assert leaf[3] == leaf[11]
    assert leaf[3] != leaf[4]


def test_leaf_of_a_full_three_tier_fabric_is_pod_then_rail_then_server() -> None:
    # pod = 16 leaves of 16 ports; leaf in pod = rail * 2 + server in pod // 16
    topology = roft(1024, 32)
    server, rail = np.divmod(np.arange(1024), 8)
    expected = server // 32 * 16 + rail * 2 + server % 32 // 16
    assert topology.access_switches[:, 0].tolist() == expected.tolist()


def test_all_cables_are_fibre() -> None:
    assert (roft(512, 64).links.medium == Medium.FIBRE).all()


def test_partly_filled_leaves_get_only_the_uplinks_they_need() -> None:
    assert switches_by_role(roft(192, 128)) == {"leaf": 4, "spine": 2}


def test_one_switch_serves_what_fits_it() -> None:
    assert switches_by_role(roft(64, 128)) == {"leaf": 1}


def test_fewer_ports_than_rails_per_pod_are_refused() -> None:
    with pytest.raises(ConfigError, match="no server fits"):
        roft(64, 8, tiers=3)


def test_neighboring_rails_share_a_leaf_that_has_the_ports() -> None:
    """64 GPUs on 32-port switches: 3N/R = 6 switches, the count of full leaves."""
    topology = roft(64, 32)
    assert switches_by_role(topology) == {"leaf": 4, "spine": 2}
    leaf_of_gpu = topology.access_switches[:, 0].reshape(8, 8)
    assert (leaf_of_gpu == leaf_of_gpu[0]).all()
    assert [len(set(leaf_of_gpu[:, rail])) for rail in range(8)] == [1] * 8
