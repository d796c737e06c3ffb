import dataclasses

import numpy as np
import pytest

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.measures import path_lengths, switch_distances
from kvfabric.fabric.paths import CROSSED, ONE_PORT, STRAIGHT, PathTable

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


def test_nic_with_three_ports_is_refused() -> None:
    topology = build_topology("clos", 64, radix=32, nic_rate_bps=400 * GBIT)
    three = dataclasses.replace(topology, access_links=np.repeat(topology.access_links, 3, axis=1))
    with pytest.raises(UnsupportedError, match="3 ports"):
        PathTable(three)


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
