"""Measured curves and grids: exact at what was measured, straight between and beyond."""

import pytest
from profiles import MEASURED, grid, tables

from kvfabric.errors import ConfigError
from kvfabric.perf.attention_grid import AttentionGrid, AttentionPoint, complete_grid
from kvfabric.perf.curve import Curve
from kvfabric.perf.profile_tables import ProfiledModel, ProfileTables

AXES = ((8,), (8,), (1, 2, 4), (10, 20, 40))


def samples(*, left_out: tuple[AttentionPoint, ...] = ()) -> dict[AttentionPoint, int]:
    """Return ``1000 * chunk + 10 * history + decodes * context`` at every point of ``AXES``."""
    points = [
        AttentionPoint(p, h, n, c)
        for p in (0, *AXES[0])
        for h in ((0, *AXES[1]) if p else (0,))
        for n in (0, *AXES[2])
        for c in (AXES[3] if n else (0,))
        if p or n
    ]
    times = {p: 1000 * p.chunk + 10 * p.history + p.decodes * p.context for p in points}
    return {point: time for point, time in times.items() if point not in left_out}


def time_of(found: AttentionGrid, point: AttentionPoint) -> int:
    i = 0
    for axis, value in zip(found.axes, point, strict=True):
        i = i * len(axis) + axis.index(value)
    return found.times_fs[i]


@pytest.mark.parametrize(
    ("size", "time"),
    [(1, 100), (2, 100), (3, 133), (4, 166), (5, 200), (9, 100), (11, 50), (99, 0)],
)
def test_curve_is_flat_below_straight_between_and_goes_on_beyond(size: int, time: int) -> None:
    assert Curve((2, 5, 9), (100, 200, 100)).at(size) == time


def test_curve_of_one_point_holds_everywhere() -> None:
    assert [Curve((8,), (7,)).at(size) for size in (1, 8, 99)] == [7, 7, 7]


@pytest.mark.parametrize(
    ("sizes", "times"), [((), ()), ((1, 1), (2, 3)), ((1,), (-1,)), ((1,), ())]
)
def test_curve_refuses_what_is_none(sizes: tuple[int, ...], times: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        Curve(sizes, times)


def test_full_grid_keeps_what_was_measured() -> None:
    found = complete_grid(samples(), AXES)
    assert all(time_of(found, point) == time for point, time in samples().items())


def test_nothing_to_attend_takes_no_time() -> None:
    found = complete_grid(samples(), AXES)
    assert time_of(found, AttentionPoint(0, 8, 0, 40)) == 0


def test_context_counts_only_with_decodes_and_history_only_with_a_chunk() -> None:
    found = complete_grid(samples(), AXES)
    assert time_of(found, AttentionPoint(8, 8, 0, 40)) == 8_080
    assert time_of(found, AttentionPoint(0, 8, 2, 40)) == 80


def test_context_zero_takes_the_time_of_the_shortest_measured() -> None:
    found = complete_grid(samples(), AXES)
    assert time_of(found, AttentionPoint(8, 0, 2, 0)) == time_of(found, AttentionPoint(8, 0, 2, 10))


def test_batch_too_large_to_measure_continues_along_decodes() -> None:
    corner = AttentionPoint(8, 8, 4, 40)
    found = complete_grid(samples(left_out=(corner,)), AXES)
    assert time_of(found, corner) == samples()[corner]


def test_decodes_are_tried_before_context() -> None:
    corner = AttentionPoint(0, 0, 4, 40)
    uneven = samples(left_out=(corner,)) | {AttentionPoint(0, 0, 4, 20): 100}
    assert time_of(complete_grid(uneven, AXES), corner) == 80 + 2 * 40


def test_corner_without_two_smaller_batches_continues_along_context() -> None:
    corner = AttentionPoint(0, 0, 1, 40)
    found = complete_grid(samples(left_out=(corner,)), AXES)
    assert time_of(found, corner) == 40


def test_grid_with_a_hole_at_its_foot_is_refused_by_name() -> None:
    hole = AttentionPoint(8, 0, 0, 0)
    with pytest.raises(ConfigError, match="8 prompt tokens after 0 with 0 decodes at 0"):
        complete_grid(samples(left_out=(hole,)), AXES)


def test_grid_refuses_axes_that_do_not_start_at_zero() -> None:
    with pytest.raises(ConfigError, match="axis decodes"):
        AttentionGrid(((0, 1), (0, 1), (1, 2), (0, 1)), (0,) * 16)


def test_grid_refuses_a_wrong_number_of_times() -> None:
    with pytest.raises(ConfigError, match="15 attention times"):
        AttentionGrid(((0, 1), (0, 1), (0, 2), (0, 1)), (0,) * 15)


def test_decode_times_lie_on_the_line_between_batch_sizes() -> None:
    assert grid().decode_times_fs(10)[1:] == [10_000_000_000 * k // 100 for k in (116, 164, 1124)]


def test_unknown_operator_is_refused_with_the_known_ones() -> None:
    good = tables()
    with pytest.raises(ConfigError, match=r"unknown operator 'mamba'.*qkv_proj"):
        ProfileTables(
            model_name="m",
            tp=1,
            tokens={**good.tokens, "mamba": good.tokens["layernorm"]},
            requests=good.requests,
            attention=good.attention,
            source=MEASURED,
        )


def test_missing_operator_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="lacks rotary_emb, o_proj"):
        tables(leave_out=("rotary_emb", "o_proj"))


def test_model_with_more_expert_layers_than_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 layers with experts of 4"):
        ProfiledModel(num_layers=4, hidden_size=8, vocab_size=8, num_expert_layers=5)
