"""GPUs by name: memory, peak rates and scale-up links, each from a named source.

Peaks are dense (without structured sparsity). Vendors write "80 GB" for 80 x 2^30 bytes; the driver
shows a little less, which is what an engine can use.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from kvfabric.errors import ConfigError
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        name: catalog key.
        memory_bytes: nameplate memory.
        visible_bytes: memory that the driver shows to an engine.
        bf16_flops: dense bfloat16 FLOP/s.
        fp8_flops: dense 8-bit floating-point FLOP/s, or None without such units.
        memory_bandwidth: peak memory bandwidth in bytes per second.
        nvlink_bytes_per_s: scale-up bandwidth per direction, or None without NVLink.
        source: where memory size and peaks were read.
        visible_source: where the visible memory comes from.
    """

    name: str
    memory_bytes: int
    visible_bytes: int
    bf16_flops: int
    fp8_flops: int | None
    memory_bandwidth: int
    nvlink_bytes_per_s: int | None
    source: Source
    visible_source: Source


_TERA = 10**12
_GIGA = 10**9

# The median over the six cards here whose visible memory was read: 0.990 (0.928 to 0.992).
_VISIBLE_PER_MILLE = 990
ASSUMED_VISIBLE = Source(
    SourceKind.ASSUMED, "99.0 % of the nameplate memory, as most cards of this catalog show"
)


def _datasheet(text: str) -> Source:
    return Source(SourceKind.DATASHEET, text)


def _published(text: str) -> Source:
    return Source(SourceKind.PUBLISHED, text)


def _visible(memory_bytes: int) -> int:
    return memory_bytes * _VISIBLE_PER_MILLE // 1000


_GPUS = (
    Gpu(
        name="a100-sxm-80gb",
        memory_bytes=80 * GIB,
        visible_bytes=7915 * GIB // 100,
        bf16_flops=312 * _TERA,
        fp8_flops=None,
        memory_bandwidth=2_039 * _GIGA,
        nvlink_bytes_per_s=300 * _GIGA,
        source=_datasheet("NVIDIA A100 80GB SXM: 312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s"),
        visible_source=_published("PyTorch out-of-memory messages on A100 80GB: 79.15 GiB"),
    ),
    Gpu(
        name="h20-sxm-96gb",
        memory_bytes=96 * GIB,
        visible_bytes=_visible(96 * GIB),
        bf16_flops=148 * _TERA,
        fp8_flops=296 * _TERA,
        memory_bandwidth=4_000 * _GIGA,
        nvlink_bytes_per_s=450 * _GIGA,
        source=_published("NVIDIA H20: 96 GB, 148 / 296 TFLOP/s, 4.0 TB/s, NVLink 900 GB/s"),
        visible_source=ASSUMED_VISIBLE,
    ),
    Gpu(
        name="h100-sxm-80gb",
        memory_bytes=80 * GIB,
        visible_bytes=7919 * GIB // 100,
        bf16_flops=989_400 * _GIGA,
        fp8_flops=1_978_900 * _GIGA,
        memory_bandwidth=3_350 * _GIGA,
        nvlink_bytes_per_s=450 * _GIGA,
        source=_datasheet("NVIDIA H100 SXM: 989.4 / 1,978.9 TFLOP/s, 3.35 TB/s, NVLink 900 GB/s"),
        visible_source=Source(
            SourceKind.MEASURED,
            "vLLM 0.19.0 start-ups on H100 80GB: 79.19 GiB (llm-d-planner pull request 205)",
            "2026-04-22",
        ),
    ),
    Gpu(
        name="h200-sxm-141gb",
        memory_bytes=141 * GIB,
        visible_bytes=13980 * GIB // 100,
        bf16_flops=989_400 * _GIGA,
        fp8_flops=1_978_900 * _GIGA,
        memory_bandwidth=4_800 * _GIGA,
        nvlink_bytes_per_s=450 * _GIGA,
        source=_datasheet("NVIDIA H200 SXM: peaks of H100 SXM, 141 GB, 4.8 TB/s, NVLink 900 GB/s"),
        visible_source=_published("PyTorch out-of-memory messages on H200: 139.80 GiB"),
    ),
    Gpu(
        name="b200-sxm-180gb",
        memory_bytes=180 * GIB,
        visible_bytes=17835 * GIB // 100,
        bf16_flops=2_250 * _TERA,
        fp8_flops=4_500 * _TERA,
        memory_bandwidth=8_000 * _GIGA,
        nvlink_bytes_per_s=900 * _GIGA,
        source=_datasheet(
            "NVIDIA DGX B200, an eighth of it: 1,440 GB, 36 PFLOP/s fp8 dense, 64 TB/s"
        ),
        visible_source=_published("PyTorch out-of-memory messages on B200: 178.35 GiB"),
    ),
    Gpu(
        name="l40s",
        memory_bytes=48 * GIB,
        visible_bytes=4453 * GIB // 100,
        bf16_flops=362_050 * _GIGA,
        fp8_flops=733 * _TERA,
        memory_bandwidth=864 * _GIGA,
        nvlink_bytes_per_s=None,
        source=_datasheet("NVIDIA L40S: 362.05 / 733 TFLOP/s, 48 GB with ECC, 864 GB/s"),
        visible_source=_published("PyTorch out-of-memory messages on L40S: 44.53 GiB"),
    ),
    Gpu(
        name="rtx-4090",
        memory_bytes=24 * GIB,
        visible_bytes=25_250_627_584,
        bf16_flops=165_200 * _GIGA,
        fp8_flops=330_300 * _GIGA,
        memory_bandwidth=1_008 * _GIGA,
        nvlink_bytes_per_s=None,
        source=_datasheet("NVIDIA Ada whitepaper: 165.2 / 330.3 TFLOP/s (32-bit sums), 1,008 GB/s"),
        visible_source=Source(
            SourceKind.MEASURED, "LLMServingSim, vLLM 0.19.0 run on an RTX 4090", "2026-08-20"
        ),
    ),
)
_GPU_BY_NAME = {gpu.name: gpu for gpu in _GPUS}


def gpu_names() -> tuple[str, ...]:
    """Return all catalog names."""
    return tuple(_GPU_BY_NAME)


def gpu(name: str, *, where: str = "") -> Gpu:
    """Return the GPU of this catalog name.

    Raises:
        ConfigError: there is none; names the closest.
    """
    if name not in _GPU_BY_NAME:
        close = get_close_matches(name.lower(), _GPU_BY_NAME, n=3, cutoff=0.3) or _GPU_BY_NAME
        raise ConfigError(
            f"unknown GPU {name!r}", where=where, hint=f"Did you mean {', '.join(close)}?"
        )
    return _GPU_BY_NAME[name]
