from collections.abc import Mapping

import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths, switch_distances, switches_by_role
from kvfabric.fabric.request import EMPTY_SHAPE

GBIT = 10**9


def zcube(
    num_gpus: int,
    radix: int | None = None,
    *,
    gpus_per_server: int = 8,
    num_tiers: int | None = None,
    shape: Mapping[str, int] = EMPTY_SHAPE,
) -> Topology:
    return build_topology(
        "zcube",
        num_gpus,
        radix=radix,
        nic_rate_bps=400 * GBIT,
        gpus_per_server=gpus_per_server,
        num_tiers=num_tiers,
        shape=shape,
    )


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


@pytest.mark.parametrize(
    ("num_gpus", "per_switch", "switches", "parallel"),
    # z.ai/blog/zcube: n GPUs, k per switch, 2n / k switches; k fabric ports over n / k switches
    [
        (32, 8, 8, 2),
        (1024, 32, 64, 1),
        (1024, 64, 32, 4),
        (1024, 128, 16, 16),
        (16384, 128, 256, 1),
    ],
)
def test_any_gpus_per_switch_follow_the_published_formulas(
    num_gpus: int, per_switch: int, switches: int, parallel: int
) -> None:
    topology = zcube(num_gpus, 256, shape={"k": per_switch})
    group = num_gpus // per_switch
    # 1-based: port 1 of GPU i to odd switch ((i-1) mod (n/k)) * 2 + 1, port 2 to even ceil(i/k) * 2
    i = np.arange(1, num_gpus + 1)
    odd, even = (i - 1) % group * 2 + 1, -(-i // per_switch) * 2
    assert topology.access_switches[:, 0].tolist() == ((odd - 1) // 2).tolist()
    assert topology.access_switches[:, 1].tolist() == (group + even // 2 - 1).tolist()
    assert topology.num_switches == switches
    assert topology.num_links - 2 * num_gpus == parallel * group**2
    assert topology.ports_used().tolist() == [2 * per_switch] * switches


@pytest.mark.parametrize(
    ("shape", "message", "hint"),
    [
        ({"k": 96}, "k = 96", "k divides the GPUs, and GPUs / k divides k; nearest k: 64 or 128"),
        ({"k": 16}, "k = 16", "k divides the GPUs, and GPUs / k divides k; nearest k: 32"),
        ({"k": 256}, "128 ports", "k divides the GPUs, and GPUs / k divides k; nearest k: 64"),
        ({"k": 0}, "k is 0", "Write 1 or more"),
        ({"n": 8}, "no size 'n'", "Write k"),
    ],
)
def test_gpus_per_switch_that_do_not_fit_are_refused(
    shape: dict[str, int], message: str, hint: str
) -> None:
    radix = 128 if shape.get("k") == 256 else 256
    with pytest.raises(ConfigError, match=message) as refused:
        zcube(1024, radix, shape=shape)
    assert refused.value.hint == hint


def test_gpus_per_switch_of_a_size_that_does_not_exist_point_to_the_sizes() -> None:
    with pytest.raises(ConfigError) as refused:
        zcube(1016, 256, shape={"k": 128})
    assert "nearest numbers of GPUs" in refused.value.hint


def test_gpus_per_switch_and_cores_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="k is a size of the flat zcube"):
        zcube(64, 24, gpus_per_server=4, num_tiers=2, shape={"k": 8})


@pytest.mark.parametrize(("num_gpus", "per_switch"), [(64, 8), (128, 16), (256, 64), (1024, 32)])
def test_every_pair_is_two_switches_apart_through_ports_of_opposite_groups(
    num_gpus: int, per_switch: int
) -> None:
    topology = zcube(num_gpus, 256, shape={"k": per_switch})
    one_cable = switch_distances(topology) == 1
    multi, single = topology.access_switches.T
    # leaving by one group and arriving by the other passes exactly one cable between switches
    assert one_cable[np.ix_(multi, single)].all()
    assert one_cable[np.ix_(single, multi)].all()
    assert path_lengths(topology).switch_hops_max == 2


@pytest.mark.parametrize("n", [4, 8, 12])
def test_path_length_of_the_square_cube_has_its_closed_form(n: int) -> None:
    lengths = path_lengths(zcube(n * n, 2 * n, gpus_per_server=4))
    assert lengths.average_links == pytest.approx(3 - 2 / (n + 1), abs=1e-12)


@pytest.mark.parametrize("n", [4, 8])
def test_path_length_of_the_partial_cube_has_its_closed_form(n: int) -> None:
    # within a cube as the square; to each of n-1 others four cables to the 2n GPUs on the two
    # multi-rail leaves that share cores with one's own, five to all others
    lengths = path_lengths(zcube(n**3, 3 * n, gpus_per_server=4, num_tiers=2))
    expected = (5 * n * n + n + 1) / (n * n + n + 1)
    assert lengths.average_links == pytest.approx(expected, abs=1e-12)
    assert lengths.switch_hops_max == 4


@pytest.mark.parametrize("n", [4, 8])
def test_counts_of_the_partial_cube_have_their_closed_form(n: int) -> None:
    # SIGCOMM 2025: 2 n^2 leaves, n^2 / 2 cores; n^3 cables to them, n^3 between the groups
    topology = zcube(n**3, 3 * n, gpus_per_server=4, num_tiers=2)
    assert topology.num_switches == 2 * n * n + n * n // 2
    assert topology.num_links == 4 * n**3
    assert topology.ports_used().max() == 3 * n


def test_largest_partial_cube_for_switches_of_256_ports_equals_published_figure() -> None:
    # SIGCOMM 2025: ZCube(84,3)-partial = 592,704 GPUs on 256 ports; too large to build in a test.
    # 84 GPUs per switch are whole servers of 4 GPUs, not of 8.
    with pytest.raises(ConfigError) as refused:
        zcube(1_000_000, 256, gpus_per_server=4)
    assert refused.value.hint == "Nearest sizes: 592704"
