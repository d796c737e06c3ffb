import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import LengthClass, Medium, Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths

GBIT = 10**9


def bcube(num_gpus: int, radix: int = 32, **shape: int) -> Topology:
    return build_topology(
        "bcube", num_gpus, radix=radix, nic_rate_bps=1200 * GBIT, gpus_per_server=4, shape=shape
    )


def test_two_levels_hold_runs_and_strides_of_gpus() -> None:
    topology = bcube(64)
    assert topology.access_switches[:, 0].tolist() == [gpu // 8 for gpu in range(64)]
    assert topology.access_switches[:, 1].tolist() == [8 + gpu % 8 for gpu in range(64)]


@pytest.mark.parametrize(("n", "k"), [(4, 2), (8, 2), (4, 3), (2, 4)])
def test_counts_have_their_closed_form(n: int, k: int) -> None:
    # Guo et al., SIGCOMM 2009: k levels of n^(k-1) switches with n ports, no cable between switches
    topology = bcube(n**k, k=k)
    assert topology.num_switches == k * n ** (k - 1)
    assert topology.ports_used().tolist() == [n] * topology.num_switches
    assert topology.ports_per_nic == k
    assert set(topology.links.scope.tolist()) == {Scope.HOST}
    assert set(topology.links.rate_bps.tolist()) == {1200 * GBIT // k}


@pytest.mark.parametrize(("n", "k"), [(4, 2), (8, 2), (4, 3), (2, 4)])
def test_gpus_of_a_switch_differ_in_one_digit(n: int, k: int) -> None:
    access = bcube(n**k, k=k).access_switches
    digits = np.arange(n**k)[:, None] // n ** np.arange(k) % n
    for level in range(k):
        for switch in np.unique(access[:, level]):
            members = digits[access[:, level] == switch]
            assert [len(set(column)) for column in members.T.tolist()] == [
                n if digit == level else 1 for digit in range(k)
            ]


@pytest.mark.parametrize(("n", "k"), [(4, 2), (8, 2), (4, 3), (2, 4)])
def test_path_length_has_its_closed_form(n: int, k: int) -> None:
    # two cables per digit that differs: mean 2 k (n-1) n^(k-1) / (n^k - 1), at most 2k
    lengths = path_lengths(bcube(n**k, k=k))
    expected = 2 * k * (n - 1) * n ** (k - 1) / (n**k - 1)
    assert lengths.average_links == pytest.approx(expected, abs=1e-12)
    assert lengths.diameter_links == 2 * k
    assert lengths.switch_hops_max == k


def test_nics_pass_traffic_on() -> None:
    assert bcube(64).hosts_forward


def test_lowest_level_is_copper_and_cables_grow_with_the_level() -> None:
    topology = bcube(64, k=3)
    access = topology.access_links
    media, lengths = topology.links.medium[access], topology.links.length_m[access]
    assert media.tolist() == [[Medium.COPPER, Medium.FIBRE, Medium.FIBRE]] * 64
    assert lengths.tolist() == [[LengthClass.RACK, LengthClass.ROW, LengthClass.HALL]] * 64


@pytest.mark.parametrize(
    ("num_gpus", "shape", "message", "hint"),
    [
        (100, {}, "no bcube of 100 GPUs and k = 2", "Nearest sizes: 64 or 144"),
        (64, {"k": 4}, "no bcube of 64 GPUs and k = 4", "Nearest sizes: 16 or 256"),
        (2048, {}, "no bcube of 2048 GPUs", "Nearest sizes: 1024"),
        (64, {"k": 1}, "k is 1", "Write 2 or more"),
        (64, {"k": 10**9}, "k is 1000000000", "Write at most 6: k levels hold 2^k or more"),
        (64, {"n": 8}, "no size 'n'", "Write k"),
    ],
)
def test_sizes_that_do_not_exist_are_refused(
    num_gpus: int, shape: dict[str, int], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        bcube(num_gpus, **shape)
    assert refused.value.hint == hint


def test_server_that_straddles_lowest_switches_is_refused() -> None:
    # 6 GPUs per switch and 4 per server
    with pytest.raises(ConfigError, match="no bcube of 36 GPUs") as refused:
        bcube(36)
    assert refused.value.hint == "Nearest sizes: 16 or 64"


def test_tiers_other_than_the_levels_and_oversubscription_are_refused() -> None:
    with pytest.raises(ConfigError, match="bcube with 3 tiers"):
        build_topology("bcube", 64, radix=64, nic_rate_bps=2 * GBIT, num_tiers=3)
    with pytest.raises(UnsupportedError, match="oversubscription"):
        build_topology("bcube", 64, radix=64, nic_rate_bps=2 * GBIT, oversubscription=2.0)
