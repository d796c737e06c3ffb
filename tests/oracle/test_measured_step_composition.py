"""How measured grids of steps add up, against steps that were not in the grids.

Source of all times: aiconfigurator-core 0.12.0 (Apache-2.0), vllm 0.24.0 tables, h100_sxm,
Llama-3.1-70B TP8, read 2026-11-30. That package knows steps of several prompts, and of prompts and
decodes, by itself: it adds up measured operators.
"""

import pytest

from kvfabric.perf.step_times import MeasuredStepModel, StepTimes
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.protocol.step import StepShape

PREFILL_MS = {
    512: (26.54, 26.59, 27.36, 33.72),
    1024: (46.24, 46.56, 48.98, 61.67),
    2048: (85.92, 86.51, 92.98, 118.23),
    4096: (169.6, 172.06, 185.74, 237.06),
    8192: (344.26, 348.97, 378.15, 481.16),
    16384: (690.28, 698.89, 759.14, 965.01),
    32768: (1535.85, 1553.02, 1673.21, 2085.29),
}
DECODE_MS = {
    1: (9.97, 10.05, 10.12, 10.33, 10.96),
    8: (9.9, 9.95, 10.14, 10.38, 13.74),
    64: (11.71, 11.83, 12.26, 15.41, 39.22),
    256: (16.35, 16.5, 20.02, 30.05, 127.34),
}
MODEL = MeasuredStepModel(
    StepTimes(
        batches=tuple(DECODE_MS),
        contexts=(1, 128, 1024, 4096, 32768),
        decode_ns=tuple(tuple(round(ms * 1e6) for ms in row) for row in DECODE_MS.values()),
        chunks=tuple(PREFILL_MS),
        histories=(0, 1024, 8192, 32768),
        prefill_ns=tuple(tuple(round(ms * 1e6) for ms in row) for row in PREFILL_MS.values()),
        control_ns=0,
        source=Source(SourceKind.PUBLISHED, "aiconfigurator-core 0.12.0"),
    )
)


@pytest.mark.parametrize(
    ("num_prompts", "chunk", "history", "published_ms"),
    [
        (2, 4096, 0, 336.92),
        (4, 2048, 0, 333.03),
        (8, 1024, 0, 332.77),
        (64, 128, 0, 329.63),
        (2, 16384, 0, 1395.84),
        (4, 1024, 8192, 182.98),
    ],
)
def test_several_prompts_attend_to_fewer_tokens_than_a_long_one(
    num_prompts: int, chunk: int, history: int, published_ms: float
) -> None:
    shape = StepShape(0, 0, ((chunk, history),) * num_prompts)
    assert MODEL.mixed_step_ns(shape) / 1e6 == pytest.approx(published_ms, rel=0.02)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "num_decodes", "prompt", "context", "published_ms"),
    [
        (2048, 64, 2048, 2304, 92.88),
        (512, 128, 4096, 4352, 38.25),
        (8192, 32, 8192, 8704, 350.33),
        (1024, 256, 1024, 1280, 62.67),
        (2048, 200, 1024, 1500, 99.19),
    ],
)
def test_steps_of_prompts_and_decodes(
    num_prompt_tokens: int, num_decodes: int, prompt: int, context: int, published_ms: float
) -> None:
    """The source takes the mean chunk of a prompt: half of the prompt lies before its tokens."""
    if num_prompt_tokens < prompt:
        prefill = [(num_prompt_tokens, (prompt - num_prompt_tokens) // 2)]
    else:
        prefill = [(prompt, 0)] * (num_prompt_tokens // prompt)
    shape = StepShape(num_decodes, num_decodes * context, tuple(prefill))
    assert MODEL.mixed_step_ns(shape) / 1e6 == pytest.approx(published_ms, rel=0.04)
