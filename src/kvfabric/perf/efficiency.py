"""Shares of the peaks that kernels reach and fixed costs of a step."""

from dataclasses import dataclass
from typing import Final

from kvfabric.errors import ConfigError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """How much of the peaks real kernels reach, and what a step costs beside them.

    The defaults were chosen once, on Hopper; ``chip_efficiency`` has those of other chips and says
    from what all were.

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
