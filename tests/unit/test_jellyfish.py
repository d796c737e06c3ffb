import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths, switch_distances

GBIT = 10**9


def jellyfish(num_gpus: int, radix: int = 24, **shape: int) -> Topology:
    return build_topology(
        "jellyfish", num_gpus, radix=radix, nic_rate_bps=400 * GBIT, gpus_per_server=1, shape=shape
    )


def test_hosts_and_cables_have_their_closed_form() -> None:
    # Singla et al., NSDI 2012: RRG(S, R, r) has S (R - r) hosts and S r / 2 cables
    topology = jellyfish(50 * (24 - 15), switches=50, r=15)
    fabric = topology.links.scope == Scope.FABRIC
    assert topology.num_switches == 50
    assert np.count_nonzero(fabric) == 50 * 15 // 2
    assert topology.ports_used().tolist() == [24] * 50


def test_one_gpu_more_is_refused() -> None:
    with pytest.raises(ConfigError, match="room for 450 GPUs, not 451") as refused:
        jellyfish(451, switches=50, r=15)
    assert refused.value.hint == "Write at least 52 switches"
    assert jellyfish(451, switches=52, r=15).num_switches == 52


def test_same_seed_gives_the_same_cables() -> None:
    first, second, other = (jellyfish(1000, seed=seed) for seed in (3, 3, 4))
    assert first.links.end_a.tolist() == second.links.end_a.tolist()
    assert first.links.end_b.tolist() == second.links.end_b.tolist()
    assert first.links.end_b.tolist() != other.links.end_b.tolist()


@pytest.mark.parametrize(("num_switches", "r"), [(50, 7), (200, 12)])
def test_mean_distance_is_near_the_bound_of_regular_graphs(num_switches: int, r: int) -> None:
    # Cerf et al., Networks 4, 1974: no r-regular graph has a mean distance below that of a tree
    # with r (r-1)^(j-1) nodes at distance j. Random graphs come close (Singla et al., NSDI 2014);
    # 50 nodes of degree 7 are where the bound is met, by the Hoffman-Singleton graph.
    left, bound, steps = num_switches - 1, 0, 1
    while left:
        level = min(left, r * (r - 1) ** (steps - 1))
        bound, left, steps = bound + steps * level, left - level, steps + 1
    switches = jellyfish(num_switches, switches=num_switches, r=r)
    mean = float(switch_distances(switches).sum()) / (num_switches * (num_switches - 1))
    bound_mean = bound / (num_switches - 1)
    assert bound_mean <= mean < 1.2 * bound_mean


def test_a_third_of_the_ports_lead_to_gpus_without_a_shape() -> None:
    # 24 ports: 8 GPUs and 16 neighbors, 1,000 / 8 = 125 switches
    topology = jellyfish(1000)
    assert topology.num_switches == 125
    assert topology.ports_used().tolist() == [24] * 125


def test_few_gpus_are_spread_until_there_are_neighbors_enough() -> None:
    # 64 GPUs: 5 per switch make 13 switches, 10 neighbors each; 6 would make 11 with 12
    topology = jellyfish(64, 128)
    assert topology.num_switches == 13
    assert path_lengths(topology).diameter_links == 4


def test_odd_degrees_take_one_switch_more() -> None:
    assert jellyfish(27, r=15).num_switches == 16
    assert jellyfish(9 * 17, r=15).num_switches == 18


def test_gpus_hang_on_copper_and_switches_on_fibre() -> None:
    links = jellyfish(100).links
    assert set(links.medium[links.scope == Scope.HOST].tolist()) == {Medium.COPPER}
    assert set(links.medium[links.scope == Scope.FABRIC].tolist()) == {Medium.FIBRE}


@pytest.mark.parametrize(
    ("shape", "message", "hint"),
    [
        ({"switches": 10, "r": 10}, "10 different neighbors", "11 switches or r of at most 9"),
        ({"switches": 17, "r": 15}, "one port unpaired", "18 switches or r of 14 or 16"),
        ({"r": 1}, "r is 1", "Write 2 or more"),
        ({"r": 24}, "25 ports per router", "r below 24"),
        ({"switches": 1000, "r": 4}, "more than the 100 GPUs", "Write 5 to 100 switches"),
        ({"switches": 2}, "no jellyfish", "at least 3 GPUs"),
        ({"seed": -1}, "seed is -1", "Write"),
    ],
)
def test_graphs_that_do_not_exist_are_refused(
    shape: dict[str, int], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        jellyfish(100, **shape)
    assert hint in refused.value.hint


def test_two_gpus_are_too_few() -> None:
    with pytest.raises(ConfigError, match="no jellyfish of 2 GPUs"):
        jellyfish(2)


def test_tiers_and_oversubscription_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 tiers"):
        build_topology("jellyfish", 64, radix=64, nic_rate_bps=GBIT, num_tiers=2)
    with pytest.raises(UnsupportedError, match="oversubscription"):
        build_topology("jellyfish", 64, radix=64, nic_rate_bps=GBIT, oversubscription=2.0)
