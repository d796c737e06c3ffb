import dataclasses

import numpy as np
import pytest

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.failures import parse_failures, without
from kvfabric.fabric.measured.measures import path_lengths, switch_distances
from kvfabric.fabric.routes.paths import CROSSED, ONE_PORT, STRAIGHT, Ends, PathTable

GBIT = 10**9


def table(
    kind: str, num_gpus: int, radix: int, servers: int = 8, tiers: int | None = None
) -> PathTable:
    return PathTable(
        build_topology(
            kind,
            num_gpus,
            radix=radix,
            nic_rate_bps=400 * GBIT,
            gpus_per_server=servers,
            num_tiers=tiers,
        )
    )


def test_leaf_may_take_every_uplink_toward_another_leaf() -> None:
    paths = table("clos", 512, 32)
    choices = paths.channels_toward(0, 5)
    assert len(choices) == 16
    assert {paths.topology.channel_tail[c] for c in choices} == {512}


def test_spine_takes_the_parallel_cables_to_the_leaf() -> None:
    paths = table("clos", 64, 32, tiers=2)  # 4 leaves, 2 spines, bundles of 8
    spine = paths.next_switch(paths.channels_toward(0, 3)[0])
    choices = paths.channels_toward(spine, 3)
    assert {paths.next_switch(c) for c in choices} == {3}
    assert len(choices) == len(paths.bundle_channels[paths.bundles_toward(spine, 3)[0]])


def test_spine_goes_up_to_another_pod_and_down_within_its_own() -> None:
    paths = table("roft", 1024, 32)
    heads = {paths.next_switch(c) for c in paths.channels_toward(64, 16)}  # pod 1
    assert {paths.topology.switches[s].role.value for s in heads} == {"core"}
    heads = {paths.next_switch(c) for c in paths.channels_toward(64, 1)}
    assert heads == {1}


def test_one_port_nic_has_one_pair() -> None:
    assert table("clos", 64, 32).port_pairs(0, 63) == ONE_PORT


def test_zcube_pairs_opposite_groups() -> None:
    paths = table("zcube", 64, 16)  # ZCube(8,2)
    assert paths.port_pairs(0, 63) == CROSSED  # no switch shared
    assert paths.port_pairs(0, 8) == CROSSED  # multi-rail leaf shared
    assert paths.port_pairs(0, 1) == CROSSED  # single-rail leaf shared


def test_zcube_pairs_equal_groups_when_both_switches_are_shared() -> None:
    paths = table("zcube", 128, 64)  # k = 32: GPUs 0 and 4 share both switches
    assert paths.topology.access_switches[0].tolist() == paths.topology.access_switches[4].tolist()
    assert paths.port_pairs(0, 4) == STRAIGHT


def test_switch_distances_are_symmetric_and_zero_on_the_diagonal() -> None:
    distances = switch_distances(build_topology("roft", 1024, radix=32, nic_rate_bps=400 * GBIT))
    assert (distances == distances.T).all()
    assert (np.diag(distances) == 0).all()


def test_one_switch_is_two_cables_away_from_everyone() -> None:
    lengths = path_lengths(build_topology("clos", 32, radix=32, nic_rate_bps=400 * GBIT))
    assert (lengths.average_links, lengths.diameter_links, lengths.switch_hops_max) == (2, 2, 1)


def test_single_gpu_has_no_paths() -> None:
    topology = build_topology("clos", 1, radix=4, nic_rate_bps=GBIT, gpus_per_server=1)
    assert path_lengths(topology).average_links == 0


def test_rails_that_are_not_joined_are_reached_through_the_gpu_of_that_rail() -> None:
    paths = table("rail-only", 64, 16)
    assert paths.port_pairs(0, 8) == ONE_PORT
    assert paths.port_pairs(0, 13) == ()
    assert paths.ends(0, 8) == Ends(0, 8, ONE_PORT)
    assert paths.ends(0, 13) == Ends(5, 13, ONE_PORT)  # rank 5 of server 0


def test_planes_that_are_not_joined_pair_equal_ports() -> None:
    paths = table("hpn", 128, 32)
    assert paths.port_pairs(0, 127) == STRAIGHT


