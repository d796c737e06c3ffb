from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from kvfabric.fabric.measured.max_flow import FlowNetwork

Arc = tuple[int, int, int, int]


def max_flow(num_nodes: int, arcs: list[Arc]) -> int:
    network = FlowNetwork(num_nodes)
    network.add_arcs(arcs)
    return network.max_flow(0, num_nodes - 1)


def smallest_cut(num_nodes: int, arcs: list[Arc]) -> int:
    """Return the least capacity over all ways to separate node 0 from the last, one by one."""
    cuts = []
    for inner in product((True, False), repeat=num_nodes - 2):
        side = (True, *inner, False)
        there = sum(c for a, b, c, _ in arcs if side[a] and not side[b])
        back = sum(c for a, b, _, c in arcs if side[b] and not side[a])
        cuts.append(there + back)
    return min(cuts)


def test_textbook_network_carries_twenty_three() -> None:
    # Source: Cormen et al., Introduction to Algorithms, 3rd edition, figure 26.1
    arcs = [
        (0, 1, 16, 0),
        (0, 2, 13, 0),
        (2, 1, 4, 0),
        (1, 3, 12, 0),
        (3, 2, 9, 0),
        (2, 4, 14, 0),
        (4, 3, 7, 0),
        (3, 5, 20, 0),
        (4, 5, 4, 0),
    ]
    assert max_flow(6, arcs) == 23


def test_flow_that_must_be_rerouted_is_found() -> None:
    arcs = [(0, 1, 1, 0), (0, 2, 1, 0), (1, 2, 1, 0), (1, 3, 1, 0), (2, 3, 1, 0)]
    assert max_flow(4, arcs) == 2


def test_nothing_flows_where_no_arc_leads() -> None:
    assert max_flow(4, [(0, 1, 5, 0), (2, 3, 5, 0), (1, 2, 0, 5)]) == 0


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[Arc]]:
    num_nodes = draw(st.integers(2, 7))
    node, capacity = st.integers(0, num_nodes - 1), st.integers(0, 9)
    arc = st.tuples(node, node, capacity, capacity).filter(lambda a: a[0] != a[1])
    return num_nodes, draw(st.lists(arc, max_size=16))


@given(networks())
def test_largest_flow_equals_the_smallest_cut(network: tuple[int, list[Arc]]) -> None:
    assert max_flow(*network) == smallest_cut(*network)
