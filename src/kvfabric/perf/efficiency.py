"""Shares of the peaks that kernels reach and fixed costs of a step, each with its source."""

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind

_SHARES: Final = ("matmul", "attention", "memory", "nvlink")
_TIMES: Final = (
    "all_reduce_ns",
    "layer_ns",
    "expert_layer_ns",
    "latent_layer_ns",
    "index_layer_ns",
    "host_step_ns",
    "host_request_ns",
)

AIC: Final = "aiconfigurator-core 0.12.0, vllm 0.24.0 tables"
VLLM_019: Final = "real vLLM 0.19.0 runs of Llama-3.1-8B (LLMServingSim, MIT)"

EFFICIENCY_SOURCES: Final = MappingProxyType(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """How much of the peaks real kernels reach, and what a step costs beside them.

    The defaults were chosen once; ``EFFICIENCY_SOURCES`` says from what.

    Attributes:
        matmul: share of the peak that matrix products reach; routed experts and projections of
            latent attention, of the 16-bit peak.
        attention: share of the peak that prefill attention reaches.
        memory: share of the memory bandwidth that reads reach.
        nvlink: share of the NVLink rate that all-reduces reach.
        all_reduce_ns: start of one all-reduce.
        layer_ns: small kernels of one layer, whatever the batch.
        expert_layer_ns: start of the kernels of one layer's routed experts, beside ``layer_ns``.
        latent_layer_ns: small kernels of one layer's latent attention, beside ``layer_ns``.
        index_layer_ns: start of the index of one layer's sparse attention, beside both.
        host_step_ns: host time per step that the GPU waits for.
        host_request_ns: the same per request in the step.
    """

    matmul: float = 0.77
    attention: float = 0.70
    memory: float = 0.84
    nvlink: float = 0.84
    all_reduce_ns: int = 15_000
    layer_ns: int = 18_000
    expert_layer_ns: int = 27_000
    latent_layer_ns: int = 76_000
    index_layer_ns: int = 107_000
    host_step_ns: int = 70_000
    host_request_ns: int = 7_000

    def __post_init__(self) -> None:
        """Refuse shares outside (0, 1] and negative times."""
        for name in _SHARES:
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(
                    f"efficiency {name} {getattr(self, name)!r}", hint="Write a share in (0, 1]"
                )
        for name in _TIMES:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} {getattr(self, name)!r}", hint="Write ns from 0")

    def sources(self) -> dict[str, Source]:
        """Return the source of each value; one that was changed is an assumption of its user."""
        default = Efficiency()
        return {
            item.name: EFFICIENCY_SOURCES[item.name]
            if getattr(self, item.name) == getattr(default, item.name)
            else Source(SourceKind.ASSUMED, f"{item.name} {getattr(self, item.name)} as given")
            for item in fields(self)
        }