def test_bcube_pairs_ports_of_the_digits_that_differ_and_keeps_the_others() -> None:
    """As many disjoint paths as ports; source: BCube, SIGCOMM 2009, theorem 3."""
    paths = PathTable(
        build_topology(
            "bcube", 64, radix=4, nic_rate_bps=600 * GBIT, gpus_per_server=4, shape={"k": 3}
        )
    )
    digits = {"level 0 and 1": 4 + 1, "level 1": 4, "all": 16 + 4 + 1}
    found = {name: set(paths.port_pairs(0, gpu)) for name, gpu in digits.items()}
    assert found["level 0 and 1"] == {(0, 1), (1, 0), (2, 2)}
    assert found["level 1"] == {(0, 0), (1, 1), (2, 2)}
    assert all(a != b for a, b in found["all"])


def test_bcube_relays_have_ids_after_the_channels() -> None:
    topology = build_topology("bcube", 16, radix=4, nic_rate_bps=400 * GBIT, gpus_per_server=4)
    paths = PathTable(topology)
    assert paths.links_per_hop == 2
    hops = {hop for bundle in paths.bundle_channels for hop in bundle}
    assert min(hops) >= topology.num_channels
    assert len(hops) == 2 * topology.num_gpus
    route = [paths.uplink(0, 0), *paths.relays[(5 * 2 + 0) * 2 + 1][1:], paths.downlink(9, 1)]
    assert paths.hops_of(route) == [topology.num_channels + (5 * 2 + 0) * 2 + 1]


def test_hosts_that_forward_beside_cables_are_refused() -> None:
    topology = build_topology("zcube", 64, radix=16, nic_rate_bps=400 * GBIT)
    with pytest.raises(UnsupportedError, match="cables join switches"):
        PathTable(dataclasses.replace(topology, hosts_forward=True))


@pytest.mark.parametrize(("num_gpus", "radix"), [(64, 16), (256, 32), (128, 64), (1024, None)])
def test_flat_zcube_pairs_are_two_switches_apart_through_opposite_groups(
    num_gpus: int, radix: int | None
) -> None:
    """Every pair: at most two switches, entered and left through ports of opposite groups."""
    topology = build_topology("zcube", num_gpus, radix=radix, nic_rate_bps=400 * GBIT)
    paths = PathTable(topology)
    for dst in range(1, num_gpus):
        for src in (0, (5 * dst + 1) % num_gpus):
            shares = topology.access_switches[src] == topology.access_switches[dst]
            pairs = paths.port_pairs(src, dst)
            assert pairs == (STRAIGHT if shares.all() else CROSSED)
            between = [
                paths.distances[paths.access_switch(src, a), paths.access_switch(dst, b)]
                for a, b in pairs
            ]
            assert max(between) <= 1  # cables between switches


FAILURES_OF_ZCUBE = ("switch:multi-rail leaf 1", "switch:single-rail leaf 0", "port:GPU 9 port 0")
FAILED_CABLE = "link:multi-rail leaf 1 - single-rail leaf 3"


@pytest.mark.parametrize("failure", [*FAILURES_OF_ZCUBE, FAILED_CABLE])
def test_flat_zcube_pairs_are_three_switches_apart_after_a_failure(failure: str) -> None:
    """Stated: 3 switches at most, and then both ports of a pair are in one group.

    Both GPUs of a lost switch have only the other group left; the two GPUs of a lost cable pair
    equal groups, so that both stripes are equally long.
    """
    healthy = build_topology("zcube", 64, radix=16, nic_rate_bps=400 * GBIT, gpus_per_server=4)
    paths = PathTable(without(healthy, parse_failures(healthy, [failure])))
    switches = [
        (int(paths.distances[paths.access_switch(src, a), paths.access_switch(dst, b)]) + 1, a == b)
        for src in range(64)
        for dst in range(64)
        if not healthy.same_server(src, dst)
        for a, b in paths.port_pairs(src, dst)
    ]
    assert max(switches) == (3, True) if "GPU" not in failure else (2, False)
    assert all(count <= 2 or same_group for count, same_group in switches)
