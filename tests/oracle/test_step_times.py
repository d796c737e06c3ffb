"""Step times and hand-offs against published figures: the error table of the built-in roofline.

Rows named "calibrated" chose a constant of ``Efficiency``; all others were held out. Tolerances are
a little above the error found, so that a row that gets worse is seen; a far-off row says why.
"""

from dataclasses import dataclass
from functools import cache

import pytest

from kvfabric.catalog.gpus import gpu
from kvfabric.catalog.models import model_config
from kvfabric.kvcache.geometry_config import geometry_from_config
from kvfabric.perf.handoff import estimate_handoff_ns
from kvfabric.perf.roofline import Efficiency, RooflineModel
from kvfabric.perf.work import ModelWork, work_from_geometry
from kvfabric.protocol.step import StepShape

H100, H200, B200, A100 = "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "a100-sxm-80gb"


@cache
def work_of(model: str, tp: int) -> ModelWork:
    return work_from_geometry(geometry_from_config(model_config(model), where=model), tp=tp)


@dataclass(frozen=True)
class Row:
    """A published time of one step and how far ours may be from it."""

    gpu: str
    model: str
    tp: int
    shape: StepShape
    published_ms: float
    tolerance_percent: float
    role: str

    @property
    def estimate_ms(self) -> float:
        model = RooflineModel(work_of(self.model, self.tp), gpu(self.gpu))
        return model.mixed_step_ns(self.shape) / 1e6

    @property
    def error_percent(self) -> float:
        return 100 * (self.estimate_ms / self.published_ms - 1)

    def __str__(self) -> str:
        step = f"P{self.shape.prefill}" if self.shape.prefill else f"D({self.shape.num_decodes})"
        return f"{self.model} tp{self.tp} {self.gpu} {step} {self.role}"


def prefill(num_tokens: int) -> StepShape:
    return StepShape(0, 0, ((num_tokens, 0),))


def decode(num_decodes: int, context: int) -> StepShape:
    return StepShape(num_decodes, num_decodes * context)


# aiconfigurator-core 0.12.0, vllm 0.24.0 tables (Llama-3.1-70B and 8B, bf16), read 2026-11-30.
AIC_ROWS = [
    Row(H100, "llama-3.1-70b", 8, prefill(1_024), 46.2, 5, "held out"),
    Row(H100, "llama-3.1-70b", 8, prefill(4_096), 169.6, 2, "held out"),
    Row(H100, "llama-3.1-70b", 8, prefill(32_768), 1_536, 1, "calibrated: attention"),
    Row(H100, "llama-3.1-70b", 8, decode(1, 1_024), 10.1, 1, "calibrated: all-reduce start"),
    Row(H100, "llama-3.1-70b", 8, decode(16, 4_096), 11.4, 1, "held out"),
    Row(H100, "llama-3.1-70b", 8, decode(64, 4_096), 15.4, 1, "held out"),
    Row(H100, "llama-3.1-70b", 8, decode(256, 1_024), 20.0, 1, "held out"),
    Row(H100, "llama-3.1-8b", 1, prefill(4_096), 90.1, 1, "held out"),
    Row(H100, "llama-3.1-8b", 1, decode(32, 4_096), 12.35, 1, "calibrated: memory"),
    Row(H200, "llama-3.1-70b", 8, prefill(4_096), 164.9, 2, "calibrated: products, NVLink"),
    Row(H200, "llama-3.1-70b", 8, decode(32, 4_096), 10.5, 3, "held out"),
    Row(A100, "llama-3.1-70b", 8, prefill(4_096), 424, 3, "held out"),
]
# Far off. A100 decode: its tables are of vllm 0.14. B200: the same source has 90.9 and 7.9 ms for
# the same chip in GB200, which ours meets within 15 %: Hopper efficiencies are optimistic there.
AIC_FAR_ROWS = [
    Row(A100, "llama-3.1-70b", 8, decode(32, 4_096), 24.1, 26, "held out, far off"),
    Row(B200, "llama-3.1-70b", 8, prefill(4_096), 96.4, 20, "held out, far off"),
    Row(B200, "llama-3.1-70b", 8, decode(32, 4_096), 10.4, 27, "held out, far off"),
    Row(B200, "llama-3.1-70b", 8, prefill(4_096), 90.9, 15, "held out, GB200"),
    Row(B200, "llama-3.1-70b", 8, decode(32, 4_096), 7.9, 5, "held out, GB200"),
]
# llm-d blog, 2026-08-17, measured: vLLM peak prefill 20,480 token/s at 8,192 tokens (0.40 s). The
# weight type is not given; ours is bf16.
# Real vLLM 0.19.0 on an RTX 4090 (LLMServingSim, MIT): 13 steps of 2,048 prompt tokens in a row at
# 199.2 ms each. Far off: that card multiplies at 87 % of its data-sheet peak, not at 77 %.
MEASURED_ROWS = [
    Row(H100, "qwen3-32b", 2, prefill(8_192), 400, 14, "held out, measured"),
    Row("rtx-4090", "llama-3.1-8b", 1, prefill(2_048), 199.2, 26, "held out, far off, measured"),
]
# Far off, all optimistic: products of routed experts run well below dense ones, and the exchange
# between expert-parallel ranks is not modelled. Qwen3 is published with 8 expert-parallel ranks
# (aiconfigurator-core 0.12.0, vllm, H200), ours shares every expert among 8; gpt-oss is measured
# (llm-d blog, 2026-08-17: 39,065 token/s), taken here as one prompt of 8,192 tokens.
EXPERT_ROWS = [
    Row(H200, "qwen3-235b-a22b", 8, prefill(4_096), 146.8, 51, "held out, far off"),
    Row(H200, "qwen3-235b-a22b", 8, decode(32, 4_096), 23.8, 20, "held out, far off"),
    Row(H100, "gpt-oss-120b", 1, prefill(8_192), 209.7, 41, "held out, far off, measured"),
]
ALL_ROWS = AIC_ROWS + AIC_FAR_ROWS + MEASURED_ROWS + EXPERT_ROWS


