"""Measured profiles against recorded runs of vLLM 0.19 with Llama-3.1-8B, step by step.

The schedules are the recorded ones, so that only step times are at stake. Source of runs and
profiles: LLMServingSim (MIT), bench/examples and profiler/perf.
"""

from functools import cache
from itertools import accumulate

import pytest
from reference import reference_path

from kvfabric.app.profile_directory import read_profile
from kvfabric.catalog.models import model_config
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.perf.profile import ProfileModel
from kvfabric.perf.profile_tables import profiled_model
from kvfabric.protocol.step import StepShape

MS = 1_000_000


@cache
def model_on(gpu: str) -> ProfileModel:
    tables = read_profile(reference_path(f"serving/vllm_0.19_{gpu}_llama-3.1-8b"))
    geometry = geometry_from_config(model_config("llama-3.1-8b"), where="model")
    return ProfileModel(tables, profiled_model(geometry))


# Prompts of the RTX 4090 run in order of arrival: the first twelve decode when its first step
# without idle budget starts (1.5662 s), the others are prefilled in the 13 steps up to 4.1554 s.
# The recorded first-token times fit this first-come, first-served filling of 2,048 tokens a step.
DECODING = (2358, 1034, 1320, 685, 298, 399, 1307, 1379, 289, 1008, 576, 1479)
QUEUED = (
    *(305, 2357, 835, 3452, 1355, 866, 2884, 539, 1403, 2197, 483, 461, 268, 437, 348, 327),
    *(363, 624, 519, 319, 346, 1195, 403, 633, 814, 1092, 1320, 1484),
)
BUDGET, NUM_STEPS = 2048, 13


def full_steps() -> list[StepShape]:
    """Return the shapes of the 13 steps. Tokens generated before are few: 3 per request."""
    context, num_decodes = sum(DECODING) + 3 * len(DECODING), len(DECODING)
    ends = list(accumulate(QUEUED))
    position, shapes = 0, []
    for _ in range(NUM_STEPS):
        stop = position + BUDGET - num_decodes
        spans = [
            (max(position, end - size), min(stop, end), end - size, end)
            for end, size in zip(ends, QUEUED, strict=True)
        ]
        spans = [span for span in spans if span[0] < span[1]]
        chunks = tuple((last - first, first - start) for first, last, start, _ in spans)
        shapes.append(StepShape(num_decodes, context, chunks))
        joined = [end - start for _, last, start, end in spans if last == end]
        context += num_decodes + sum(joined)
        num_decodes += len(joined)
        position = stop
    return shapes


def test_full_steps_of_the_rtx_4090_take_the_known_time() -> None:
    """Published: 208.7 ms on average in a model of the same composition; 199.2 ms real.

    Ours is 206.8 with the chunks that the recorded times imply; which chunks the published average
    has is not said. The gap to the real 199.2 ms is elementwise kernels that compiled graphs fuse.
    """
    model = model_on("RTX4090")
    steps = full_steps()
    assert all(sum(c for c, _ in s.prefill) + s.num_decodes == BUDGET for s in steps)
    mean_ms = sum(map(model.mixed_step_ns, steps)) / NUM_STEPS / MS
    assert mean_ms == pytest.approx(208.7, rel=0.01)
    assert mean_ms / 199.2 == pytest.approx(1.038, abs=0.001)


def test_three_prompts_with_125_decodes_on_the_rtx_pro_6000() -> None:
    """Published for this composition: 96.0 ms, real 98.6; prompts looked up apart give 84.1.

    125 requests of the recorded run decode then, with 1,196 tokens on average: their prompts, and
    of their outputs the share of the time between first and last token that has gone by.
    """
    shape = StepShape(125, 125 * 1_196, ((607, 0), (536, 0), (397, 0)))
    assert model_on("RTXPRO6000").mixed_step_ns(shape) / MS == pytest.approx(96.0, abs=0.2)


def test_small_decode_steps_on_the_rtx_pro_6000() -> None:
    """Published: 214 recorded steps of up to 8 decodes, 11.59 ms real, 11.53 in this composition.

    Their contexts are not published; from 500 to 1,500 tokens every batch lies around that.
    """
    model = model_on("RTXPRO6000")
    times = [
        model.decode_run_ns(n, n * context, 1) / MS
        for n in range(1, 9)
        for context in (500, 1_000, 1_500)
    ]
    assert sum(times) / len(times) == pytest.approx(11.53, abs=0.1)
    assert all(11.1 < time < 12.4 for time in times)


def test_largest_decode_steps_on_the_rtx_pro_6000() -> None:
    """Published: 834 recorded steps of 120 to 128 decodes, 28.59 ms real, 27.17 here."""
    found = model_on("RTXPRO6000").decode_run_ns(124, 124 * 1_196, 1) / MS
    assert found == pytest.approx(27.17, rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "num_decodes", "context", "chunks", "expected_us"),
    [
        ("RTX4090", 1, 1_000, (), 16_797.459),
        ("RTX4090", 125, 62_500, ((607, 0), (536, 0), (397, 0)), 188_251.695),
        ("RTX4090", 0, 0, ((2_048, 2_048),), 208_280.126),
        ("RTX4090", 300, 6_000_000, (), 859_556.616),
        ("RTXPRO6000", 125, 87_500, (), 21_578.611),
        ("RTXPRO6000", 0, 0, ((2_048, 0),), 82_945.311),
        ("RTXPRO6000", 3, 60, ((3_000, 100),), 91_625.143),
    ],
)
def test_steps_equal_an_independent_sketch(
    gpu: str,
    num_decodes: int,
    context: int,
    chunks: tuple[tuple[int, int], ...],
    expected_us: float,
) -> None:
    """Figures of a separate floating-point implementation of the same composition."""
    found = model_on(gpu).mixed_step_ns(StepShape(num_decodes, context, chunks)) / 1_000
    assert found == pytest.approx(expected_us, rel=1e-7)
