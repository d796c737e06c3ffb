"""Two recorded runs of vLLM 0.19.0, simulated from the GPU's operator profile, nothing fitted.

One of them is simulated by the roofline too, whose shares of the peaks were read off that profile.

Source: LLMServingSim (MIT), bench/results and profiler: Llama-3.1-8B, 300 ShareGPT requests at
10/s, on an RTX 4090 (2,588 KV blocks, 256 sequences: short of KV memory) and on an RTX PRO 6000
(36,578 blocks, 128 sequences). Latencies are counted from ``queued_ts``, as that project publishes
them.
"""

from collections.abc import Callable
from typing import Final

from kvfabric.plan.validation.comparison import (
    Comparison,
    Figure,
    Limit,
    Record,
    Role,
    Unit,
    errors_of,
)
from kvfabric.plan.validation.reference import ReferenceData

FOLDERS: Final = {
    "rtx-4090": "serving/vllm_0.19_RTX4090_llama-3.1-8b",
    "rtx-4090-roofline": "serving/vllm_0.19_RTX4090_llama-3.1-8b",
    "rtx-pro-6000": "serving/vllm_0.19_RTXPRO6000_llama-3.1-8b",
}
"""Where the reference data has each run, by the name of its scenario."""

UNSATURATED: Final = (3, 110)
"""First and last request of the RTX PRO 6000 before 128 run at once, without the first three, which
meet a cold engine."""

_DATE: Final = "2026-11-30"

# (figure, measured ms, simulated ms) on the date above.
_RTX_4090: Final = (
    ("TTFT mean", 65456.57, 67034.08),
    ("TTFT p50", 60062.71, 60642.8),
    ("TTFT p90", 121115.3, 123580.8),
    ("TTFT p99", 137352, 139819.3),
    ("TPOT mean", 32.44664, 32.53413),
    ("TPOT p99", 55.98892, 56.40154),
    ("E2E mean", 86578.25, 88208.6),
    ("E2E p99", 153625.4, 156408.2),
    ("makespan", 183567.5, 185630.2),
)
_RTX_4090_ROOFLINE: Final = (
    ("TTFT mean", 65456.57, 62632.16),
    ("TTFT p50", 60062.71, 56541.62),
    ("TTFT p90", 121115.3, 115413.2),
    ("TTFT p99", 137352, 130628.0),
    ("TPOT mean", 32.44664, 30.7878),
    ("TPOT p99", 55.98892, 53.47662),
    ("E2E mean", 86578.25, 82669.05),
    ("E2E p99", 153625.4, 146889.2),
    ("makespan", 183567.5, 176020.9),
)
_PRO_6000: Final = (
    ("TTFT mean", 7097.157, 6617.077),
    ("TTFT p50", 9387.609, 8244.582),
    ("TTFT p90", 16839.78, 15625.01),
    ("TTFT p99", 19754.15, 18840.53),
    ("TPOT mean", 32.45802, 31.58826),
    ("TPOT p99", 37.34335, 37.26363),
    ("E2E mean", 28200.75, 27145.09),
    ("E2E p99", 37638.6, 36268.15),
    ("makespan", 65926.44, 63734.19),
)
_PRO_6000_UNSATURATED: Final = (
    ("TTFT mean", 126.3246, 117.3501),
    ("TTFT p50", 98.80612, 91.12297),
    ("TTFT p90", 276.1924, 236.0497),
    ("TTFT p99", 371.9023, 366.8194),
    ("TPOT mean", 33.00894, 31.91086),
    ("TPOT p99", 35.53581, 35.14083),
    ("E2E mean", 22696.14, 21943.38),
    ("E2E p99", 28050.9, 27600.32),
    ("makespan", 36599.07, 36192.66),
)


def _run(
    name: str, window: tuple[int, int] | None = None
) -> Callable[[ReferenceData], list[Figure]]:
    def figures(reference: ReferenceData) -> list[Figure]:
        return [
            Figure(f"{found.name}, ms", found.measured_ns / 1e6, found.simulated_ns / 1e6)
            for found in reference.vllm_run(name, window)
        ]

    return figures


def _record(rows: tuple[tuple[str, float, float], ...]) -> Record:
    figures = tuple(Figure(f"{name}, ms", said, ours) for name, said, ours in rows)
    return Record(_DATE, errors_of(figures, Unit.RELATIVE), figures)


_ROWS: Final = (
    ("RTX 4090, 300 requests, bound by KV memory", "rtx-4090", None, _RTX_4090),
    ("RTX 4090, by the roofline", "rtx-4090-roofline", None, _RTX_4090_ROOFLINE),
    ("RTX PRO 6000, 300 requests", "rtx-pro-6000", None, _PRO_6000),
    (
        "RTX PRO 6000, its unsaturated part, 108 requests",
        "rtx-pro-6000",
        UNSATURATED,
        _PRO_6000_UNSATURATED,
    ),
)
_LIMITS: Final = (Limit(0.0155, 0.026), Limit(0.05, 0.06), Limit(0.051, 0.125), Limit(0.048, 0.15))

COMPARISONS: Final = tuple(
    Comparison(
        part="vllm-runs",
        what=what,
        source="vLLM 0.19.0, LLMServingSim",
        # a constant of the roofline, host time per request, was chosen on these runs
        role=Role.CALIBRATED if "roofline" in name else Role.HELD_OUT,
        limit=limit,
        recompute_from=_run(name, window),
        needs=(FOLDERS[name],),
        record=_record(rows),
    )
    for (what, name, window, rows), limit in zip(_ROWS, _LIMITS, strict=True)
)
