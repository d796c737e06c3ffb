import numpy as np
import pytest

from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.fabric.build import build_topology
from kvfabric.fabric.graph import FloatArray, Medium, Scope, Topology
from kvfabric.fabric.measured.measures import path_lengths
from kvfabric.fabric.topologies.slim_fly import mms_graph, num_routers, router_degree

GBIT = 10**9
ORDERS = [3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 25, 27]


def slim_fly(num_gpus: int, radix: int = 64, **shape: int) -> Topology:
    return build_topology(
        "slim-fly", num_gpus, radix=radix, nic_rate_bps=400 * GBIT, gpus_per_server=1, shape=shape
    )


def adjacency(q: int) -> FloatArray:
    matrix = np.zeros((num_routers(q),) * 2)
    end_a, end_b = mms_graph(q)
    np.add.at(matrix, (end_a, end_b), 1)
    np.add.at(matrix, (end_b, end_a), 1)
    return matrix


@pytest.mark.parametrize("q", ORDERS)
def test_graph_is_regular_without_parallel_cables_or_loops(q: int) -> None:
    matrix = adjacency(q)
    assert matrix.max() == 1
    assert matrix.trace() == 0
    # Besta and Hoefler, SC 2014: k' = (3q - d) / 2 with q = 4w + d
    d = {1: 1, 3: -1, 0: 0}[q % 4]
    assert set(matrix.sum(axis=0)) == {(3 * q - d) / 2}
    assert router_degree(q) == (3 * q - d) // 2


@pytest.mark.parametrize("q", ORDERS)
def test_any_two_routers_are_at_most_two_cables_apart(q: int) -> None:
    matrix = adjacency(q)
    assert (matrix @ matrix + matrix > 0).all()


def test_five_gives_the_hoffman_singleton_graph() -> None:
    # 50 nodes of degree 7 meet the Moore bound 1 + 7^2: one shortest path for every pair, so no
    # triangle and no cycle of four
    matrix = adjacency(5)
    assert (matrix @ matrix + matrix == 1 + 6 * np.eye(50)).all()


@pytest.mark.parametrize("q", [5, 7, 8])
def test_average_path_length_has_its_closed_form(q: int) -> None:
    # every router at distance one or two: 2 + (k' + 2 (2q^2 - 1 - k')) p / (N - 1) cables
    degree, routers = router_degree(q), num_routers(q)
    p = -(-degree // 2)
    lengths = path_lengths(slim_fly(routers * p))
    expected = 2 + (2 * (routers - 1) - degree) * p / (routers * p - 1)
    assert lengths.average_links == pytest.approx(expected, abs=1e-12)
    assert lengths.switch_hops_max == 3


def test_smallest_graph_that_holds_the_gpus_is_taken() -> None:
    # q = 8 has 128 routers x 6 = 768 ports, q = 9 has 162 x 7 = 1,134
    topology = slim_fly(1024)
    assert topology.num_switches == 162
    assert topology.num_links == 1024 + 162 * 13 // 2
    assert topology.ports_used().max() == 13 + 7


def test_shape_chooses_order_and_gpus_per_router() -> None:
    topology = slim_fly(500, q=7, p=8)
    assert topology.num_switches == 98
    assert np.bincount(topology.access_switches[:, 0]).max() == 8


def test_gpus_hang_on_copper_and_routers_on_fibre() -> None:
    links = slim_fly(54).links
    assert set(links.medium[links.scope == Scope.HOST].tolist()) == {Medium.COPPER}
    assert set(links.medium[links.scope == Scope.FABRIC].tolist()) == {Medium.FIBRE}


def test_order_that_is_no_prime_power_is_refused_with_its_neighbors() -> None:
    # 29 needs 43 + 22 = 65 ports
    with pytest.raises(ConfigError, match="no slim fly of q = 28") as refused:
        slim_fly(1024, q=28)
    assert refused.value.hint == "Nearest q: 27"
    with pytest.raises(ConfigError) as refused:
        slim_fly(1024, 65, q=28)
    assert refused.value.hint == "Nearest q: 27 or 29"


def test_order_beyond_the_switch_is_refused_with_the_largest() -> None:
    with pytest.raises(ConfigError, match="65 ports per router") as refused:
        slim_fly(1024, q=29)
    assert refused.value.hint == "Nearest q: 27"


def test_too_many_gpus_are_refused_with_the_most() -> None:
    # q = 27: 1,458 routers x 21
    with pytest.raises(ConfigError, match="40000 GPUs") as refused:
        slim_fly(40000)
    assert refused.value.hint == "Write at most 30618"
    assert slim_fly(30618).num_switches == 1458


def test_more_gpus_than_the_asked_shape_holds_are_refused() -> None:
    with pytest.raises(ConfigError, match="room for 54 GPUs, not 60"):
        slim_fly(60, q=3)


def test_switch_without_enough_ports_for_any_is_refused() -> None:
    with pytest.raises(ConfigError, match="no slim fly") as refused:
        slim_fly(8, 7)
    assert refused.value.hint == "Use switches with more ports"
    with pytest.raises(ConfigError, match="8 ports per router"):
        slim_fly(8, 7, q=3)


def test_tiers_and_oversubscription_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 tiers"):
        build_topology("slim-fly", 64, radix=64, nic_rate_bps=GBIT, num_tiers=2)
    with pytest.raises(UnsupportedError, match="oversubscription"):
        build_topology("slim-fly", 64, radix=64, nic_rate_bps=GBIT, oversubscription=2.0)
