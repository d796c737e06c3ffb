from collections import Counter

import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import LengthClass, Medium, Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths
from kvfabric.fabric.topologies.dragonfly import group_pairs

GBIT = 10**9


def dragonfly(num_gpus: int, radix: int = 64, **shape: int) -> Topology:
    return build_topology(
        "dragonfly", num_gpus, radix=radix, nic_rate_bps=400 * GBIT, gpus_per_server=1, shape=shape
    )


def cables_between_groups(topology: Topology, routers_per_group: int) -> Counter[tuple[int, int]]:
    fabric = topology.links.scope == Scope.FABRIC
    ends = np.stack([topology.links.end_a[fabric], topology.links.end_b[fabric]])
    groups = np.sort((ends - topology.num_gpus) // routers_per_group, axis=0).T.tolist()
    return Counter((low, high) for low, high in groups if low != high)


def test_every_two_groups_share_one_cable_in_the_canonical_fabric() -> None:
    topology = dragonfly(1056, a=8, p=4, h=4)
    pairs = cables_between_groups(topology, 8)
    assert len(pairs) == 33 * 32 // 2
    assert set(pairs.values()) == {1}
    assert set(topology.ports_used().tolist()) == {4 + 7 + 4}


@pytest.mark.parametrize("h", [1, 2, 3])
def test_any_two_gpus_are_at_most_four_routers_apart(h: int) -> None:
    # Kim et al., ISCA 2008: local, global, local
    size = 2 * h * h * (2 * h * h + 1)
    assert path_lengths(dragonfly(size)).switch_hops_max == 4


def test_smallest_balanced_fabric_that_holds_the_gpus_is_taken() -> None:
    # a = 2p = 2h: 342 GPUs at h = 3, 1,056 at h = 4
    assert dragonfly(342).num_switches == 6 * 19
    assert dragonfly(343).num_switches == 8 * 33


def test_gpus_fill_the_first_ports() -> None:
    topology = dragonfly(1024, 15)
    assert topology.access_switches[:, 0].tolist() == [gpu // 4 for gpu in range(1024)]
    assert topology.num_switches == 264


def test_only_cables_between_groups_are_fibre() -> None:
    topology = dragonfly(72, a=4, p=2, h=2)
    links, routers = topology.links, topology.links.end_b - 72
    across = (links.scope == Scope.FABRIC) & ((links.end_a - 72) // 4 != routers // 4)
    assert (links.medium == Medium.FIBRE).tolist() == across.tolist()
    assert set(links.length_m[~across].tolist()) == {LengthClass.RACK}


@pytest.mark.parametrize(
    ("num_groups", "ports"), [(2, 5), (4, 9), (5, 8), (6, 9), (7, 12), (8, 10), (33, 32), (9, 34)]
)
def test_global_ports_are_all_used_and_spread_evenly(num_groups: int, ports: int) -> None:
    _, low, high = group_pairs(num_groups, ports)
    used = np.bincount(np.concatenate([low, high]), minlength=num_groups)
    assert used.tolist() == [ports] * num_groups
    cables = Counter(zip(low.tolist(), high.tolist(), strict=True))
    assert len(cables) == num_groups * (num_groups - 1) // 2
    assert max(cables.values()) - min(cables.values()) <= 1


@pytest.mark.parametrize(("num_groups", "ports"), [(3, 5), (5, 7), (9, 35)])
def test_one_port_stays_free_where_ports_do_not_pair_up(num_groups: int, ports: int) -> None:
    _, low, high = group_pairs(num_groups, ports)
    used = np.bincount(np.concatenate([low, high]), minlength=num_groups)
    assert sorted(used.tolist()) == [ports - 1] + [ports] * (num_groups - 1)
    cables = Counter(zip(low.tolist(), high.tolist(), strict=True))
    assert max(cables.values()) - min(cables.values()) <= 1


def test_parallel_cables_of_two_groups_hang_on_different_routers() -> None:
    # 8 global ports per group over 3 others: two or three cables each
    topology = dragonfly(32, a=4, p=2, h=2, g=4)
    fabric = topology.links.scope == Scope.FABRIC
    ends = np.stack([topology.links.end_a[fabric], topology.links.end_b[fabric]], axis=1) - 32
    across = [(a, b) for a, b in ends.tolist() if a // 4 != b // 4]
    assert len(across) == 4 * 8 // 2
    for pair in {(a // 4, b // 4) for a, b in across}:
        parallel = [cable for cable in across if (cable[0] // 4, cable[1] // 4) == pair]
        for routers in zip(*parallel, strict=True):
            assert len(set(routers)) == len(parallel)
    assert topology.ports_used().max() == 2 + 3 + 2


def test_one_group_is_a_full_mesh() -> None:
    topology = dragonfly(8, a=4, p=2, h=2, g=1)
    assert topology.num_links == 8 + 6
    assert path_lengths(topology).switch_hops_max == 2


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ({"h": 2}, "a=4, p=2, h=2, 9 groups"),
        ({"a": 6}, "a=6, p=3, h=3, 19 groups"),
        ({"p": 2, "g": 5}, "a=4, p=2, h=2, 5 groups"),
        ({"a": 1}, "a=1, p=1, h=1, 2 groups"),
    ],
)
def test_sizes_left_out_are_balanced(shape: dict[str, int], name: str) -> None:
    assert name in dragonfly(2, **shape).name


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="34 groups") as refused:
        dragonfly(1024, a=8, p=4, h=4, g=34)
    assert refused.value.hint == "Write g of at most a h + 1 = 33"


def test_too_many_router_ports_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs 15 ports per router, a switch has 14"):
        dragonfly(1024, 14, a=8, p=4, h=4)


def test_too_many_gpus_are_refused_with_the_most() -> None:
    # 14 ports: h = 3, 342 GPUs
    with pytest.raises(ConfigError) as refused:
        dragonfly(1024, 14)
    assert refused.value.hint == "Write at most 342"
    with pytest.raises(ConfigError) as refused:
        build_topology("dragonfly", 1024, radix=14, nic_rate_bps=GBIT)
    assert refused.value.hint == "Write at most 336"  # whole servers of 8
    with pytest.raises(ConfigError, match="room for 1056 GPUs, not 1057"):
        dragonfly(1057, a=8, p=4, h=4)


def test_switch_without_enough_ports_for_any_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 ports per router, a switch has 2"):
        dragonfly(2, 2, h=1)
    with pytest.raises(ConfigError) as refused:
        dragonfly(7, 2)
    assert refused.value.hint == "Use switches with more ports"


def test_size_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="h is 0"):
        dragonfly(8, h=0)
    with pytest.raises(ConfigError, match="p is 0"):
        dragonfly(8, p=0)
    with pytest.raises(ConfigError, match="a is 0"):
        dragonfly(8, a=0)


def test_tiers_and_oversubscription_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 tiers"):
        build_topology("dragonfly", 64, radix=64, nic_rate_bps=GBIT, num_tiers=2)
    with pytest.raises(UnsupportedError, match="oversubscription"):
        build_topology("dragonfly", 64, radix=64, nic_rate_bps=GBIT, oversubscription=2.0)
