"""What an all-reduce among the ranks of one worker takes: an explicit input with its source."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from kvfabric.errors import ConfigError
from kvfabric.perf.curve import FS_PER_NS, FS_PER_US, Curve
from kvfabric.protocol.provenance import Source, SourceKind
from kvfabric.units import NS_PER_S, ceil_div


class CollectiveModel(Protocol):
    """How long collectives take among a fixed number of ranks. Pure; integer ns."""

    @property
    def num_ranks(self) -> int:
        """Return the ranks that take part."""
        ...

    @property
    def source(self) -> Source:
        """Return where the numbers come from."""
        ...

    def all_reduce_ns(self, num_bytes: int) -> int:
        """Return the time to sum a tensor of ``num_bytes`` that every rank holds in full."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticCollectives:
    """A fixed start and a bandwidth.

    A ring (or any reduce-scatter and all-gather) moves ``2 (n - 1) / n`` of the tensor per rank and
    direction, one-shot ``n - 1`` of it, in one step instead of two.

    Attributes:
        num_ranks: ranks that take part.
        alpha_ns: time of a collective of almost no bytes, all its steps together.
        bus_bytes_per_s: bandwidth per rank and direction: "busbw" of nccl-tests.
        source: where both come from.
        is_one_shot: every rank reads the whole tensor of every other.

    Source of the counts: nccl-tests, doc/PERFORMANCE.md, bus bandwidth.
    """

    num_ranks: int
    alpha_ns: int
    bus_bytes_per_s: int
    source: Source
    is_one_shot: bool = False

    def __post_init__(self) -> None:
        """Refuse ranks below 2, a negative start and no bandwidth."""
        _check_ranks(self.num_ranks)
        if self.alpha_ns < 0 or self.bus_bytes_per_s < 1:
            raise ConfigError(
                f"alpha {self.alpha_ns} ns, {self.bus_bytes_per_s} bytes/s",
                hint="Give ns from 0 and bytes/s above 0",
            )

    def all_reduce_ns(self, num_bytes: int) -> int:
        """Return the time to sum a tensor of ``num_bytes``, rounded up."""
        others, ranks = self.num_ranks - 1, self.num_ranks
        moved, parts = (others, 1) if self.is_one_shot else (2 * others, ranks)
        moving_ns = ceil_div(num_bytes * moved * NS_PER_S, parts * self.bus_bytes_per_s)
        return self.alpha_ns + moving_ns


@dataclass(frozen=True, slots=True)
class MeasuredCollectives:
    """Measured all-reduces, linear between sizes in bytes and beyond the last.

    ``times`` holds fs by bytes.
    """

    num_ranks: int
    times: Curve
    source: Source

    def __post_init__(self) -> None:
        """Refuse ranks below 2."""
        _check_ranks(self.num_ranks)

    def all_reduce_ns(self, num_bytes: int) -> int:
        """Return the time to sum a tensor of ``num_bytes``, rounded up."""
        return ceil_div(self.times.at(num_bytes), FS_PER_NS)


def gather_ns(model: CollectiveModel, num_bytes: int) -> int:
    """Return the time of an all-gather or reduce-scatter of ``num_bytes`` over all ranks.

    It moves ``(n - 1) / n`` of them per rank, as an all-reduce of half as many does (derived; two
    RTX PRO 6000 need 277 us to gather 16.8 MB and 241 us to reduce 8.4 MB, LLMServingSim
    profiler/perf/RTXPRO6000/hardware.yaml, 2026-09-26).
    """
    return model.all_reduce_ns(ceil_div(num_bytes, 2))


def _check_ranks(num_ranks: int) -> None:
    if num_ranks < 2:
        raise ConfigError(f"collectives among {num_ranks} ranks", hint="Give 2 ranks or more")


def _measured(
    num_ranks: int, points: dict[int, float], kind: SourceKind, text: str, date: str
) -> MeasuredCollectives:
    """Return a model from times in us by bytes."""
    times = tuple(round(us * FS_PER_US) for us in points.values())
    return MeasuredCollectives(num_ranks, Curve(tuple(points), times), Source(kind, text, date))


