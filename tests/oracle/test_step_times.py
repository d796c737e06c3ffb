"""Step times and hand-offs against published figures: the error table of the built-in roofline.

The rows, with their sources, stand in ``plan.validation``. Tolerances are a little above the error
found, so that a row that gets worse is seen.
"""

from collections.abc import Sequence

import pytest

from kvfabric.catalog.gpus import gpu
from kvfabric.export.limits import stated_error
from kvfabric.perf.efficiency import Efficiency
from kvfabric.perf.handoff import estimate_handoff_ns
from kvfabric.perf.roofline import RooflineModel
from kvfabric.plan.validation import chip_steps, expert_steps, step_times
from kvfabric.plan.validation.handoff import FITTED_RATE_BPS, QWEN3_8B
from kvfabric.plan.validation.step_times import (
    PARTS_OF_PREFILL,
    StepRow,
    part_of_prefill_ms,
    work_of,
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


def span_of(rows: Sequence[StepRow]) -> str:
    errors = [row.error_percent for row in rows]
    return f"{min(errors):+.0f} to {max(errors):+.0f} %"


def test_results_state_the_errors_that_were_found() -> None:
    said = stated_error(RooflineModel(work_of("llama-3.1-8b", 1), gpu("h100-sxm-80gb")))
    qwen = expert_steps.HOPPER_ROWS
    mxfp4 = expert_steps.MXFP4_ROWS + expert_steps.MEASURED_ROWS
    latents = expert_steps.LATENT_H200_ROWS + expert_steps.LATENT_H100_ROWS
    assert f"H100 and H200 {span_of(step_times.ALL_ROWS)}" in said
    assert f"on other GPUs {span_of(chip_steps.ALL_ROWS)}" in said
    assert f"with experts {span_of(qwen)}" in said
    assert f"(mxfp4) {span_of(mxfp4)}" in said
    assert f"latent attention {span_of(latents)}" in said
    assert f"Qwen3-235B on B200 {span_of(expert_steps.B200_ROWS)}" in said
