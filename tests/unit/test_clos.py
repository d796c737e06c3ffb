import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import BUILDERS, build_topology
from kvfabric.fabric.graph import Medium, Scope, Topology
from kvfabric.fabric.measured.measures import switches_by_role

GBIT = 10**9


def clos(
    num_gpus: int, radix: int, *, oversubscription: float = 1.0, num_tiers: int | None = None
) -> Topology:
    return build_topology(
        "clos",
        num_gpus,
        radix=radix,
        nic_rate_bps=400 * GBIT,
        oversubscription=oversubscription,
        num_tiers=num_tiers,
    )


@pytest.mark.parametrize(("num_gpus", "tiers"), [(32, 1), (40, 2), (512, 2), (520, 3), (8192, 3)])
def test_tiers_are_the_fewest_that_hold_the_gpus(num_gpus: int, tiers: int) -> None:
    assert clos(num_gpus, 32).num_tiers == tiers


def test_default_switch_is_51_2t_at_the_nic_rate() -> None:
    topology = build_topology("clos", 1024, nic_rate_bps=400 * GBIT)
    assert topology.switches[0].radix == 128
    assert switches_by_role(topology) == {"leaf": 16, "spine": 8}


def test_consecutive_servers_share_a_leaf_and_none_is_split() -> None:
    topology = clos(360, 32)
    leaf = topology.access_switches[:, 0]
    assert leaf.tolist() == sorted(leaf.tolist())
    assert all(len(set(leaf[s : s + 8])) == 1 for s in range(0, 360, 8))


def test_host_cables_are_copper_and_the_rest_fibre() -> None:
    links = clos(512, 32).links
    assert ((links.medium == Medium.COPPER) == (links.scope == Scope.HOST)).all()


def test_non_blocking_leaf_has_as_many_uplinks_as_gpus() -> None:
    topology = clos(512, 32)
    assert set(topology.ports_used().tolist()) == {32}


def test_oversubscription_saves_uplinks() -> None:
    # 3:1 on 32 ports: 24 down, 8 up
    topology = clos(192, 32, oversubscription=3)
    assert switches_by_role(topology) == {"leaf": 8, "spine": 2}
    assert topology.num_links == 192 + 64


def test_bundles_are_equal_so_odd_leaf_counts_need_more_spines() -> None:
    # 24 leaves x 32 uplinks fill 12 spines of 64 ports, but 32 does not spread over 12
    assert switches_by_role(clos(768, 64))["spine"] == 16


def test_more_gpus_than_three_tiers_hold_are_refused_with_the_largest_size() -> None:
    with pytest.raises(ConfigError, match="8192 GPUs"):
        clos(8200, 32)


def test_given_tiers_that_are_too_few_are_refused_with_the_largest_size() -> None:
    with pytest.raises(ConfigError, match="512 GPUs"):
        clos(1024, 32, num_tiers=2)


def test_broken_server_is_refused_with_the_nearest_sizes() -> None:
    with pytest.raises(ConfigError, match="1000 or 1008"):
        clos(1001, 32)


def test_unknown_number_of_tiers_is_refused() -> None:
    with pytest.raises(ConfigError, match="Write 1, 2 or 3"):
        clos(64, 32, num_tiers=4)


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
def test_oversubscription_below_one_or_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="oversubscription"):
        clos(64, 32, oversubscription=value)


def test_nic_faster_than_the_switch_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="port rate of 400 Gbit/s"):
        build_topology("clos", 64, radix=32, nic_rate_bps=400 * GBIT, port_rate_bps=200 * GBIT)


def test_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=", ".join(BUILDERS)):
        build_topology("torus", 64, nic_rate_bps=400 * GBIT)


def test_size_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="clos has no size 'planes'"):
        build_topology("clos", 64, nic_rate_bps=400 * GBIT, shape={"planes": 2})


def test_negative_size_is_refused_before_any_rate_is_derived_from_it() -> None:
    with pytest.raises(ConfigError, match="ports is -1"):
        build_topology("multi-plane", 64, nic_rate_bps=400 * GBIT, shape={"ports": -1})


def test_zero_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_gpus is 0"):
        clos(0, 32)
