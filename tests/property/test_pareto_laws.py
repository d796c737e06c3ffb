"""The Pareto front is what comparing every pair gives."""

from hypothesis import given
from hypothesis import strategies as st

from kvfabric.plan.search.pareto import Point, dominates, pareto_front, thinned

POINTS = st.lists(
    st.builds(
        Point,
        cost_usd=st.integers(0, 6).map(float),
        ttft_ns=st.integers(0, 6),
        tokens_per_s=st.integers(0, 6).map(float),
    ),
    max_size=40,
)


def itself(point: Point) -> Point:
    return point


@given(points=POINTS)
def test_front_is_what_no_other_dominates(points: list[Point]) -> None:
    naive = [p for p in points if not any(dominates(other, p) for other in points)]
    front = pareto_front(points, itself)
    assert sorted(front) == sorted(naive)
    assert [point.cost_usd for point in front] == sorted(point.cost_usd for point in front)


@given(points=POINTS, within=st.sampled_from([0.0, 0.05, 0.5]))
def test_thinned_front_loses_nothing_but_what_a_cheaper_one_nearly_gives(
    points: list[Point], within: float
) -> None:
    front = pareto_front(points, itself)
    kept = thinned(front, itself, within)
    assert set(kept) <= set(front)
    assert not front or kept[0] == front[0]
    for point in front:
        assert any(
            other.cost_usd <= point.cost_usd
            and (other.ttft_ns <= point.ttft_ns or point.ttft_ns >= (1 - within) * other.ttft_ns)
            and point.tokens_per_s <= (1 + within) * other.tokens_per_s
            for other in kept
        )
