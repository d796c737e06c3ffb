"""Published counts and path lengths of BCube, Dragonfly, Slim Fly and the three-level ZCube."""

import pytest

from kvfabric.catalog.prices import PRICE_BOOK
from kvfabric.errors import ConfigError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import Medium, Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths
from kvfabric.fabric.topologies.slim_fly import num_routers, router_degree
from kvfabric.plan.bom import bill_of_materials
from kvfabric.plan.validation.topology_tables import (
    TABLE_3_DIRECT,
    TABLE_3_LARGEST,
    TABLE_7_DIRECT,
)

GBIT = 10**9


def build(kind: str, num_gpus: int, radix: int, **shape: int) -> Topology:
    return build_topology(kind, num_gpus, radix=radix, nic_rate_bps=400 * GBIT, shape=shape)


def counts_of(topology: Topology) -> tuple[int, ...]:
    """Return switches, copper, fibre, optical modules, NIC ports per GPU."""
    fibre = int((topology.links.medium == Medium.FIBRE).sum())
    copper = topology.num_links - fibre
    return topology.num_switches, copper, fibre, 2 * fibre, topology.ports_per_nic


@pytest.mark.parametrize(("kind", "num_gpus", "radix", "counts", "cost"), TABLE_7_DIRECT)
def test_counts_and_cost_equal_published_table(
    kind: str, num_gpus: int, radix: int, counts: tuple[int, ...], cost: float | None
) -> None:
    topology = build(kind, num_gpus, radix)
    assert counts_of(topology) == counts
    if cost is not None:
        range_usd = bill_of_materials(topology, PRICE_BOOK).cost()
        assert range_usd.low_usd < cost * 1e6 < range_usd.high_usd


def test_dragonfly_of_1024_gpus_leaves_32_ports_of_the_published_size_free() -> None:
    topology = build("dragonfly", 1024, 15, a=8, p=4, h=4)
    assert counts_of(topology) == (264, 1980 - 32, 528, 1056, 1)


@pytest.mark.parametrize(
    ("kind", "num_gpus", "radix", "shape", "average", "starred"), TABLE_3_DIRECT
)
def test_path_lengths_equal_published_table(
    kind: str,
    num_gpus: int,
    radix: int,
    shape: dict[str, int],
    average: float,
    starred: float | None,
) -> None:
    # 1,200 Gbit/s splits over two and over three NIC ports
    topology = build_topology(kind, num_gpus, radix=radix, nic_rate_bps=1200 * GBIT, shape=shape)
    lengths = path_lengths(topology)
    assert lengths.average_links == pytest.approx(average, abs=6e-6)
    if starred is not None:
        assert lengths.scale_up_average_links == pytest.approx(starred, abs=6e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_gpus", "radix", "average", "starred"), TABLE_3_LARGEST)
def test_path_lengths_of_the_largest_fabrics_equal_published_table(
    kind: str, num_gpus: int, radix: int, average: float, starred: float
) -> None:
    lengths = path_lengths(build(kind, num_gpus, radix))
    assert lengths.average_links == pytest.approx(average, abs=6e-6)
    assert lengths.scale_up_average_links == pytest.approx(starred, abs=6e-6)


def test_full_three_level_zcube_has_the_published_size() -> None:
    # Same paper: ZCube(16,3) on switches of 48 ports, three NIC ports per GPU
    topology = build_topology(
        "zcube-recursive", 4096, radix=48, nic_rate_bps=600 * GBIT, shape={"k": 3}
    )
    assert topology.num_switches == 3 * 256
    assert topology.ports_per_nic == 3
    assert topology.ports_used().max() == 48


def test_dragonfly_of_64_port_switches_equals_published_counts() -> None:
    # Source: DeepSeek-V3, ISCA 2025, Table 3: endpoints, switches, links between switches. It has
    # 511 groups, two fewer than a h + 1: two groups of every 511 share a second cable.
    topology = build_topology(
        "dragonfly",
        261_632,
        radix=64,
        nic_rate_bps=400 * GBIT,
        shape={"a": 32, "p": 16, "h": 16, "g": 511},
    )
    assert topology.num_switches == 16_352
    assert int((topology.links.scope == Scope.FABRIC).sum()) == 384_272
    assert topology.ports_used().tolist() == [16 + 31 + 16] * 16_352
    with pytest.raises(ConfigError, match="room for 261632 GPUs"):
        build("dragonfly", 261_640, 64, a=32, p=16, h=16, g=511)


def test_published_slim_fly_counts_have_no_graph() -> None:
    # Source: the same table: 32,928 endpoints, 1,568 switches, 32,928 links. They follow from
    # 2 q^2 routers of degree 3q / 2 with 21 endpoints each and q = 28, but 28 is no prime power, so
    # no such graph exists. Of those that do, q = 27 fits 64 ports and q = 29 needs 65.
    q, p = 28, 21
    assert num_routers(q) == 1_568
    assert num_routers(q) * p == 32_928
    assert num_routers(q) * (3 * q // 2) // 2 == 32_928
    with pytest.raises(ConfigError, match="28 is no prime power") as refused:
        build("slim-fly", 32_928, 64, q=q, p=p)
    assert refused.value.hint == "Nearest q: 27 or 29"  # with 21 endpoints each, 29 fits 64 ports
    assert router_degree(27) + 21 == 62
    assert router_degree(29) + 21 == 64
    assert build("slim-fly", 32_928, 64, q=29, p=p).num_switches == 1_682