_HARDWARE: Final = "LLMServingSim (MIT) profiler/perf/RTXPRO6000/hardware.yaml: two RTX PRO 6000"
_HOST_TEXT: Final = (
    f"{_HARDWARE}, PCIe 5 x16, NCCL all-reduce replayed from a CUDA graph; 16 GB/s is what"
    " traffic through host memory reaches (our reading: the later 36 GB/s came with ACS and"
    " IOMMU turned off)"
)
_PEER_TEXT: Final = (
    f"{_HARDWARE}, PCIe 5 x16, ACS and IOMMU turned off, NCCL all-reduce replayed from a CUDA graph"
)
_NVLINK_TEXT: Final = (
    "vLLM custom all-reduce on H100 up to 1 MiB without CUDA graph (sglang pull request 2904);"
    " 64 MiB derived from 366 GB/s bus bandwidth on four H100 (nccl-collectives-bench, 2026-05-31)"
)
_MIB: Final = 1 << 20


def _nvlink(num_ranks: int, small_us: tuple[float, ...]) -> MeasuredCollectives:
    """Return the H100 table: measured to 1 MiB, then the bus bandwidth on top of the start."""
    points = dict(zip((512, 4_096, 32_768, 262_144, 524_288, _MIB), small_us, strict=True))
    moved = 64 * _MIB * 2 * (num_ranks - 1) / num_ranks
    points[64 * _MIB] = round(small_us[0] + moved / 366e3, 1)
    return _measured(num_ranks, points, SourceKind.PUBLISHED, _NVLINK_TEXT, "2025-01-15")


# By name and ranks. Nothing is scaled from one number of ranks to another.
PRESETS: Final = MappingProxyType(
    {
        ("nvlink-h100", 2): _nvlink(2, (9.5, 8.8, 8.7, 12.9, 17.7, 26.6)),
        ("nvlink-h100", 4): _nvlink(4, (9.1, 8.5, 9.2, 20.6, 26.9, 40.2)),
        ("nvlink-h100", 8): _nvlink(8, (10.1, 9.3, 11.8, 24.1, 30.4, 45.0)),
        ("pcie-host", 2): _measured(
            2,
            {
                10_240: 16.24,
                40_960: 17.5,
                139_264: 22.78,
                327_680: 30.6,
                557_056: 42.64,
                1_114_112: 78.36,
                1_310_720: 90.59,
                2_228_224: 148.95,
                5_242_880: 335.41,
                8_912_896: 566.73,
                16_777_216: 1_051.83,
                20_971_520: 1_309.13,
            },
            SourceKind.MEASURED,
            _HOST_TEXT,
            "2026-09-08",
        ),
        ("pcie-peer", 2): _measured(
            2,
            {
                4_096: 12.71,
                32_768: 14.52,
                131_072: 17.38,
                262_144: 21.72,
                524_288: 29.84,
                1_048_576: 41.04,
                2_097_152: 67.31,
                4_194_304: 124.87,
                8_388_608: 240.59,
                16_777_216: 471.12,
                20_971_520: 587.09,
            },
            SourceKind.MEASURED,
            _PEER_TEXT,
            "2026-09-26",
        ),
    }
)


def preset_collectives(name: str, num_ranks: int, *, where: str = "") -> MeasuredCollectives:
    """Return a measured model by name.

    Args:
        name: ``nvlink-h100``, ``pcie-host`` (no peer access) or ``pcie-peer``.
        num_ranks: ranks that take part.
        where: what names it, for messages.

    Raises:
        ConfigError: no such name, or not measured among so many ranks.
    """
    found = PRESETS.get((name, num_ranks))
    if found is None:
        known = ", ".join(f"{preset} of {ranks}" for preset, ranks in PRESETS)
        raise ConfigError(
            f"no measured collectives {name!r} among {num_ranks} ranks",
            where=where,
            hint=f"Give alpha and bus bandwidth, or one of: {known}",
        )
    return found