@pytest.mark.parametrize("row", ALL_ROWS, ids=str)
def test_step_time_is_near_published(row: Row) -> None:
    assert abs(row.error_percent) <= row.tolerance_percent, f"{row.error_percent:+.1f} %"


# aiconfigurator-core 0.12.0, H200, Llama-3.1-70B TP8, 4,096 tokens: products 52.6 + 23.7 + 8.6
# + 7.5 ms, all-reduces 2 x 25.9, attention 6.7, the rest of 164.9. Attention is 41 % short:
# one constant serves long prompts, where it weighs 17 % of the step, and this one, at 4 %.
PART_ROWS = [
    (Efficiency(matmul=0.77 / 2), 92.4, 1),
    (Efficiency(nvlink=0.84 / 2), 51.8 - 160 * 0.015, 1),
    (Efficiency(memory=0.84 / 2), 164.9 - 92.4 - 51.8 - 6.7, 9),
    (Efficiency(attention=0.70 / 2), 6.7, 42),
]


@pytest.mark.parametrize(("halved", "published_ms", "tolerance_percent"), PART_ROWS)
def test_part_of_prefill_is_near_published(
    halved: Efficiency, published_ms: float, tolerance_percent: float
) -> None:
    # A part at half its efficiency lengthens the step by once its time.
    work, h200, shape = work_of("llama-3.1-70b", 8), gpu(H200), prefill(4_096)
    slower_ns = RooflineModel(work, h200, halved).mixed_step_ns(shape)
    part_ms = (slower_ns - RooflineModel(work, h200).mixed_step_ns(shape)) / 1e6
    assert part_ms == pytest.approx(published_ms, rel=tolerance_percent / 100)


# Mooncake docs at 3b5a594, vLLM prefill-decode: Qwen3-8B (147,456 bytes per token), 2 nodes of 8
# H800, 8 CX-7 RoCE, one request at a time: prompt tokens, transfer ms.
HANDOFF_ROWS = [
    (128, 0.54),
    (512, 0.92),
    (1_024, 1.50),
    (2_048, 2.51),
    (4_096, 4.75),
    (8_192, 8.84),
    (16_384, 16.43),
    (32_768, 31.65),
]


@pytest.mark.parametrize(("num_tokens", "published_ms"), HANDOFF_ROWS)
def test_handoff_is_near_published(num_tokens: int, published_ms: float) -> None:
    estimate_ns = estimate_handoff_ns(num_tokens * 147_456, 8 * 146_100_000_000)
    assert estimate_ns / 1e6 == pytest.approx(published_ms, rel=0.07)
