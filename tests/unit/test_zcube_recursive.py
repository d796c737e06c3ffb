import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import LengthClass, Medium, Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths, switches_by_role
from kvfabric.fabric.topologies.zcube_recursive import most_gpus

GBIT = 10**9


def zcube(num_gpus: int, radix: int = 48, **shape: int) -> Topology:
    return build_topology(
        "zcube-recursive",
        num_gpus,
        radix=radix,
        nic_rate_bps=1200 * GBIT,
        gpus_per_server=4,
        shape=shape,
    )


def switch_pairs(topology: Topology) -> set[tuple[int, int]]:
    fabric = topology.links.scope == Scope.FABRIC
    ends = np.stack([topology.links.end_a[fabric], topology.links.end_b[fabric]], axis=1)
    return {(a, b) for a, b in (ends - topology.num_gpus).tolist()}


def recursive_definition(n: int, k: int) -> tuple[list[list[int]], set[tuple[int, int]]]:
    """Return each GPU's switches and the switch pairs, level l numbered from l n^(k-1).

    Word for word from the paper: n copies of the fabric below, with switch i of the new level on
    GPU i of every copy, and switch i of the level below on new switches i n to (i + 1) n - 1.
    """
    if k == 1:
        return [[0] for _ in range(n)], set()
    below, pairs_below = recursive_definition(n, k - 1)
    small: int = n ** (k - 2)
    per_level = n * small

    def in_copy(switch: int, copy: int) -> int:
        level, idx = divmod(switch, small)
        return level * per_level + copy * small + idx

    top = (k - 1) * per_level
    access = [
        [in_copy(switch, copy) for switch in switches] + [top + gpu]
        for copy in range(n)
        for gpu, switches in enumerate(below)
    ]
    pairs = {(in_copy(a, copy), in_copy(b, copy)) for copy in range(n) for a, b in pairs_below}
    pairs |= {
        (in_copy((k - 2) * small + i, copy), top + m)
        for copy in range(n)
        for i in range(small)
        for m in range(i * n, (i + 1) * n)
    }
    return access, pairs


@pytest.mark.parametrize(("n", "k"), [(4, 2), (8, 2), (4, 3), (2, 4), (4, 4)])
def test_graph_is_the_recursive_definition(n: int, k: int) -> None:
    topology = zcube(n**k, k=k)
    access, pairs = recursive_definition(n, k)
    assert topology.access_switches.tolist() == access
    assert switch_pairs(topology) == pairs


@pytest.mark.parametrize(("n", "k"), [(4, 2), (8, 2), (4, 3), (8, 3), (4, 4)])
def test_counts_have_their_closed_form(n: int, k: int) -> None:
    # SIGCOMM 2025: k levels of n^(k-1) switches; 2n ports at the lowest and top level, 3n between
    topology = zcube(n**k, k=k)
    per_level = n ** (k - 1)
    assert topology.num_switches == k * per_level
    assert topology.num_links == k * n**k + (k - 1) * n**k
    outer, inner = [2 * n] * per_level, [3 * n] * (k - 2) * per_level
    assert topology.ports_used().tolist() == outer + inner + outer
    assert topology.ports_per_nic == k


@pytest.mark.parametrize("n", [4, 8])
def test_path_length_of_two_levels_has_its_closed_form(n: int) -> None:
    lengths = path_lengths(zcube(n * n))
    assert lengths.average_links == pytest.approx(3 - 2 / (n + 1), abs=1e-12)
    assert lengths.switch_hops_max == 2


@pytest.mark.parametrize("n", [4, 8])
def test_path_length_of_three_levels_has_its_closed_form(n: int) -> None:
    # two cables to the 3 (n-1) GPUs that share a switch, three to the (n-1)^2 others of the same
    # ZCube(n, 2) and on average to (n-1) (2n - 1 - 1/n) of the rest, four to all others
    lengths = path_lengths(zcube(n**3, k=3))
    expected = 4 - (3 * n + 4 - 1 / n) / (n * n + n + 1)
    assert lengths.average_links == pytest.approx(expected, abs=1e-12)
    assert lengths.switch_hops_max == 3


def test_four_levels_are_four_switches_wide() -> None:
    # SIGCOMM 2025: ZCube(42, 4) has diameter 4
    assert path_lengths(zcube(256, k=4)).switch_hops_max == 4


def test_lowest_level_is_single_rail_copper() -> None:
    topology = zcube(64, k=3)
    assert switches_by_role(topology) == {"single-rail leaf": 16, "multi-rail leaf": 32}
    access = topology.access_links
    media, lengths = topology.links.medium[access], topology.links.length_m[access]
    assert media.tolist() == [[Medium.COPPER, Medium.FIBRE, Medium.FIBRE]] * 64
    assert lengths.tolist() == [[LengthClass.RACK, LengthClass.ROW, LengthClass.HALL]] * 64
    fabric = topology.links.scope == Scope.FABRIC
    assert set(topology.links.medium[fabric].tolist()) == {Medium.FIBRE}


def test_largest_size_for_switches_of_128_ports_equals_published_figure() -> None:
    # SIGCOMM 2025: ZCube(42, 4) = 3,111,696 GPUs on 128 ports; too large to build in a test
    assert most_gpus(128, 4) == 42**4 == 3_111_696
    with pytest.raises(ConfigError) as refused:
        build_topology(
            "zcube-recursive",
            4_000_000,
            radix=128,
            nic_rate_bps=400 * GBIT,
            gpus_per_server=2,
            shape={"k": 4},
        )
    assert refused.value.hint == "Nearest sizes: 3111696"


def test_three_levels_need_three_times_n_ports() -> None:
    with pytest.raises(ConfigError) as refused:
        zcube(4096, 47, k=3)
    assert refused.value.hint == "Nearest sizes: 1728"


def test_tiers_other_than_the_levels_and_oversubscription_are_refused() -> None:
    with pytest.raises(ConfigError, match="zcube-recursive with 3 tiers"):
        build_topology("zcube-recursive", 64, radix=64, nic_rate_bps=2 * GBIT, num_tiers=3)
    with pytest.raises(UnsupportedError, match="oversubscription"):
        build_topology("zcube-recursive", 64, radix=64, nic_rate_bps=2 * GBIT, oversubscription=2.0)
