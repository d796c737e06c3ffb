"""Laws of random regular graphs: every node has its neighbors, all are joined, seeds repeat."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvfabric.fabric.topologies.random_regular import random_regular_graph


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    num_nodes = draw(st.integers(3, 40))
    degrees = [degree for degree in range(2, num_nodes) if num_nodes * degree % 2 == 0]
    return num_nodes, draw(st.sampled_from(degrees))


@given(sizes(), st.integers(0, 2**32))
def test_graph_is_simple_regular_connected_and_repeatable(size: tuple[int, int], seed: int) -> None:
    num_nodes, degree = size
    edges = random_regular_graph(num_nodes, degree, np.random.default_rng(seed))
    assert (edges[:, 0] < edges[:, 1]).all()
    assert len(np.unique(edges, axis=0)) == len(edges)
    assert np.bincount(edges.ravel(), minlength=num_nodes).tolist() == [degree] * num_nodes
    again = random_regular_graph(num_nodes, degree, np.random.default_rng(seed))
    assert edges.tolist() == again.tolist()
    joined = np.eye(num_nodes, dtype=np.int64)
    joined[edges[:, 0], edges[:, 1]] = joined[edges[:, 1], edges[:, 0]] = 1
    for _ in range(6):  # paths of up to 2^6 edges
        joined = np.minimum(joined @ joined, 1)
    assert joined.all()
