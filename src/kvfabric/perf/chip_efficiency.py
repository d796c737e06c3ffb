"""What kernels reach on each chip, with its source.

Each share was chosen on one measured operator or step, as Hopper's were; what was held out is in
``plan.validation``.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Final

from kvfabric.perf.efficiency import AIC, VLLM_019, Efficiency
from kvfabric.protocol.provenance import Source, SourceKind

_HOPPER_SOURCES: Final = MappingProxyType(
    {
        "matmul": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: Llama-3.1-70B TP8 H200, 4,096 prompt tokens, products 92.4 ms; at peak 70.9",
            "2026-11-30",
        ),
        "attention": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: Llama-3.1-70B TP8 H100, 32,768 prompt tokens, 1,536 ms; all else 1,285",
            "2026-11-30",
        ),
        "memory": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: Llama-3.1-8B TP1 H100, 32 decodes at 4,096 tokens, 12.35 ms; at peak 9.6",
            "2026-11-30",
        ),
        "nvlink": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: Llama-3.1-70B TP8 H200, 4,096 prompt tokens, 160 all-reduces in 51.8 ms",
            "2026-11-30",
        ),
        "all_reduce_ns": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: Llama-3.1-70B TP8 H100, 1 decode at 1,024 tokens, 10.1 ms; all else 7.7",
            "2026-11-30",
        ),
        "layer_ns": Source(
            SourceKind.MEASURED,
            "RTX PRO 6000 and RTX 4090 operator times at 1 token: 2 norms, rotary, activation and"
            f" attention take 18.6 and 17.8 us per layer ({VLLM_019})",
            "2026-04-24",
        ),
        "expert_layer_ns": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: one layer of routed experts on H200, Qwen3-235B bf16 and DeepSeek-V3 fp8,"
            " TP 1, 2, 4, 8, 27 batches of 1 to 16,384 tokens, power-law routing; 216 times",
            "2026-11-30",
        ),
        "latent_layer_ns": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: one layer's latent attention in decodes on H200, DeepSeek-V3 in bf16 and fp8,"
            " TP 1 to 16, 1 to 1,024 requests, contexts from 2 tokens; 1,840 times",
            "2026-11-30",
        ),
        "index_layer_ns": Source(
            SourceKind.PUBLISHED,
            f"{AIC}: one layer's sparse attention in decodes on H200, GLM-5 in bf16 and fp8,"
            " TP 1 to 16, 1 to 1,024 requests, contexts from 2 tokens; 1,840 times",
            "2026-11-30",
        ),
        "host_step_ns": Source(
            SourceKind.MEASURED,
            f"visible host time is at most 0.07 ms per step of up to 8 requests, {VLLM_019};"
            " synchronous scheduling adds 1 to 7 ms",
            "2026-11-30",
        ),
        "host_request_ns": Source(
            SourceKind.MEASURED,
            f"best single constant over two {VLLM_019}; chosen after seeing them",
            "2026-11-30",
        ),
    }
)

_OLD_AIC: Final = "aiconfigurator-core 0.12.0, vllm 0.14.0 tables"
_PROFILE: Final = "operator profile of Llama-3.1-8B, vLLM 0.19.0 (LLMServingSim, MIT)"


def _published(text: str) -> Source:
    return Source(SourceKind.PUBLISHED, text, "2026-12-01")


def _dense_sources(tables: str) -> dict[str, Source]:
    """Return the sources of a chip whose shares were read off Llama-3.1-8B on one GPU."""
    return {
        "matmul": _published(f"{tables}: Llama-3.1-8B TP1, 4,096 prompt tokens, products"),
        "attention": _published(f"{tables}: Llama-3.1-8B TP1, 32,768 prompt tokens, attention"),
        "memory": _published(f"{tables}: Llama-3.1-8B TP1, 32 decodes at 4,096 tokens"),
    }


def _nvlink_source(tables: str) -> Source:
    return _published(f"{tables}: Llama-3.1-70B TP8, 4,096 prompt tokens, 160 all-reduces")


_CHIPS: Final[Mapping[str, tuple[Efficiency, Mapping[str, Source]]]] = MappingProxyType(
    {
        "a100-sxm-80gb": (
            Efficiency(matmul=0.85, attention=0.56, memory=0.66, nvlink=0.68),
            _dense_sources(_OLD_AIC) | {"nvlink": _nvlink_source(_OLD_AIC)},
        ),
        "b200-sxm-180gb": (
            Efficiency(
                matmul=0.69,
                attention=0.55,
                memory=0.80,
                nvlink=0.63,
                expert_layer_ns=16_000,
                latent_layer_ns=33_000,
                index_layer_ns=146_000,
            ),
            _dense_sources(AIC)
            | {
                "nvlink": _nvlink_source(AIC),
                "expert_layer_ns": _published(
                    f"{AIC}: one layer of experts, Qwen3-235B bf16, DeepSeek-V3 fp8, 189 times"
                ),
                "latent_layer_ns": _published(f"{AIC}: decodes of DeepSeek-V3, 1,840 times"),
                "index_layer_ns": _published(f"{AIC}: decodes of GLM-5, 1,469 times"),
            },
        ),
        "l40s": (Efficiency(matmul=0.62, attention=0.51, memory=0.78), _dense_sources(AIC)),
        "rtx-4090": (
            Efficiency(matmul=1.0, attention=0.78, memory=0.88),
            {
                "matmul": Source(
                    SourceKind.MEASURED, f"{_PROFILE}: products of 2,048 tokens", "2026-04-24"
                ),
                "attention": Source(
                    SourceKind.MEASURED,
                    f"{_PROFILE}: 2,048 tokens behind 8,192",
                    "2026-04-24",
                ),
                "memory": Source(
                    SourceKind.MEASURED,
                    f"{_PROFILE}: one token's products 93 %, 32 decodes at 1,024 73 %, both 88 %",
                    "2026-04-24",
                ),
            },
        ),
    }
)
_FITTED: Final = MappingProxyType({"a100-sxm-80gb": _OLD_AIC, "rtx-4090": _PROFILE})
_HOPPER: Final = Efficiency()
_MEASURED_HOPPER: Final = frozenset({"h100-sxm-80gb", "h200-sxm-141gb"})


def efficiency_of(gpu_name: str) -> Efficiency:
    """Return what kernels reach on a chip of the catalog; on any other chip, what Hopper does."""
    return _CHIPS[gpu_name][0] if gpu_name in _CHIPS else _HOPPER


def is_measured(gpu_name: str) -> bool:
    """Return whether the shares of a chip were chosen on that chip."""
    return gpu_name in _CHIPS or gpu_name in _MEASURED_HOPPER


def fitted_to(gpu_name: str) -> str:
    """Return what the shares of a chip were chosen on, in words."""
    if not is_measured(gpu_name):
        return f"of Hopper, fitted to {AIC}"
    return f"fitted to {_FITTED.get(gpu_name, AIC)}"


def efficiency_sources(efficiency: Efficiency, gpu_name: str) -> dict[str, Source]:
    """Return the source of each value; one that is not the chip's own is its user's assumption."""
    own, own_sources = _CHIPS.get(gpu_name, (_HOPPER, {}))
    return {
        item.name: {**_HOPPER_SOURCES, **own_sources}[item.name]
        if getattr(efficiency, item.name) == getattr(own, item.name)
        else Source(SourceKind.ASSUMED, f"{item.name} {getattr(efficiency, item.name)} as given")
        for item in fields(efficiency)
    }
