"""Step times of dense models on chips other than Hopper, whose shares of the peaks are their own.

Shares were chosen on Llama-3.1-8B, NVLink's on one prompt of Llama-3.1-70B; all else was held out.
"""

from collections.abc import Sequence
from typing import Final

from kvfabric.plan.validation.comparison import Limit, Role
from kvfabric.plan.validation.step_times import (
    A100,
    B200,
    StepRow,
    decode,
    prefill,
    row_comparison,
)
from kvfabric.protocol.step import StepShape

L40S, RTX_4090 = "l40s", "rtx-4090"
STEPS: Final = (
    prefill(1_024),
    prefill(4_096),
    prefill(16_384),
    decode(1, 1_024),
    decode(32, 4_096),
    decode(256, 1_024),
)
BUT_CHOSEN: Final = (STEPS[0], *STEPS[2:])  # what NVLink's share was not chosen on
CHOSEN: Final = (prefill(4_096), prefill(32_768), decode(32, 4_096))


def _rows(
    gpu: str,
    model: str,
    tp: int,
    published_ms: Sequence[float],
    tolerances: Sequence[float],
    *,
    role: str = "held out",
    steps: Sequence[StepShape] = STEPS,
) -> tuple[StepRow, ...]:
    return tuple(
        StepRow(gpu, model, tp, shape, published, tolerance, role)
        for shape, published, tolerance in zip(steps, published_ms, tolerances, strict=True)
    )


# aiconfigurator-core 0.12.0, vllm 0.24.0 tables (A100: 0.14.0), read 2026-12-01.
CHOSEN_ROWS: Final = (
    *_rows(
        A100, "llama-3.1-8b", 1, (258.7, 3_430, 25.07), (1, 2, 1), role="calibrated", steps=CHOSEN
    ),
    *_rows(
        B200, "llama-3.1-8b", 1, (46.0, 557.3, 5.93), (4, 2, 1), role="calibrated", steps=CHOSEN
    ),
    *_rows(
        L40S, "llama-3.1-8b", 1, (311.3, 3_969, 48.87), (1, 4, 1), role="calibrated", steps=CHOSEN
    ),
    StepRow(A100, "llama-3.1-70b", 8, prefill(4_096), 424, 3, "calibrated"),
    StepRow(B200, "llama-3.1-70b", 8, prefill(4_096), 96.4, 5, "calibrated"),
)
A100_ROWS: Final = (
    *_rows(A100, "qwen3-32b", 2, (151.5, 587.4, 2_861, 25.52, 37.97, 74.26), (7, 2, 5, 6, 7, 13)),
    *_rows(
        A100,
        "llama-3.1-70b",
        8,
        (126.2, 1_788, 17.18, 24.08, 43.99),
        (18, 3, 2, 9, 13),
        steps=BUT_CHOSEN,
    ),
)
# 32 decodes on 8 are far off: an all-reduce of their 32 rows takes 26 us there, and 13 in GB200.
B200_ROWS: Final = (
    *_rows(B200, "qwen3-32b", 2, (33.97, 113.7, 531.8, 8.16, 10.77, 17.56), (17, 4, 4, 1, 4, 6)),
    *_rows(
        B200,
        "llama-3.1-70b",
        8,
        (28.7, 382.4, 6.81, 10.40, 12.77),
        (11, 1, 3, 23, 1),
        steps=BUT_CHOSEN,
    ),
)
# The same source has the same chip in GB200: its products of 16,384 tokens are slower.
GB200_ROWS: Final = _rows(
    B200,
    "llama-3.1-70b",
    8,
    (31.1, 90.9, 440.7, 6.54, 7.92, 13.16),
    (18, 2, 13, 2, 2, 3),
    role="held out, GB200",
)
L40S_ROWS: Final = _rows(
    L40S, "qwen3-8b", 1, (72.45, 319.7, 1_636, 21.67, 51.47, 84.63), (3, 2, 4, 9, 2, 1)
)
# Real vLLM 0.19.0 on an RTX 4090 (LLMServingSim, MIT): 13 steps of 2,048 prompt tokens in a row at
# 199.2 ms each. Shares were chosen on the operators of that machine, the steps were held out.
RTX_4090_ROWS: Final = (
    StepRow(RTX_4090, "llama-3.1-8b", 1, prefill(2_048), 199.2, 3, "held out, measured"),
)
ALL_ROWS: Final = CHOSEN_ROWS + A100_ROWS + B200_ROWS + GB200_ROWS + L40S_ROWS + RTX_4090_ROWS


COMPARISONS: Final = (
    row_comparison(
        "Llama-3.1 on A100, B200, L40S, rows that chose a constant",
        CHOSEN_ROWS,
        Limit(0.016, 0.042),
        "aiconfigurator-core 0.12.0, vllm 0.24.0, 0.14.0 tables",
        Role.CALIBRATED,
    ),
    row_comparison(
        "Qwen3-32B on 2 A100, Llama-3.1-70B on 8",
        A100_ROWS,
        Limit(0.075, 0.185),
        "aiconfigurator-core 0.12.0, vllm 0.14.0 tables",
    ),
    row_comparison("Qwen3-32B on 2 B200, Llama-3.1-70B on 8", B200_ROWS, Limit(0.065, 0.235)),
    row_comparison("Llama-3.1-70B on 8 B200, published of GB200", GB200_ROWS, Limit(0.064, 0.18)),
    row_comparison("Qwen3-8B on L40S", L40S_ROWS, Limit(0.03, 0.085)),
    row_comparison(
        "prefill, Llama-3.1-8B on RTX 4090",
        RTX_4090_ROWS,
        Limit(0.022, 0.022),
        "vLLM 0.19.0, LLMServingSim, measured",
    ),
)
