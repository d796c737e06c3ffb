"""Colors for the edges of a bipartite multigraph, so that none meet at a node in one color."""

from collections.abc import Sequence


def color_edges(edges: Sequence[tuple[int, int]], num_colors: int) -> list[int]:
    """Return a color from 0 for every edge; edges that share a node have different ones.

    Edges are added one by one. Where the color free on the left is taken on the right, the path of
    two alternating colors from there is swapped; it never comes back to the left node.

    Source: König's theorem, 1916: as many colors do as edges meet at one node.

    Args:
        edges: left and right node of each, numbered apart; repeated edges are edges of their own.
        num_colors: at least the most edges at one node.

    >>> color_edges([(0, 0), (0, 1), (1, 0)], 2)
    [0, 1, 1]
    """
    # by side and node: the edge in each color, -1 for none
    edge_at: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for side in range(2):
        edge_at[side].update((edge[side], [-1] * num_colors) for edge in edges)
    colors = [-1] * len(edges)
    for number, (left, right) in enumerate(edges):
        color = edge_at[0][left].index(-1)
        if edge_at[1][right][color] >= 0:
            other = edge_at[1][right].index(-1)
            _swap(edges, edge_at, colors, right, (color, other))
        colors[number] = color
        edge_at[0][left][color] = edge_at[1][right][color] = number
    return colors


def _swap(
    edges: Sequence[tuple[int, int]],
    edge_at: tuple[dict[int, list[int]], dict[int, list[int]]],
    colors: list[int],
    right: int,
    pair: tuple[int, int],
) -> None:
    """Exchange two colors along the path that leaves a right node in the first of them."""
    color, other = pair
    path, side, node = [], 1, right
    while (edge := edge_at[side][node][color]) >= 0:
        path.append(edge)
        side = 1 - side
        node = edges[edge][side]
        color, other = other, color
    for edge in path:
        for end in range(2):
            edge_at[end][edges[edge][end]][colors[edge]] = -1
    for edge in path:
        colors[edge] = pair[0] + pair[1] - colors[edge]
        for end in range(2):
            edge_at[end][edges[edge][end]][colors[edge]] = edge
