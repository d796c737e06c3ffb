"""The bandwidth from which on fetching a prefix pays, against Mooncake's two figures."""

from typing import Final

from kvfabric.perf.prefix_bandwidth import MooncakeModel, mooncake_min_bytes_per_s
from kvfabric.plan.validation.comparison import Comparison, Figure, Limit, Role

# Data sheets, dense bf16: A800 312, H800 989 TFLOP/s.
A800_X8: Final = 8 * 312 * 10**12
H800_X8: Final = 8 * 989 * 10**12

PUBLISHED: Final = (("8 A800", A800_X8, 6), ("8 H800", H800_X8, 19))
"""(GPUs, operations/s, GB/s): Mooncake FAST'25, section 3: LLaMA3-70B, 8,192 prefix tokens."""

PREFIX_TOKENS: Final = 8_192


def least_gb_per_s(flops: int) -> int:
    """Return the least bandwidth in whole GB/s, as the paper prints it."""
    return round(mooncake_min_bytes_per_s(MooncakeModel(), PREFIX_TOKENS, flops) / 1e9)


def _figures() -> list[Figure]:
    return [Figure(f"{gpus}, GB/s", said, least_gb_per_s(flops)) for gpus, flops, said in PUBLISHED]


COMPARISONS: Final = (
    Comparison(
        part="prefix-cache",
        what="least bandwidth at which a fetch pays, whole GB/s",
        source="Mooncake FAST'25; its constants inferred from the two",
        role=Role.CALIBRATED,
        limit=Limit(0, 0),
        recompute=_figures,
    ),
)
