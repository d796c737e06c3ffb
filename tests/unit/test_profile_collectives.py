"""All-reduces by formula and by table, and where both refuse."""

import pytest
from profiles import MEASURED, curve

from kvfabric.errors import ConfigError
from kvfabric.perf.collectives import (
    PRESETS,
    AnalyticCollectives,
    MeasuredCollectives,
    gather_ns,
    preset_collectives,
)


def analytic(num_ranks: int, *, is_one_shot: bool = False) -> AnalyticCollectives:
    return AnalyticCollectives(
        num_ranks=num_ranks,
        alpha_ns=1_000,
        bus_bytes_per_s=10**9,
        source=MEASURED,
        is_one_shot=is_one_shot,
    )


@pytest.mark.parametrize(("num_ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_ring_moves_bus_bandwidth_factor_of_nccl_tests(num_ranks: int, factor: float) -> None:
    """Source: nccl-tests doc/PERFORMANCE.md, all-reduce moves 2 (n - 1) / n."""
    assert analytic(num_ranks).all_reduce_ns(8_000) == 1_000 + factor * 8_000


def test_one_shot_reads_every_other_rank() -> None:
    assert analytic(4, is_one_shot=True).all_reduce_ns(8_000) == 1_000 + 3 * 8_000


def test_gather_moves_half_of_an_all_reduce() -> None:
    assert gather_ns(analytic(4), 8_000) == 1_000 + 6_000


def test_table_is_exact_at_its_points_and_goes_on() -> None:
    model = MeasuredCollectives(2, curve({1_000: 5, 2_000: 7}), MEASURED)
    assert [model.all_reduce_ns(n) for n in (10, 1_000, 1_500, 2_000, 3_000)] == [
        5_000,
        5_000,
        6_000,
        7_000,
        9_000,
    ]


@pytest.mark.parametrize(
    ("num_bytes", "published_us"), [(139_264, 22.78), (2_228_224, 148.95), (20_971_520, 1309.13)]
)
def test_host_table_keeps_its_measurements(num_bytes: int, published_us: float) -> None:
    """Source: LLMServingSim profiler/perf/RTXPRO6000/hardware.yaml at e08dc38, all_reduce."""
    assert preset_collectives("pcie-host", 2).all_reduce_ns(num_bytes) == published_us * 1_000


def test_nvlink_table_meets_a_figure_it_was_not_made_from() -> None:
    """Source: aiconfigurator-core 0.12.0, Llama-3.1-70B TP8 H200, 4,096 prompt tokens: 160
    all-reduces of 67.1 MB in 51.8 ms, 324 us each."""
    found = preset_collectives("nvlink-h100", 8).all_reduce_ns(4_096 * 8_192 * 2)
    assert found == pytest.approx(324_000, rel=0.03)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=map(str, PRESETS))
def test_presets_never_fall_from_32_kib_on(preset: MeasuredCollectives) -> None:
    sizes = [32_768 << k for k in range(13)]
    times = [preset.all_reduce_ns(size) for size in sizes]
    assert times == sorted(times)
    assert preset.source.text


@pytest.mark.parametrize(("name", "num_ranks"), [("pcie-host", 4), ("nvlink", 2)])
def test_preset_that_was_not_measured_is_refused_with_the_known_ones(
    name: str, num_ranks: int
) -> None:
    with pytest.raises(ConfigError, match=r"perf\.collectives: .*nvlink-h100 of 2"):
        preset_collectives(name, num_ranks, where="perf.collectives")


def test_one_rank_has_no_collectives() -> None:
    with pytest.raises(ConfigError, match="among 1 ranks"):
        analytic(1)
