"""Paths by the names of their nodes."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.routes.named_paths import PathNames

# 64 GPUs on 4 leaves with 4 spines of 32 ports: several cables per pair
CLOS = build_topology("clos", 64, radix=32, num_tiers=2, nic_rate_bps=400 * 10**9)


def test_channels_are_those_between_the_nodes() -> None:
    path = PathNames(CLOS).channels(0, ["leaf-0", "spine-1", "leaf-1"], 20)
    assert [CLOS.channel_name(channel) for channel in path] == [
        "GPU 0 port 0 -> leaf 0",
        "leaf 0 -> spine 1",
        "spine 1 -> leaf 1",
        "leaf 1 -> GPU 20 port 0",
    ]


def test_parallel_cables_are_told_apart_by_number() -> None:
    names = PathNames(CLOS)
    first = names.channels(0, ["leaf-0", "spine-0#0", "leaf-1"], 20)
    assert first == names.channels(0, ["leaf-0", "spine-0", "leaf-1"], 20)
    second = names.channels(0, ["leaf-0", "spine-0#1", "leaf-1#2"], 20)
    assert CLOS.channel_name(second[1]) == "leaf 0 -> spine 0 #1"
    assert CLOS.channel_name(second[2]) == "spine 0 -> leaf 1 #2"


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (["leaf-0", "spine-77", "leaf-1"], "'spine-77', which this fabric does not have"),
        (["leaf-1"], "no cable leads from GPU 0 to leaf 1"),
        (["leaf-0", "spine-0#x", "leaf-1"], "no cable #x from leaf 0 to spine 0"),
        (["leaf-0", "spine-0", "leaf-0", "spine-0", "leaf-1"], "a cable twice"),
    ],
)
def test_mistakes_are_told(nodes: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PathNames(CLOS).channels(0, nodes, 20)
