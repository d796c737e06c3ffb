"""40 start-ups of vLLM 0.19.0 on H100 80GB: the attention of each model, and what was logged.

Source: llm-d-planner pull request 205, accuracy/results/v0.19.0 (Apache-2.0, 2026-04-22); steps of
8,192 tokens, blocks of 16. The logs give KV memory to 0.01 GiB.
"""

from dataclasses import dataclass
from typing import Final

Shape = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class StartUp:
    """One start-up: attention of the model, its split, and what was logged.

    Attributes:
        name: model and what sets this run apart from others of it.
        shape: as ``heads`` and ``latent`` make it.
        tp: tensor-parallel ranks.
        pp: pipeline ranks.
        kv_element_bytes: bytes per cached element.
        max_model_len: tokens of the longest request.
        kv_gib: GiB for KV blocks; of the pipeline rank that binds.
        blocks: blocks of the pool.
        tokens: "GPU KV cache size".
        concurrency: "maximum concurrency" for requests of ``max_model_len`` tokens.
    """

    name: str
    shape: Shape
    tp: int
    pp: int
    kv_element_bytes: int
    max_model_len: int
    kv_gib: float
    blocks: int
    tokens: int
    concurrency: float


def heads(layers: int, kv_heads: int, head_dim: int, pattern: str = "", window: int = 0) -> Shape:
    """Return attention with KV heads; ``pattern`` is windowed : full layers."""
    shape: Shape = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim}
    return shape | ({"pattern": pattern, "window": window} if pattern else {})


def latent(layers: int, elements: int) -> Shape:
    """Return latent attention (MLA)."""
    return {"layers": layers, "latent": elements}


