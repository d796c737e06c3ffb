"""Paths for known traffic: as few messages on one channel as any assignment can have."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.errors import UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.failures import parse_failures, without
from kvfabric.fabric.graph import Topology
from kvfabric.fabric.routes.paths import PathTable
from kvfabric.fabric.routes.policies.edge_coloring import color_edges
from kvfabric.fabric.routes.policies.permutation import assign_permutation

GBIT = 10**9


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60))
def test_edges_that_meet_have_different_colors(edges: list[tuple[int, int]]) -> None:
    most = max(max(Counter(side).values()) for side in zip(*edges, strict=True))
    colors = color_edges(edges, most)
    assert set(colors) <= set(range(most))
    for side in range(2):
        seen = {(edge[side], color) for edge, color in zip(edges, colors, strict=True)}
        assert len(seen) == len(edges)


def loads(topology: Topology, pairs: list[tuple[int, int]]) -> Counter[int]:
    """Return the paths over every channel between switches, after checking each path."""
    tail, head = topology.channel_tail, topology.channel_head
    assigned = assign_permutation(PathTable(topology), pairs)
    for (src, dst), paths in zip(pairs, assigned, strict=True):
        assert len(paths) == (0 if topology.same_server(src, dst) else topology.ports_per_nic)
        for path in paths:
            nodes = [int(tail[path[0]]), *(int(head[c]) for c in path)]
            assert [int(tail[c]) for c in path] == nodes[:-1]
            assert (nodes[0], nodes[-1]) == (src, dst)
    return Counter(c for paths in assigned for path in paths for c in path[1:-1])


def permutation(num_gpus: int, seed: int) -> list[tuple[int, int]]:
    return list(enumerate(np.random.default_rng(seed).permutation(num_gpus).tolist()))


@pytest.mark.parametrize(
    ("kind", "num_gpus", "radix", "tiers", "oversubscription", "most"),
    [
        ("clos", 512, 32, 2, 1.0, 1),
        ("clos", 512, 32, 2, 2.0, 2),
        ("clos", 64, 32, 2, 1.0, 1),  # parallel cables
        ("roft", 1024, 128, 2, 1.0, 1),
        ("roft", 1024, 32, 3, 1.0, 1),
        ("clos", 512, 16, 3, 1.0, 1),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_permutation_loads_no_channel_more_than_it_must(  # noqa: PLR0917
    kind: str,
    num_gpus: int,
    radix: int,
    tiers: int,
    oversubscription: float,
    most: int,
    seed: int,
) -> None:
    topology = build_topology(
        kind,
        num_gpus,
        radix=radix,
        nic_rate_bps=400 * GBIT,
        num_tiers=tiers,
        oversubscription=oversubscription,
    )
    assert max(loads(topology, permutation(num_gpus, seed)).values()) <= most


def test_zcube_takes_parallel_cables_in_turn() -> None:
    topology = build_topology("zcube", 1024, nic_rate_bps=400 * GBIT)
    paths = PathTable(topology)
    found = loads(topology, permutation(1024, 3))
    for channels in paths.bundle_channels:
        carried = [found[c] for c in channels]
        assert max(carried) - min(carried) <= 1


def test_many_to_one_shares_the_downlinks_of_the_leaf_evenly() -> None:
    topology = build_topology("clos", 512, radix=32, nic_rate_bps=400 * GBIT)
    found = loads(topology, [(gpu, 511) for gpu in range(320)])
    assert max(found.values()) == 320 // 16


@pytest.mark.parametrize("kind", ["dragonfly", "bcube"])
def test_other_fabrics_are_refused(kind: str) -> None:
    topology = build_topology(kind, 64, radix=16, nic_rate_bps=400 * GBIT, gpus_per_server=8)
    with pytest.raises(UnsupportedError, match="neither a folded Clos nor a flat ZCube"):
        assign_permutation(PathTable(topology), permutation(64, 0))


def test_unequal_uplinks_are_refused() -> None:
    topology = build_topology("clos", 512, radix=32, nic_rate_bps=400 * GBIT)
    left = without(topology, parse_failures(topology, ["link:leaf 0 - spine 0"]))
    with pytest.raises(UnsupportedError, match="unequal uplinks"):
        assign_permutation(PathTable(left), permutation(512, 0))
