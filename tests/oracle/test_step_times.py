"""Step times and hand-offs against published figures: the error table of the built-in roofline.

The rows, with their sources, stand in ``plan.validation``. Tolerances are a little above the error
found, so that a row that gets worse is seen.
"""

import pytest

from kvfabric.perf.efficiency import Efficiency
from kvfabric.perf.handoff import estimate_handoff_ns
from kvfabric.plan.validation import chip_steps, expert_steps, step_times
from kvfabric.plan.validation.handoff import FITTED_RATE_BPS, QWEN3_8B
from kvfabric.plan.validation.step_times import (
    PARTS_OF_PREFILL,
    StepRow,
    part_of_prefill_ms,
)


@pytest.mark.parametrize(
    "row", step_times.ALL_ROWS + chip_steps.ALL_ROWS + expert_steps.ALL_ROWS, ids=str
)
def test_step_time_is_near_published(row: StepRow) -> None:
    assert abs(row.error_percent) <= row.tolerance_percent, f"{row.error_percent:+.1f} %"


@pytest.mark.parametrize(("part", "halved", "published_ms", "tolerance_percent"), PARTS_OF_PREFILL)
def test_part_of_prefill_is_near_published(
    part: str, halved: Efficiency, published_ms: float, tolerance_percent: float
) -> None:
    allowed = tolerance_percent / 100
    assert part_of_prefill_ms(halved) == pytest.approx(published_ms, rel=allowed), part


@pytest.mark.parametrize(("num_tokens", "published_ms"), QWEN3_8B)
def test_handoff_is_near_published(num_tokens: int, published_ms: float) -> None:
    estimate_ns = estimate_handoff_ns(num_tokens * 147_456, FITTED_RATE_BPS)
    assert estimate_ns / 1e6 == pytest.approx(published_ms, rel=0.07)