# fmt: off
START_UPS: Final = (
    StartUp("CodeLlama-7b-hf", heads(32, 32, 128), 1, 1, 2, 8_192, 61.66, 7_891, 126_256, 15.41),
    StartUp("DeepSeek-V2-Lite-Chat", latent(27, 576),
            1, 1, 2, 8_192, 43.61, 94_097, 1_505_552, 183.78),
    StartUp("Llama-3.3-70B-Instruct-fp8-dynamic", heads(80, 8, 128),
            4, 1, 2, 8_192, 54.09, 44_312, 708_992, 86.55),
    StartUp("Qwen2.5-7B-Instruct-fp8-dynamic", heads(28, 4, 128),
            1, 1, 2, 8_192, 64.64, 75_644, 1_210_304, 147.74),
    StartUp("gemma-2-2b-it", heads(26, 4, 256, "1:1", 4096),
            1, 1, 2, 8_192, 66.47, 83_770, 670_160, 81.73),
    StartUp("gemma-2-9b-it", heads(42, 8, 256, "1:1", 4096),
            1, 1, 2, 8_192, 54.12, 21_110, 168_880, 20.6),
    StartUp("gemma-3-27b-it", heads(62, 16, 128, "5:1", 1024),
            1, 1, 2, 8_192, 19.53, 15_997, 36_560, 4.46),
    StartUp("gemma-3-4b-it", heads(34, 4, 256, "5:1", 1024),
            1, 1, 2, 8_192, 62.51, 204_817, 468_144, 57.05),
    StartUp("granite-3.1-2b-instruct", heads(40, 8, 64),
            1, 1, 2, 8_192, 69.28, 56_753, 908_048, 110.85),
    StartUp("granite-3.1-8b-instruct", heads(40, 8, 128),
            1, 1, 2, 8_192, 58.66, 24_027, 384_432, 46.93),
    StartUp("granite-vision-3.3-2b", heads(40, 8, 64),
            1, 1, 2, 8_192, 68.65, 56_237, 899_792, 109.84),
    StartUp("Llama-3.1-8B-Instruct fp8 cache", heads(32, 8, 128),
            1, 1, 1, 8_192, 58.11, 59_502, 952_032, 116.21),
    StartUp("Llama-3.1-8B-Instruct fp8", heads(32, 8, 128),
            1, 1, 2, 8_192, 64.61, 33_078, 529_248, 64.61),
    StartUp("Llama-3.1-8B-Instruct fp16", heads(32, 8, 128),
            1, 1, 2, 8_192, 58.11, 29_751, 476_016, 58.11),
    StartUp("Llama-3.1-8B-Instruct", heads(32, 8, 128),
            1, 1, 2, 2_048, 58.11, 29_751, 476_016, 232.43),
    StartUp("Llama-3.1-8B-Instruct", heads(32, 8, 128),
            1, 1, 2, 4_096, 58.11, 29_751, 476_016, 116.21),
    StartUp("Llama-3.1-8B-Instruct", heads(32, 8, 128),
            1, 2, 2, 8_192, 65.63, 67_207, 1_075_312, 131.26),
    StartUp("Llama-3.1-8B-Instruct", heads(32, 8, 128),
            1, 4, 2, 8_192, 68.89, 141_079, 2_257_264, 275.54),
    StartUp("Llama-3.1-8B-Instruct", heads(32, 8, 128),
            4, 1, 2, 8_192, 67.44, 138_112, 2_209_792, 269.75),
    StartUp("Llama-3.1-8B-Instruct", heads(32, 8, 128),
            1, 1, 2, 16_384, 58.11, 29_751, 476_016, 29.05),
    StartUp("Llama-4-Scout-17B-16E-Instruct", heads(48, 8, 128, "3:1", 8192),
            4, 1, 2, 8_192, 16.75, 91_495, 365_968, 44.68),
    StartUp("phi-2", heads(32, 32, 80), 1, 1, 2, 2_048, 69.0, 14_132, 226_112, 110.41),
    StartUp("Mistral-Small-3.1-24B-Instruct-2503", heads(40, 8, 128),
            1, 1, 2, 8_192, 28.19, 11_547, 184_752, 22.55),
    StartUp("Mixtral-8x7B-Instruct-v0.1", heads(32, 8, 128),
            2, 1, 2, 8_192, 28.44, 29_121, 465_936, 56.88),
    StartUp("Kimi-Dev-72B", heads(80, 8, 128), 4, 1, 2, 8_192, 36.72, 30_081, 481_296, 58.75),
    StartUp("Kimi-VL-A3B-Instruct", latent(27, 576),
            1, 1, 2, 8_192, 41.32, 89_148, 1_426_368, 174.12),
    StartUp("gpt-oss-20b", heads(24, 8, 64, "1:1", 128),
            2, 1, 2, 8_192, 59.32, 323_972, 2_591_776, 316.07),
    StartUp("Qwen1.5-MoE-A2.7B", heads(24, 16, 128), 1, 1, 2, 8_192, 45.83, 15_644, 250_304, 30.55),
    StartUp("Qwen2.5-72B-Instruct", heads(80, 8, 128), 2, 1, 2, 8_192, 3.04, 1_245, 19_920, 2.43),
    StartUp("Qwen2.5-7B-Instruct", heads(28, 4, 128),
            1, 1, 2, 8_192, 58.53, 68_500, 1_096_000, 133.79),
    StartUp("Qwen2.5-7B-Instruct", heads(28, 4, 128),
            1, 1, 2, 32_768, 58.53, 68_500, 1_096_000, 33.45),
    StartUp("Qwen2.5-7B-Instruct", heads(28, 4, 128),
            1, 1, 2, 2_048, 58.53, 68_500, 1_096_000, 535.16),
    StartUp("Qwen2.5-7B-Instruct", heads(28, 4, 128),
            1, 1, 2, 8_192, 58.53, 68_500, 1_096_000, 133.79),
    StartUp("Qwen2.5-7B-Instruct", heads(28, 4, 128),
            2, 1, 2, 8_192, 63.84, 149_412, 2_390_592, 291.82),
    StartUp("Qwen3-30B-A3B", heads(48, 4, 128), 1, 1, 2, 8_192, 15.41, 10_518, 168_288, 20.54),
    StartUp("Qwen3-8B", heads(36, 8, 128), 1, 1, 2, 8_192, 57.5, 26_168, 418_688, 51.11),
    StartUp("Meta-Llama-3.1-8B-Instruct-quantized.w4a16", heads(32, 8, 128),
            1, 1, 2, 8_192, 67.71, 34_669, 554_704, 67.71),
    StartUp("Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8", heads(40, 8, 128),
            1, 1, 2, 8_192, 48.73, 19_959, 319_344, 38.98),
    StartUp("Meta-Llama-3.1-8B-Instruct-quantized.w8a8", heads(32, 8, 128),
            1, 1, 2, 8_192, 64.6, 33_075, 529_200, 64.6),
    StartUp("Qwen2.5-7B-Instruct-quantized.w8a8", heads(28, 4, 128),
            1, 1, 2, 8_192, 64.64, 75_642, 1_210_272, 147.74),
)
# fmt: on
