"""One layer of routed experts in the built-in roofline against measured kernels.

The constant ``Efficiency.expert_layer_ns`` was chosen on 216 times: the first two models on H200,
4 tensor-parallel sizes each, 27 batches of 1 to 16,384 tokens; of those, two sizes and six batches
are carried here. B200 has one of its own, chosen on the same models (189 times). All other models
and H100 were held out. The source routes tokens by a power law, as it does by default: exponent
1.01 for DeepSeek-V3, Kimi-K2 and GLM-5, 1.2 for all others; ours are uniform.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvfabric.catalog.gpus import gpu
from kvfabric.perf.efficiency import AIC
from kvfabric.perf.roofline import RooflineModel
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role
from kvfabric.plan.validation.step_times import B200, H100, H200, prefill, work_of

NUM_TOKENS: Final = (1, 32, 256, 1_024, 4_096, 16_384)


@dataclass(frozen=True)
class ExpertLayer:
    """Measured times of the routed experts of one layer, one per entry of ``NUM_TOKENS``."""

    gpu: str
    model: str
    tp: int
    published_us: tuple[float, ...]

    def estimate_us(self, num_tokens: int) -> float:
        """Return our time: what a step is longer for its experts, per layer that has them."""
        work, chip = work_of(self.model, self.tp), gpu(self.gpu)
        assert work.experts is not None, self.model
        shape = prefill(num_tokens)
        whole_ns = RooflineModel(work, chip).mixed_step_ns(shape)
        rest_ns = RooflineModel(replace(work, experts=None), chip).mixed_step_ns(shape)
        return (whole_ns - rest_ns) / work.experts.num_layers / 1e3

    def figures(self) -> list[Figure]:
        """Return published and ours for every number of tokens."""
        name = f"{self.model} tp{self.tp} {self.gpu}"
        return [
            Figure(f"{name} {num_tokens:,} tokens, us", published, self.estimate_us(num_tokens))
            for num_tokens, published in zip(NUM_TOKENS, self.published_us, strict=True)
        ]


# aiconfigurator-core 0.12.0, vllm 0.24.0 tables of routed experts, read 2026-11-30. DeepSeek-V3 and
# Kimi-K2 are measured in fp8 with block scales, gpt-oss in mxfp4, all others in bf16.
# Experts in fp8 with one scale per tensor are left out: the kernel that was measured reads weights
# at 15 % of the memory bandwidth.
CALIBRATED: Final = (
    ExpertLayer(H200, "qwen3-235b-a22b", 1, (93.5, 930.6, 1_214.2, 1_560.6, 3_072.1, 9_548.3)),
    ExpertLayer(H200, "qwen3-235b-a22b", 8, (31.9, 153.4, 224.4, 339.1, 699.7, 2_189.5)),
    ExpertLayer(H200, "deepseek-v3", 1, (114.7, 1_283.9, 2_341.0, 3_015.9, 6_221.3, 19_654.0)),
    ExpertLayer(H200, "deepseek-v3", 8, (56.8, 247.6, 408.0, 611.3, 1_450.6, 4_782.9)),
)
OTHER_MODELS: Final = (
    ExpertLayer(H200, "qwen3-30b-a3b", 1, (39.2, 267.3, 359.6, 442.5, 856.9, 2_631.0)),
    ExpertLayer(H200, "mixtral-8x7b", 2, (106.0, 399.1, 494.6, 704.7, 2_329.4, 8_929.3)),
    ExpertLayer(H200, "glm-5", 8, (48.7, 350.0, 592.6, 795.7, 1_409.1, 3_974.4)),
    ExpertLayer(H200, "kimi-k2", 8, (58.8, 297.3, 622.5, 817.9, 1_643.2, 5_009.6)),
)
ON_H100: Final = (
    ExpertLayer(H100, "qwen3-235b-a22b", 8, (33.7, 202.2, 277.7, 339.5, 761.8, 2_385.0)),
    ExpertLayer(H100, "deepseek-v3", 8, (64.1, 273.3, 548.4, 706.8, 1_550.8, 5_073.4)),
    ExpertLayer(H100, "qwen3-30b-a3b", 1, (47.8, 359.3, 459.7, 554.0, 1_029.7, 3_054.4)),
    ExpertLayer(H100, "mixtral-8x7b", 2, (141.4, 515.7, 569.0, 808.4, 2_310.7, 8_796.6)),
)
MXFP4: Final = (
    ExpertLayer(H100, "gpt-oss-120b", 1, (62.9, 339.1, 757.0, 1_375.5, 2_589.7, 7_059.3)),
    ExpertLayer(H200, "gpt-oss-120b", 1, (60.0, 330.7, 747.0, 1_378.1, 2_595.4, 7_144.1)),
)
CALIBRATED_B200: Final = (
    ExpertLayer(B200, "qwen3-235b-a22b", 4, (22.2, 156.9, 231.2, 272.1, 483.7, 1_538.9)),
    ExpertLayer(B200, "deepseek-v3", 8, (37.9, 131.0, 267.7, 475.3, 753.4, 2_498.6)),
)
OTHER_B200: Final = (
    ExpertLayer(B200, "qwen3-30b-a3b", 1, (19.0, 157.3, 224.7, 257.8, 442.2, 1_384.1)),
)


def _figures(layers: tuple[ExpertLayer, ...]) -> list[Figure]:
    return [figure for layer in layers for figure in layer.figures()]


def _comparison(
    what: str, layers: tuple[ExpertLayer, ...], limit: Limit, role: Role = Role.HELD_OUT
) -> Comparison:
    return Comparison(
        part="step-times",
        what=f"experts of one layer, {what}",
        source=AIC,
        role=role,
        limit=limit,
        recompute=partial(_figures, layers),
    )


COMPARISONS: Final = (
    _comparison(
        "H200, 2 models that chose a constant", CALIBRATED, Limit(0.145, 0.45), Role.CALIBRATED
    ),
    _comparison("H200, 4 other models", OTHER_MODELS, Limit(0.1, 0.36)),
    _comparison("H100, 4 models", ON_H100, Limit(0.125, 0.35)),
    _comparison("mxfp4, H100 and H200", MXFP4, Limit(0.25, 0.45)),
    _comparison(
        "B200, 2 models that chose a constant", CALIBRATED_B200, Limit(0.155, 0.4), Role.CALIBRATED
    ),
    _comparison("B200, Qwen3-30B", OTHER_B200, Limit(0.16, 0.475)),
)
