"""Step times from measured grids: exact at measured points, linear between, runs as sums."""

import pytest

from kvfabric.errors import ConfigError
from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape

SOURCE = Source(SourceKind.MEASURED, "made up")


def times(**fields: object) -> StepTimes:
    grid: dict[str, object] = {
        "batches": (1, 4, 8),
        "contexts": (100, 200, 400),
        "decode_ns": ((1000, 1100, 1500), (1600, 2000, 3000), (2400, 3200, 5000)),
        "chunks": (10, 100),
        "histories": (0, 100),
        "prefill_ns": ((900, 1000), (5000, 6000)),
        "control_ns": 50,
        "source": SOURCE,
    }
    return StepTimes(**(grid | fields))  # type: ignore[arg-type]


MODEL = MeasuredStepModel(times())


def test_measured_points_are_met_and_between_them_it_is_linear() -> None:
    for i, batch in enumerate((1, 4, 8)):
        for j, context in enumerate((100, 200, 400)):
            measured = times().decode_ns[i][j]
            assert MODEL.decode_run_ns(batch, batch * context, 1) == pytest.approx(
                measured + 50, abs=2
            )
    assert MODEL.decode_run_ns(1, 150, 1) == pytest.approx(1050 + 50, abs=2)
    assert MODEL.decode_run_ns(6, 6 * 100, 1) == pytest.approx(2000 + 50, abs=2)
    assert MODEL.mixed_step_ns(StepShape(0, 0, ((10, 0),))) == 950
    assert MODEL.mixed_step_ns(StepShape(0, 0, ((55, 50),))) == pytest.approx(3225 + 50)


def test_beyond_the_grid_it_goes_on_as_before() -> None:
    assert MODEL.decode_run_ns(1, 600, 1) == pytest.approx(1900 + 50, abs=2)
    assert MODEL.mixed_step_ns(StepShape(0, 0, ((190, 0),))) == pytest.approx(9100 + 50)


def test_the_weights_are_read_once_in_a_step_of_both_kinds() -> None:
    # 104 tokens, but pairs of 100: 5,000, which 104 tokens have with -3.9 before them
    both = MODEL.mixed_step_ns(StepShape(4, 400, ((100, 0),)))
    alone = MODEL.mixed_step_ns(StepShape(0, 0, ((104, 0),)))
    assert alone == 5182 + 50
    assert both == pytest.approx(alone - 3.9 * 10, abs=2)
    longer = MODEL.mixed_step_ns(StepShape(4, 800, ((100, 0),)))
    assert longer == pytest.approx(both + 2000 - 1600, abs=2), "attention of decodes comes on top"
    short = MODEL.mixed_step_ns(StepShape(4, 400, ((10, 0),)))
    assert short == MODEL.decode_run_ns(4, 400, 1)  # never less than the decodes alone


def test_several_prompts_count_as_one_with_as_many_pairs() -> None:
    two = MODEL.mixed_step_ns(StepShape(0, 0, ((50, 30), (50, 30))))
    assert two == MODEL.mixed_step_ns(StepShape(0, 0, ((100, 5),)))  # 2 x 50 x 55 = 100 x 55


def test_a_run_is_the_sum_of_its_steps() -> None:
    for batch in (1, 3, 9):
        steps = [MODEL.decode_run_ns(batch, 300 + i * batch, 1) for i in range(200)]
        assert MODEL.decode_run_ns(batch, 300, 200) == sum(steps)
        assert MODEL.iterations_until(batch, 300, sum(steps[:70]), 200) == 70
        assert MODEL.iterations_until(batch, 300, sum(steps[:70]) + 1, 200) == 71


@pytest.mark.parametrize(
    "fields",
    [{"batches": (1,)}, {"contexts": (200, 100, 400)}, {"prefill_ns": ((1, 2),)}],
)
def test_a_grid_with_holes_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        times(**fields)
