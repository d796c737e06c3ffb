"""Laws of measured step times: cutting, exact search, and agreement with a plain look-up."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from profiles import MEASURED

from kvfabric.perf.attention_grid import AttentionGrid, AttentionPoint, complete_grid
from kvfabric.perf.curve import Curve
from kvfabric.perf.profile import ProfileModel
from kvfabric.perf.profile_tables import ONCE, PER_LAYER, PER_REQUEST, ProfiledModel, ProfileTables
from kvfabric.protocol.step import StepShape

NUM_LAYERS = 3
AXES = ((4, 16), (8, 32), (1, 2, 8), (5, 20, 80))
ZERO = Curve((1,), (0,))

# Times with no order at all: measured tables fall as work grows, now and then.
times_fs = st.integers(1, 50_000_000)


@st.composite
def grids(draw: st.DrawFn) -> AttentionGrid:
    points = [
        AttentionPoint(p, h, n, c)
        for p in (0, *AXES[0])
        for h in ((0, *AXES[1]) if p else (0,))
        for n in (0, *AXES[2])
        for c in (AXES[3] if n else (0,))
        if p or n
    ]
    drawn = draw(st.lists(times_fs, min_size=len(points), max_size=len(points)))
    return complete_grid(dict(zip(points, drawn, strict=True)), AXES)


@st.composite
def models(draw: st.DrawFn) -> ProfileModel:
    sizes = (1, 3, 9)
    per_token = Curve(sizes, tuple(draw(st.tuples(*[times_fs] * 3))))
    names = (*ONCE, *PER_LAYER, "gate_up_proj", "act_fn", "down_proj")
    tables = ProfileTables(
        model_name="any",
        tp=1,
        # One operator carries the time, so that small steps round as often as they can.
        tokens=dict.fromkeys(names, ZERO) | {"embedding": per_token},
        requests=dict.fromkeys(PER_REQUEST, ZERO),
        attention=draw(grids()),
        source=MEASURED,
    )
    model = ProfiledModel(num_layers=NUM_LAYERS, hidden_size=8, vocab_size=8)
    return ProfileModel(tables, model, captured=draw(st.sampled_from([(), (1, 4, 16)])))


batches = st.integers(1, 12)
contexts = st.integers(0, 1_200)


@given(models(), batches, contexts, st.integers(0, 120))
def test_decode_run_is_sum_of_its_steps(
    model: ProfileModel, num_decodes: int, context: int, num_iterations: int
) -> None:
    steps = (StepShape(num_decodes, context + i * num_decodes) for i in range(num_iterations))
    assert model.decode_run_ns(num_decodes, context, num_iterations) == sum(
        model.mixed_step_ns(step) for step in steps
    )


@given(models(), batches, contexts, st.integers(0, 10_000), st.integers(0, 10_000))
def test_cutting_a_run_changes_nothing(
    model: ProfileModel, num_decodes: int, context: int, first: int, second: int
) -> None:
    whole = model.decode_run_ns(num_decodes, context, first + second)
    rest = model.decode_run_ns(num_decodes, context + first * num_decodes, second)
    assert whole == model.decode_run_ns(num_decodes, context, first) + rest


@given(models(), batches, contexts, st.integers(-10, 10**6), st.integers(1, 60))
def test_iterations_until_equals_linear_scan(
    model: ProfileModel, num_decodes: int, context: int, elapsed_ns: int, most: int
) -> None:
    scan = (
        j for j in range(1, most + 1) if model.decode_run_ns(num_decodes, context, j) >= elapsed_ns
    )
    assert model.iterations_until(num_decodes, context, elapsed_ns, most) == next(scan, most)


@given(models(), batches, contexts, st.integers(1, 100_000), st.integers(-1, 1))
def test_iterations_until_inverts_decode_run(
    model: ProfileModel, num_decodes: int, context: int, count: int, off_ns: int
) -> None:
    elapsed_ns = model.decode_run_ns(num_decodes, context, count) + off_ns
    found = model.iterations_until(num_decodes, context, elapsed_ns, 10**6)
    assert model.decode_run_ns(num_decodes, context, found) >= elapsed_ns
    assert found == 1 or model.decode_run_ns(num_decodes, context, found - 1) < elapsed_ns


@given(models(), st.integers(0, 12), contexts, st.lists(st.tuples(st.integers(1, 20), contexts)))
def test_work_is_never_free(
    model: ProfileModel, num_decodes: int, context: int, prefill: list[tuple[int, int]]
) -> None:
    shape = StepShape(num_decodes, context * bool(num_decodes), tuple(prefill))
    assert model.mixed_step_ns(shape) >= min(1, num_decodes + len(prefill))


def plain_attention(grid: AttentionGrid, point: tuple[Fraction, ...]) -> Fraction:
    """Return the look-up as a weighted sum over the 16 corners, in fractions."""
    weights = [(0, Fraction(1))]
    for axis, value in zip(grid.axes, point, strict=True):
        i = next(k for k in reversed(range(len(axis) - 1)) if axis[k] <= value or k == 0)
        share = (value - axis[i]) / (axis[i + 1] - axis[i])
        weights = [
            (offset * len(axis) + k, weight * part)
            for offset, weight in weights
            for k, part in ((i, 1 - share), (i + 1, share))
        ]
    return sum((w * grid.times_fs[offset] for offset, w in weights), Fraction(0))


@given(models(), st.integers(1, 8), st.integers(0, 640), st.integers(0, 16), st.integers(0, 32))
def test_step_equals_plain_look_up(
    model: ProfileModel, num_decodes: int, context: int, chunk: int, history: int
) -> None:
    context = min(context, 80 * num_decodes)
    prefill = ((chunk, history),) if chunk else ()
    mean = Fraction(context, num_decodes)
    point = (Fraction(chunk), Fraction(history if chunk else 0), Fraction(num_decodes), mean)
    attention_fs = NUM_LAYERS * plain_attention(model._tables.attention, point)
    linear_fs = model._linear_fs(chunk + num_decodes, num_decodes + len(prefill))
    if not chunk:
        linear_fs = max(linear_fs, 10**6)  # a step of decodes takes 1 ns, and its attention
    expected_ns = (linear_fs + attention_fs) / 10**6
    # Slopes are whole fs per token, so that a run adds up exactly.
    found = model.mixed_step_ns(StepShape(num_decodes, context, prefill))
    assert (
        expected_ns - Fraction(101, 100) < found <= max(Fraction(1), expected_ns + Fraction(1, 100))
    )


@given(models(), st.sampled_from(AXES[2]), st.sampled_from(AXES[3]))
def test_measured_points_are_met_exactly(
    model: ProfileModel, num_decodes: int, context: int
) -> None:
    grid = model._tables.attention
    _, _, decodes, contexts_axis = grid.axes
    i = decodes.index(num_decodes) * len(contexts_axis) + contexts_axis.index(context)
    linear_fs = max(10**6, model._linear_fs(num_decodes, num_decodes))
    expected = (linear_fs + NUM_LAYERS * grid.times_fs[i]) // 10**6
    assert model.decode_run_ns(num_decodes, num_decodes * context, 1) == expected
