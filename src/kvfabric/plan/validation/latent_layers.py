"""One layer of latent attention in the built-in roofline against measured kernels.

Projections, norms, rotary and attention of one layer. ``Efficiency.latent_layer_ns`` was chosen on
the decodes of DeepSeek-V3, ``index_layer_ns`` on those of GLM-5, both on H200: 1,840 times each, of
which 20 are carried here. Looking at H200 too, projections were given the 16-bit rate whatever the
weights. B200 has constants of its own, chosen on the same models. All else was held out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from kvfabric.catalog.gpus import gpu
from kvfabric.kvcache.parameters import LayerParameters, ParameterCount
from kvfabric.perf.chip_efficiency import efficiency_of
from kvfabric.perf.efficiency import AIC
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.work import ModelWork, work_from_geometry
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role
from kvfabric.plan.validation.kv_bytes import geometry_of
from kvfabric.plan.validation.step_times import B200, H100, H200, decode, prefill
from kvfabric.protocol.step import StepShape

DECODES: Final = ((1, 1_025), (1, 16_385), (32, 4_097), (256, 1_025), (256, 4_097))
"""Requests, and the context of each."""
V3, V32, GLM = "deepseek-v3", "deepseek-v3.2", "glm-5"
PROMPTS: Final = (256, 1_024, 4_096, 8_192, 16_384)
_SHORT: Final = 2_048  # vLLM takes over a millisecond to launch a sparse layer's prefill


@cache
def layer_work(model: str, tp: int, weights: str) -> ModelWork:
    """Return the work of one layer without feed-forward and all-reduces, which others measure."""
    geometry = geometry_of(model)
    assert geometry.parameters is not None, model
    whole = geometry.parameters.layers[0]
    layer = LayerParameters(dense=whole.latent, latent=whole.latent, replicated=whole.replicated)
    one = replace(
        geometry,
        num_layers=1,
        groups=tuple(replace(group, layers=(0,)) for group in geometry.groups),
        parameters=ParameterCount(embedding=0, output_head=0, final_norm=0, layers=(layer,)),
    )
    work = work_from_geometry(one, tp=tp, weights=weights)
    return replace(work, num_all_reduces=0, all_reduce_bytes_per_token=0)


@dataclass(frozen=True)
class LatentLayer:
    """Measured times of one layer, per entry of ``DECODES`` and of ``PROMPTS``; bf16 KV cache."""

    gpu: str
    model: str
    tp: int
    weights: str
    decode_us: tuple[float, ...]
    prompt_us: tuple[float, ...]

    def decodes(self) -> list[Figure]:
        """Return published and ours for the decodes."""
        return [
            layer_figure(self, f"D({num:,}, {context:,})", decode(num, context), published)
            for (num, context), published in zip(DECODES, self.decode_us, strict=True)
        ]

    def prompts(self, is_wanted: Callable[[int], bool] = bool) -> list[Figure]:
        """Return published and ours for the prompts of some lengths."""
        return [
            layer_figure(self, f"P {num_tokens:,}", prefill(num_tokens), published)
            for num_tokens, published in zip(PROMPTS, self.prompt_us, strict=True)
            if is_wanted(num_tokens)
        ]

    def short_prompts(self) -> list[Figure]:
        """Return published and ours for prompts whose launch takes longer than their work."""
        return self.prompts(lambda num_tokens: num_tokens < _SHORT)

    def long_prompts(self) -> list[Figure]:
        """Return published and ours for all others."""
        return self.prompts(lambda num_tokens: num_tokens >= _SHORT)


def layer_figure(layer: LatentLayer, step: str, shape: StepShape, published_us: float) -> Figure:
    """Return published and ours for one step of a layer."""
    work = layer_work(layer.model, layer.tp, layer.weights)
    no_host = replace(efficiency_of(layer.gpu), host_step_ns=0, host_request_ns=0)
    estimate_ns = RooflineModel(work, gpu(layer.gpu), no_host).mixed_step_ns(shape)
    name = f"{layer.model} {layer.weights} tp{layer.tp} {layer.gpu} {step}, us"
    return Figure(name, published_us, estimate_ns / 1e3)


# aiconfigurator-core 0.12.0, vllm 0.24.0 tables of whole latent and sparse attention modules, read
# 2026-11-30; a rank has the heads of its share.
LATENT_H200: Final = (
    LatentLayer(H200, V3, 1, "bf16", (173, 183, 254, 440, 741), (304, 817, 3_400, 8_304, 23_437)),
    LatentLayer(H200, V3, 1, "fp8", (138, 154, 229, 422, 718), (287, 709, 2_936, 7_265, 20_646)),
    LatentLayer(H200, V3, 8, "bf16", (91, 104, 148, 211, 413), (144, 231, 723, 1_558, 3_834)),
    LatentLayer(H200, V3, 8, "fp8", (93, 105, 149, 217, 417), (135, 237, 700, 1_551, 3_683)),
)
LATENT_H100: Final = (
    LatentLayer(H100, V3, 1, "bf16", (215, 231, 306, 492, 808), (344, 848, 3_532, 8_385, 23_422)),
    LatentLayer(H100, V3, 1, "fp8", (157, 175, 256, 461, 776), (311, 745, 3_067, 7_472, 20_742)),
    LatentLayer(H100, V3, 8, "bf16", (100, 112, 170, 251, 547), (153, 236, 748, 1_661, 3_960)),
    LatentLayer(H100, V3, 8, "fp8", (97, 109, 167, 250, 546), (142, 244, 731, 1_624, 3_851)),
)
SPARSE_H200: Final = (
    LatentLayer(
        H200, GLM, 1, "bf16", (234, 276, 317, 446, 565), (1_304, 1_432, 4_301, 8_997, 19_007)
    ),
    LatentLayer(
        H200, GLM, 1, "fp8", (234, 276, 294, 401, 519), (1_693, 1_638, 4_003, 8_379, 17_860)
    ),
    LatentLayer(
        H200, GLM, 8, "bf16", (200, 240, 277, 336, 453), (1_297, 1_391, 2_802, 5_948, 12_950)
    ),
    LatentLayer(
        H200, GLM, 8, "fp8", (199, 242, 255, 318, 435), (1_689, 1_628, 2_838, 5_918, 12_927)
    ),
)
OTHER_SPARSE: Final = (
    LatentLayer(
        H200, V32, 1, "fp8", (235, 278, 302, 512, 668), (1_491, 1_673, 6_308, 13_493, 28_716)
    ),
    LatentLayer(
        H200, V32, 8, "fp8", (191, 233, 250, 329, 448), (1_577, 1_546, 3_164, 6_750, 14_911)
    ),
    LatentLayer(
        H100, GLM, 1, "bf16", (279, 319, 365, 512, 672), (1_504, 1_366, 4_523, 9_348, 19_646)
    ),
    LatentLayer(
        H100, GLM, 1, "fp8", (255, 297, 319, 456, 618), (1_919, 1_671, 4_226, 8_711, 18_455)
    ),
    LatentLayer(
        H100, GLM, 8, "bf16", (212, 255, 296, 385, 544), (1_479, 1_384, 2_861, 6_069, 13_068)
    ),
    LatentLayer(
        H100, GLM, 8, "fp8", (208, 250, 264, 357, 521), (1_594, 1_677, 2_920, 6_069, 12_998)
    ),
    LatentLayer(
        H100, V32, 1, "fp8", (260, 301, 330, 557, 742), (1_574, 1_690, 6_594, 13_840, 29_382)
    ),
    LatentLayer(
        H100, V32, 8, "fp8", (203, 242, 260, 372, 535), (1_554, 1_699, 3_244, 6_900, 14_974)
    ),
)
LATENT_B200: Final = (
    LatentLayer(B200, V3, 1, "fp8", (91, 115, 139, 285, 446), (122, 264, 1_171, 3_023, 8_930)),
    LatentLayer(B200, V3, 8, "fp8", (52, 60, 95, 142, 294), (67, 106, 279, 586, 1_489)),
)
SPARSE_B200: Final = (
    LatentLayer(
        B200, GLM, 1, "fp8", (200, 228, 269, 389, 503), (2_151, 2_117, 3_194, 6_400, 13_476)
    ),
    LatentLayer(
        B200, GLM, 8, "fp8", (146, 159, 245, 312, 406), (2_076, 2_101, 2_306, 4_657, 9_812)
    ),
)
OTHER_B200: Final = (
    LatentLayer(
        B200, V32, 1, "fp8", (193, 210, 264, 404, 502), (1_402, 1_420, 3_548, 7_303, 15_484)
    ),
    LatentLayer(
        B200, V32, 8, "fp8", (144, 152, 224, 325, 415), (1_495, 1_504, 2_441, 5_087, 11_045)
    ),
)


CHUNKS: Final = (
    (1_024, 4_096),
    (1_024, 32_768),
    (2_048, 16_384),
    (2_048, 131_072),
    (8_192, 4_096),
    (8_192, 32_768),
    (8_192, 131_072),
)
"""Tokens of one prompt, and those of its history."""
# aiconfigurator-core 0.12.0, sglang 0.5.14 tables, read 2026-11-30: GLM-5 in bf16. Those of vLLM
# have no history beyond 128 tokens.
BEHIND_HISTORY: Final = (
    (H200, 1, (1_206, 1_522, 2_495, 5_214, 9_380, 12_141, 22_481)),
    (H200, 4, (1_083, 1_227, 1_907, 4_551, 6_447, 9_083, 19_531)),
    (H200, 8, (1_125, 1_172, 1_791, 4_436, 5_916, 8_520, 18_882)),
    (H100, 1, (1_246, 1_578, 2_566, 5_314, 9_482, 12_440, 22_778)),
    (H100, 4, (1_086, 1_268, 1_938, 4_700, 6_444, 9_067, 19_755)),
    (H100, 8, (1_103, 1_201, 1_792, 4_562, 5_922, 8_621, 19_207)),
)
"""GPU, tensor-parallel ranks, and us of one layer per entry of ``CHUNKS``."""


def _chunk_figures() -> list[Figure]:
    return [
        layer_figure(
            LatentLayer(chip, GLM, tp, "bf16", (), ()),
            f"{num_tokens:,} behind {num_history:,}",
            StepShape(0, 0, ((num_tokens, num_history),)),
            published_us,
        )
        for chip, tp, times_us in BEHIND_HISTORY
        for (num_tokens, num_history), published_us in zip(CHUNKS, times_us, strict=True)
    ]


def _figures(
    layers: Sequence[LatentLayer], of_one: Callable[[LatentLayer], list[Figure]]
) -> list[Figure]:
    return [figure for layer in layers for figure in of_one(layer)]


def _comparison(
    what: str,
    layers: Sequence[LatentLayer],
    of_one: Callable[[LatentLayer], list[Figure]],
    limit: Limit,
    role: Role = Role.HELD_OUT,
) -> Comparison:
    return Comparison(
        part="step-times",
        what=what,
        source=AIC,
        role=role,
        limit=limit,
        recompute=partial(_figures, tuple(layers), of_one),
    )


COMPARISONS: Final = (
    _comparison(
        "latents of one layer, decodes, H200 (2 constants)",
        LATENT_H200 + SPARSE_H200,
        LatentLayer.decodes,
        Limit(0.08, 0.245),
        Role.CALIBRATED,
    ),
    _comparison(
        "latents of one layer, decodes, H100, V3.2 on H200",
        LATENT_H100 + OTHER_SPARSE,
        LatentLayer.decodes,
        Limit(0.08, 0.285),
    ),
    _comparison(
        "latents of one layer, prompts, H200 and H100",
        LATENT_H200 + LATENT_H100,
        LatentLayer.prompts,
        Limit(0.1, 0.29),
    ),
    _comparison(
        "sparse latents, prompts from 4,096, H200 and H100",
        SPARSE_H200 + OTHER_SPARSE,
        LatentLayer.long_prompts,
        Limit(0.155, 0.245),
    ),
    Comparison(
        part="step-times",
        what="sparse latents, prompts behind 4,096 to 131,072",
        source="aiconfigurator-core 0.12.0, sglang 0.5.14 tables",
        role=Role.HELD_OUT,
        limit=Limit(0.045, 0.25),
        recompute=_chunk_figures,
    ),
    _comparison(
        "sparse latents, prompts to 1,024, H200 and H100",
        SPARSE_H200 + OTHER_SPARSE,
        LatentLayer.short_prompts,
        Limit(0.69, 0.86),
    ),
    _comparison(
        "latents of one layer, decodes, B200 (2 constants)",
        LATENT_B200 + SPARSE_B200,
        LatentLayer.decodes,
        Limit(0.175, 0.4),
        Role.CALIBRATED,
    ),
    _comparison(
        "latents of one layer, decodes, V3.2 on B200",
        OTHER_B200,
        LatentLayer.decodes,
        Limit(0.185, 0.43),
    ),
    _comparison(
        "latents of one layer, prompts, B200", LATENT_B200, LatentLayer.prompts, Limit(0.34, 0.52)
    ),
    _comparison(
        "sparse latents, prompts from 4,096, B200",
        SPARSE_B200 + OTHER_B200,
        LatentLayer.long_prompts,
        Limit(0.32, 0.44),
    ),
)
