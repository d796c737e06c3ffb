"""The bandwidth a reused prefix must have, against published and derived figures."""

from fractions import Fraction
from itertools import product

import pytest

from kvfabric.errors import ConfigError
from kvfabric.perf.prefix_bandwidth import (
    MooncakeModel,
    min_fetch_rate_bps,
    mooncake_min_bytes_per_s,
    prefill_kv_rate_bps,
    prefill_kv_rate_exact_bps,
)
from kvfabric.perf.work import causal_pairs
from kvfabric.plan.validation.prefix_bandwidth import (
    A800_X8,
    H800_X8,
    PUBLISHED,
    least_gb_per_s,
)


@pytest.mark.parametrize(("gpus", "flops", "published_gb_per_s"), PUBLISHED)
def test_mooncake_minimum_bandwidth_is_as_published(
    gpus: str, flops: int, published_gb_per_s: int
) -> None:
    assert least_gb_per_s(flops) == published_gb_per_s, gpus


def test_the_two_published_figures_leave_one_pair_of_constants() -> None:
    # a = 4 is 2 products of 2 operations per pair and element. With it, of all whole b only 21 and
    # 22 give both figures; 22 is taken for the paper's. A count of LLaMA3-70B's matrices gives 25.5
    # (attention 2.25 d^2, feed-forward 10.5 d^2, 2 operations each), which would give 5 and 16.
    fits = [
        linear
        for linear, (flops, figure) in product(range(15, 31), [(A800_X8, 6), (H800_X8, 19)])
        if round(mooncake_min_bytes_per_s(MooncakeModel(linear_flops=linear), 8_192, flops) / 1e9)
        == figure
    ]
    assert sorted(b for b in set(fits) if fits.count(b) == 2) == [21, 22]


def test_general_form_gives_mooncake_figure() -> None:
    # Equation 2 is bytes of the prefix over the time of its operations; 80 layers cancel.
    d, prefix = 8_192, 8_192
    num_bytes = 80 * prefix * 2 * d * 2 // 8
    saved_ns = 80 * (4 * prefix**2 * d + 22 * prefix * d**2) * 10**9 // A800_X8
    rate = min_fetch_rate_bps(num_bytes, saved_ns)
    assert rate / 8 == pytest.approx(mooncake_min_bytes_per_s(MooncakeModel(), 8_192, A800_X8))


def _prefill_ns(num_tokens: int, history: int) -> int:
    """Llama-3-70B on 8 x H100 at half their peak: 70e9 weights and causal attention."""
    linear = 2 * 70 * 10**9 * num_tokens
    attention = 80 * 4 * 8_192 * causal_pairs(num_tokens, history, None)
    return (linear + attention) * 10**9 // (8 * 989 * 10**12 // 2)


def test_prefill_of_32k_tokens_takes_the_derived_time() -> None:
    assert _prefill_ns(32_000, 0) / 1e9 == pytest.approx(1.47, abs=0.005)


@pytest.mark.parametrize(
    ("hit_rate", "gbit_per_s"), [(Fraction(0), 57), (Fraction(1, 2), 114), (Fraction(9, 10), 570)]
)
def test_kv_rate_grows_as_one_over_the_missed_share(hit_rate: Fraction, gbit_per_s: int) -> None:
    # Derived: 32,000 tokens x 327,680 bytes in 1.47 s (1 - h): 57 Gbit/s at h = 0, 570 at h = 0.9.
    rate = prefill_kv_rate_bps(32_000 * 327_680, _prefill_ns(32_000, 0), hit_rate)
    assert rate / 1e9 == pytest.approx(gbit_per_s, rel=0.002)


def test_attention_to_reused_tokens_lowers_the_rate() -> None:
    # New tokens still attend to the reused ones: 8.3 times instead of 10 at nine tenths.
    num_bytes = 32_000 * 327_680
    exact = [
        prefill_kv_rate_exact_bps(num_bytes, 32_000, hits, _prefill_ns)
        for hits in (0, 16_000, 28_800)
    ]
    law = [
        prefill_kv_rate_bps(num_bytes, _prefill_ns(32_000, 0), Fraction(hits, 32_000))
        for hits in (0, 16_000, 28_800)
    ]
    assert exact[0] == law[0]
    assert all(a < b for a, b in zip(exact[1:], law[1:], strict=True))
    assert exact[2] / exact[0] == pytest.approx(8.3, abs=0.05)


def test_what_cannot_be_weighed_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefix of 0 tokens"):
        mooncake_min_bytes_per_s(MooncakeModel(), 0, A800_X8)
    with pytest.raises(ConfigError, match="saves 0 ns"):
        min_fetch_rate_bps(1, 0)
    with pytest.raises(ConfigError, match="hit rate 1"):
        prefill_kv_rate_bps(1, 1, Fraction(1))
    with pytest.raises(ConfigError, match="5 of 5 tokens"):
        prefill_kv_rate_exact_bps(1, 5, 5, _prefill_ns)
