"""Step times of dense models on Hopper in the built-in roofline, published and measured.

Rows named "calibrated" chose a constant of ``Efficiency``; all others were held out. Tolerances are
a little above the error found, so that a row that gets worse is seen; a far-off row says why.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from kvfabric.catalog.gpus import gpu
from kvfabric.perf.efficiency import AIC, Efficiency
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.work import ModelWork, work_from_geometry
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role
from kvfabric.plan.validation.kv_bytes import geometry_of
from kvfabric.protocol.step import StepShape

H100, H200, B200, A100 = "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "a100-sxm-80gb"


@cache
def work_of(model: str, tp: int) -> ModelWork:
    """Return the work of a model of the catalog in bf16."""
    return work_from_geometry(geometry_of(model), tp=tp)


@dataclass(frozen=True)
class StepRow:
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
        """Return our time."""
        model = RooflineModel(work_of(self.model, self.tp), gpu(self.gpu))
        return model.mixed_step_ns(self.shape) / 1e6

    @property
    def error_percent(self) -> float:
        """Return our time over the published one, minus 100 %."""
        return 100 * (self.estimate_ms / self.published_ms - 1)

    def __str__(self) -> str:
        """Return model, GPU and step, such as ``llama-3.1-70b tp8 h100-sxm-80gb D(16, 4,096)``."""
        shape = self.shape
        if shape.prefill:
            step = f"P {shape.prefill[0][0]:,}"
        else:
            step = f"D({shape.num_decodes}, {shape.context_tokens // shape.num_decodes:,})"
        chip = " as GB200" if "GB200" in self.role else ""
        return f"{self.model} tp{self.tp} {self.gpu}{chip} {step}"


def prefill(num_tokens: int) -> StepShape:
    """Return the step of one prompt without history."""
    return StepShape(0, 0, ((num_tokens, 0),))


def decode(num_decodes: int, context: int) -> StepShape:
    """Return the step of so many decodes, all at one context."""
    return StepShape(num_decodes, num_decodes * context)


# aiconfigurator-core 0.12.0, vllm 0.24.0 tables (Llama-3.1-70B and 8B, bf16), read 2026-11-30.
AIC_ROWS: Final = (
    StepRow(H100, "llama-3.1-70b", 8, prefill(1_024), 46.2, 5, "held out"),
    StepRow(H100, "llama-3.1-70b", 8, prefill(4_096), 169.6, 2, "held out"),
    StepRow(H100, "llama-3.1-70b", 8, prefill(32_768), 1_536, 1, "calibrated: attention"),
    StepRow(H100, "llama-3.1-70b", 8, decode(1, 1_024), 10.1, 1, "calibrated: all-reduce start"),
    StepRow(H100, "llama-3.1-70b", 8, decode(16, 4_096), 11.4, 1, "held out"),
    StepRow(H100, "llama-3.1-70b", 8, decode(64, 4_096), 15.4, 1, "held out"),
    StepRow(H100, "llama-3.1-70b", 8, decode(256, 1_024), 20.0, 1, "held out"),
    StepRow(H100, "llama-3.1-8b", 1, prefill(4_096), 90.1, 1, "held out"),
    StepRow(H100, "llama-3.1-8b", 1, decode(32, 4_096), 12.35, 1, "calibrated: memory"),
    StepRow(H200, "llama-3.1-70b", 8, prefill(4_096), 164.9, 2, "calibrated: products, NVLink"),
    StepRow(H200, "llama-3.1-70b", 8, decode(32, 4_096), 10.5, 3, "held out"),
)
# llm-d blog, 2026-08-17, measured: vLLM peak prefill 20,480 token/s at 8,192 tokens (0.40 s). The
# weight type is not given; ours is bf16.
MEASURED_ROWS: Final = (
    StepRow(H100, "qwen3-32b", 2, prefill(8_192), 400, 14, "held out, measured"),
)
ALL_ROWS: Final = AIC_ROWS + MEASURED_ROWS

# aiconfigurator-core 0.12.0, H200, Llama-3.1-70B TP8, 4,096 tokens: products 52.6 + 23.7 + 8.6
# + 7.5 ms, all-reduces 2 x 25.9, attention 6.7, the rest of 164.9. Attention is 41 % short:
# one constant serves long prompts, where it weighs 17 % of the step, and this one, at 4 %.
PARTS_OF_PREFILL: Final = (
    ("products", Efficiency(matmul=0.77 / 2), 92.4, 1),
    ("all-reduces", Efficiency(nvlink=0.84 / 2), 51.8 - 160 * 0.015, 1),
    ("memory", Efficiency(memory=0.84 / 2), 164.9 - 92.4 - 51.8 - 6.7, 9),
    ("attention", Efficiency(attention=0.70 / 2), 6.7, 42),
)
"""(part, default efficiencies with its own halved, published ms, tolerance in percent)."""


def part_of_prefill_ms(halved: Efficiency) -> float:
    """Return the time of one part: at half its efficiency the step is longer by once its time."""
    work, h200, shape = work_of("llama-3.1-70b", 8), gpu(H200), prefill(4_096)
    slower_ns = RooflineModel(work, h200, halved).mixed_step_ns(shape)
    return (slower_ns - RooflineModel(work, h200).mixed_step_ns(shape)) / 1e6


def row_figures(rows: Sequence[StepRow]) -> list[Figure]:
    """Return published and ours for every row."""
    return [Figure(f"{row}, ms", row.published_ms, row.estimate_ms) for row in rows]


def row_comparison(
    what: str,
    rows: Sequence[StepRow],
    limit: Limit,
    source: str = AIC,
    role: Role = Role.HELD_OUT,
) -> Comparison:
    """Return the comparison of some rows."""
    return Comparison(
        part="step-times",
        what=what,
        source=source,
        role=role,
        limit=limit,
        recompute=partial(row_figures, tuple(rows)),
    )


def _of(keep: Callable[[StepRow], bool]) -> Callable[[], list[Figure]]:
    rows = tuple(row for row in ALL_ROWS if keep(row))
    return partial(row_figures, rows)


def _part_figures() -> list[Figure]:
    return [
        Figure(f"{part}, ms", published, part_of_prefill_ms(halved))
        for part, halved, published, _ in PARTS_OF_PREFILL
    ]


def _is_hopper(row: StepRow) -> bool:
    return row.gpu in {H100, H200} and row.model.startswith("llama")


COMPARISONS: Final = (
    Comparison(
        part="step-times",
        what="Llama-3.1 on H100 and H200",
        source=AIC,
        role=Role.HELD_OUT,
        limit=Limit(0.0125, 0.046),
        recompute=_of(lambda row: _is_hopper(row) and row.role == "held out"),
    ),
    Comparison(
        part="step-times",
        what="Llama-3.1 on H100 and H200, rows that chose a constant",
        source=AIC,
        role=Role.CALIBRATED,
        limit=Limit(0.006, 0.016),
        recompute=_of(lambda row: _is_hopper(row) and row.role != "held out"),
    ),
    Comparison(
        part="step-times",
        what="prefill, Qwen3-32B on 2 H100",
        source="llm-d blog, 2026-08-17, measured",
        role=Role.HELD_OUT,
        limit=Limit(0.13, 0.13),
        recompute=_of(lambda row: row.model == "qwen3-32b"),
    ),
    Comparison(
        part="step-times",
        what="parts of one prefill on H200, attention worst",
        source=AIC,
        role=Role.HELD_OUT,
        limit=Limit(0.13, 0.415),
        recompute=_part_figures,
    ),
)
