import numpy as np
import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Topology
from kvfabric.fabric.measured.measures import path_lengths, switch_distances, switches_by_role

GBIT = 10**9


def rail_only(
    num_gpus: int, radix: int, *, num_tiers: int | None = None, oversubscription: float = 1.0
) -> Topology:
    return build_topology(
        "rail-only",
        num_gpus,
        radix=radix,
        nic_rate_bps=400 * GBIT,
        num_tiers=num_tiers,
        oversubscription=oversubscription,
    )


def test_switches_of_two_rails_are_not_joined() -> None:
    topology = rail_only(256, 16)
    rail_of = np.full(topology.num_switches, -1)
    rail_of[topology.access_switches[:, 0]] = np.arange(256) % 8
    leaves = np.flatnonzero(rail_of >= 0)
    joined = switch_distances(topology)[np.ix_(leaves, leaves)] < 255
    assert (joined == (rail_of[leaves][:, None] == rail_of[leaves])).all()


def test_one_leaf_per_rail_where_it_has_the_ports() -> None:
    topology = rail_only(64, 8)
    assert (topology.num_tiers, switches_by_role(topology)) == (1, {"leaf": 8})
    assert topology.access_switches[:, 0].tolist() == [gpu % 8 for gpu in range(64)]


def test_full_rails_of_two_tiers_are_non_blocking() -> None:
    # per rail 32 GPUs on 8-port switches: 8 leaves and 4 spines, every port in use
    topology = rail_only(256, 8)
    assert switches_by_role(topology) == {"leaf": 64, "spine": 32}
    assert set(topology.ports_used().tolist()) == {8}


def test_oversubscription_saves_uplinks_in_every_rail() -> None:
    # 3:1 on 16 ports: 12 down, 4 up; two leaves and a spine per rail
    topology = rail_only(192, 16, oversubscription=3)
    assert switches_by_role(topology) == {"leaf": 16, "spine": 8}


def test_all_cables_are_fibre() -> None:
    assert (rail_only(64, 8).links.medium == Medium.FIBRE).all()


def test_cables_alone_do_not_join_all_gpus_but_servers_do() -> None:
    lengths = path_lengths(rail_only(64, 8))
    assert (lengths.average_links, lengths.diameter_links) == (None, None)
    assert lengths.scale_up_diameter_links == 3
    # 7 in the server at 1 link, 7 on the own rail at 2, 7 * 7 through a GPU of either server at 3
    assert lengths.scale_up_average_links == (7 * 1 + 7 * 2 + 49 * 3) / 63
    assert lengths.switch_hops_max == 1


def test_third_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match="Write 1 or 2"):
        rail_only(64, 8, num_tiers=3)


@pytest.mark.parametrize(("num_tiers", "largest"), [(1, 64), (2, 256), (None, 256)])
def test_more_gpus_than_the_rails_hold_are_refused_with_the_largest_size(
    num_tiers: int | None, largest: int
) -> None:
    assert rail_only(largest, 8, num_tiers=num_tiers).num_gpus == largest
    with pytest.raises(ConfigError, match=f"largest that fits is {largest} GPUs"):
        rail_only(264, 8, num_tiers=num_tiers)
