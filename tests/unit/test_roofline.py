"""The roofline, term by term, on a GPU of round numbers."""

from dataclasses import fields, replace

import pytest

from kvfabric.catalog.gpus import Gpu, gpu, gpu_names
from kvfabric.errors import ConfigError
from kvfabric.perf.chip_efficiency import efficiency_of, efficiency_sources, is_measured
from kvfabric.perf.efficiency import Efficiency
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.work import AttentionWork, ExpertWork, ModelWork
from kvfabric.protocol.provenance import SourceKind
from kvfabric.protocol.step import StepShape

# 1 operation or byte takes 1 ps, whatever does it.
ROUND_GPU: Gpu = replace(
    gpu("h100-sxm-80gb"),
    bf16_flops=10**12,
    fp8_flops=2 * 10**12,
    memory_bandwidth=10**12,
    nvlink_bytes_per_s=10**12,
)
IDEAL = Efficiency(
    matmul=1.0,
    attention=1.0,
    memory=1.0,
    nvlink=1.0,
    all_reduce_ns=0,
    layer_ns=0,
    expert_layer_ns=0,
    latent_layer_ns=0,
    index_layer_ns=0,
    host_step_ns=0,
    host_request_ns=0,
)
FULL = AttentionWork(
    prefill_flops_per_pair=3_000, decode_flops_per_pair=3_000, kv_bytes_per_token=5_000
)
WORK = ModelWork(
    tp=1,
    pp=1,
    num_layers=4,
    matmul_flops_per_token=1_000_000,
    head_flops_per_request=0,
    dense_weight_bytes=10_000_000,
    experts=None,
    attention=(FULL,),
    state_bytes_per_request=0,
    activation_bytes_per_token=0,
    all_reduce_bytes_per_token=0,
    num_all_reduces=0,
    is_fp8_matmul=False,
)
# Every token uses both experts: 64,000 ns to read them, whatever the batch.
EXPERTS = ExpertWork(
    num_experts=2,
    num_active=2,
    num_layers=3,
    weight_bytes=64_000_000,
    matmul_flops_per_token=0,
    row_bytes_per_token=0,
)


def decode_ns(work: ModelWork, num_decodes: int, context: int, given: Efficiency = IDEAL) -> int:
    return RooflineModel(work, ROUND_GPU, given).decode_run_ns(num_decodes, context, 1)


def prefill_ns(work: ModelWork, *chunks: tuple[int, int]) -> int:
    return RooflineModel(work, ROUND_GPU, IDEAL).mixed_step_ns(StepShape(0, 0, chunks))


def test_small_batch_waits_for_weights() -> None:
    assert decode_ns(WORK, 3, 0) == 10_000


def test_large_batch_waits_for_products() -> None:
    assert decode_ns(WORK, 30, 0) == 30_000


def test_decode_reads_cache_of_summed_context() -> None:
    assert decode_ns(WORK, 3, 70) == 10_000 + 70 * 5


def test_decode_with_costly_products_computes_them() -> None:
    latent = replace(FULL, decode_flops_per_pair=8_000)
    assert decode_ns(replace(WORK, attention=(latent,)), 3, 70) == 10_000 + 70 * 8


def test_window_caps_mean_context() -> None:
    work = replace(WORK, attention=(FULL, replace(FULL, window=10)))
    assert decode_ns(work, 3, 70) == 10_000 + 70 * 5 + 30 * 5


def test_context_below_window_is_read_whole() -> None:
    work = replace(WORK, attention=(FULL, replace(FULL, window=10)))
    assert decode_ns(work, 3, 27) == 10_000 + 2 * 27 * 5


def test_window_caps_mean_context_beside_prefill() -> None:
    model = RooflineModel(replace(WORK, attention=(replace(FULL, window=10),)), ROUND_GPU, IDEAL)
    # 30 tokens of cache for the decodes; the chunk has the pairs 1..10, then 10 for each query.
    assert model.mixed_step_ns(StepShape(3, 70, ((20, 0),))) == 23_000 + 30 * 5 + 155 * 3


@pytest.mark.parametrize("windows", [(10, 20), (20, 10)])
def test_run_bends_at_each_window_in_any_order(windows: tuple[int, int]) -> None:
    work = replace(WORK, attention=tuple(replace(FULL, window=window) for window in windows))
    # One request from 5 to 24 tokens.
    expected = sum(10_000 + 5 * (min(c, 10) + min(c, 20)) for c in range(5, 25))
    assert RooflineModel(work, ROUND_GPU, IDEAL).decode_run_ns(1, 5, 20) == expected


def test_prefill_computes_causal_pairs() -> None:
    # 20 products against 10 of weights; 20 * 21 / 2 pairs take 3 ns each.
    assert prefill_ns(WORK, (20, 0)) == 20_000 + 210 * 3


def test_short_chunk_behind_long_history_waits_for_cache() -> None:
    # One query: 101 pairs of 3 ns, but 101 tokens of 5 ns to read.
    assert prefill_ns(WORK, (1, 100)) == 10_000 + 101 * 5


def test_chunks_share_one_pass_over_the_weights() -> None:
    assert prefill_ns(WORK, (2, 0), (2, 0)) == 10_000 + 2 * max(3 * 3, 2 * 5)


def test_mixed_step_adds_decodes_and_chunks() -> None:
    model = RooflineModel(WORK, ROUND_GPU, IDEAL)
    assert model.mixed_step_ns(StepShape(3, 70, ((20, 0),))) == 23_000 + 70 * 5 + 210 * 3


@pytest.mark.parametrize("shape", [StepShape(0, 0), StepShape(0, 0, ((0, 9),))])
def test_step_without_work_takes_no_time(shape: StepShape) -> None:
    assert RooflineModel(WORK, ROUND_GPU, IDEAL).mixed_step_ns(shape) == 0


def test_head_runs_once_per_request() -> None:
    work = replace(WORK, head_flops_per_request=7_000_000)
    assert prefill_ns(work, (20, 0)) - prefill_ns(WORK, (20, 0)) == 7_000


def test_state_is_moved_once_per_request() -> None:
    work = replace(WORK, state_bytes_per_request=2_000)
    assert decode_ns(work, 3, 0) == 10_000 + 3 * 2


def test_activations_are_moved_per_token() -> None:
    work = replace(WORK, activation_bytes_per_token=2_000)
    assert decode_ns(work, 3, 0) == 10_000 + 3 * 2


def test_experts_touched_grow_with_tokens() -> None:
    work = replace(WORK, experts=replace(EXPERTS, num_experts=4, num_active=1))
    # 1/4, then 1 - (3/4)^2 = 7/16 of the experts' 64,000 ns.
    assert [decode_ns(work, n, 0) for n in (1, 2)] == [10_000 + 16_000, 10_000 + 28_000]


def test_reads_of_experts_hide_behind_no_products() -> None:
    assert decode_ns(replace(WORK, experts=EXPERTS), 30, 0) == 30_000 + 64_000


def test_products_of_experts_hide_behind_no_reads() -> None:
    work = replace(WORK, experts=replace(EXPERTS, matmul_flops_per_token=2_000_000))
    assert decode_ns(work, 3, 0) == 10_000 + 64_000 + 3 * 2_000


def test_products_of_experts_reach_the_share_of_all_products() -> None:
    work = replace(WORK, experts=replace(EXPERTS, matmul_flops_per_token=2_000_000))
    half = replace(IDEAL, matmul=0.5)
    assert decode_ns(work, 3, 0, half) == 10_000 + 64_000 + 3 * 4_000


def test_products_of_8_bit_experts_run_at_the_16_bit_peak() -> None:
    experts = replace(EXPERTS, matmul_flops_per_token=2_000_000)
    work = replace(WORK, experts=experts, is_fp8_matmul=True)
    assert decode_ns(work, 30, 0) == 15_000 + 64_000 + 30 * 2_000


def test_rows_of_experts_are_moved_per_token() -> None:
    work = replace(WORK, experts=replace(EXPERTS, row_bytes_per_token=5_000))
    assert decode_ns(work, 3, 0) == 10_000 + 64_000 + 3 * 5


def test_experts_start_once_per_layer_that_has_them() -> None:
    given = replace(IDEAL, expert_layer_ns=100)
    assert decode_ns(replace(WORK, experts=EXPERTS), 3, 0, given) == 74_000 + 3 * 100
    assert decode_ns(WORK, 3, 0, given) == 10_000


def test_projections_of_latent_attention_multiply_in_16_bits() -> None:
    # 1,000,000 operations a token take 1,000 ns in 16 bits and 500 in 8: 600 of them stay at 600.
    work = replace(WORK, is_fp8_matmul=True, latent_flops_per_token=600_000)
    assert decode_ns(work, 30, 0) == 30 * (600 + 200)
    assert decode_ns(replace(work, is_fp8_matmul=False), 30, 0) == 30 * 1_000


def test_latent_attention_and_its_index_start_once_per_layer_that_has_them() -> None:
    work = replace(WORK, num_latent_layers=3, num_index_layers=2)
    given = replace(IDEAL, latent_layer_ns=100, index_layer_ns=10)
    assert decode_ns(work, 3, 0, given) == 10_000 + 3 * 100 + 2 * 10
    assert decode_ns(WORK, 3, 0, given) == 10_000


def test_all_reduce_moves_its_share_both_ways() -> None:
    work = replace(WORK, tp=4, all_reduce_bytes_per_token=1_000, num_all_reduces=8)
    # 8 calls x 2 x 3/4 x 1 ns per token.
    assert decode_ns(work, 3, 0) == 10_000 + 3 * 12


def test_fixed_costs_are_per_step_layer_call_and_request() -> None:
    work = replace(WORK, tp=4, num_all_reduces=8)
    given = replace(IDEAL, host_step_ns=1, layer_ns=10, all_reduce_ns=100, host_request_ns=10_000)
    assert decode_ns(work, 3, 0, given) == 10_000 + 1 + 4 * 10 + 8 * 100 + 3 * 10_000


def test_8_bit_products_run_at_their_own_peak() -> None:
    assert decode_ns(replace(WORK, is_fp8_matmul=True), 30, 0) == 15_000


def test_8_bit_products_without_8_bit_cores_run_in_16_bits() -> None:
    work = replace(WORK, is_fp8_matmul=True)
    old = replace(gpu("a100-sxm-80gb"), bf16_flops=10**12, memory_bandwidth=10**12)
    assert RooflineModel(work, old, IDEAL).decode_run_ns(30, 0, 1) == 30_000


def test_half_the_efficiency_takes_twice_the_time() -> None:
    assert decode_ns(WORK, 30, 0, replace(IDEAL, matmul=0.5)) == 60_000


def test_tensor_parallel_without_nvlink_is_refused() -> None:
    with pytest.raises(ConfigError, match="no NVLink"):
        RooflineModel(replace(WORK, tp=2), replace(ROUND_GPU, nvlink_bytes_per_s=0))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_efficiency_refuses_shares_outside_0_to_1(share: float) -> None:
    with pytest.raises(ConfigError, match="efficiency memory"):
        Efficiency(memory=share)


def test_efficiency_refuses_negative_times() -> None:
    with pytest.raises(ConfigError, match="layer_ns -1"):
        Efficiency(layer_ns=-1)


@pytest.mark.parametrize("name", gpu_names())
def test_efficiency_of_every_chip_is_sourced_throughout(name: str) -> None:
    sources = efficiency_sources(efficiency_of(name), name)
    assert set(sources) == {item.name for item in fields(Efficiency)}
    assert SourceKind.ASSUMED not in {source.kind for source in sources.values()}


@pytest.mark.parametrize("name", gpu_names())
def test_what_a_chip_was_not_measured_for_is_hoppers(name: str) -> None:
    sources, hopper = (
        efficiency_sources(efficiency_of(one), one) for one in (name, "h100-sxm-80gb")
    )
    own = {item for item, source in sources.items() if source != hopper[item]}
    for item in sources.keys() - own:
        assert getattr(efficiency_of(name), item) == getattr(Efficiency(), item)
    assert is_measured(name) or not own


def test_a_roofline_takes_the_efficiency_of_its_chip() -> None:
    b200, hopper = (gpu(name) for name in ("b200-sxm-180gb", "h100-sxm-80gb"))
    own, other = RooflineModel(WORK, b200), RooflineModel(WORK, b200, Efficiency())
    step = StepShape(0, 0, ((4_096, 0),))
    assert own.mixed_step_ns(step) > other.mixed_step_ns(step)
    assert (own.source.kind, other.source.kind) == (SourceKind.DERIVED, SourceKind.ASSUMED)
    given = RooflineModel(WORK, hopper, Efficiency())
    assert given.mixed_step_ns(step) == RooflineModel(WORK, hopper).mixed_step_ns(step)
    assert given.source == RooflineModel(WORK, hopper).source


def test_a_chip_that_nobody_measured_says_whose_shares_it_takes() -> None:
    source = RooflineModel(WORK, gpu("h20-sxm-96gb")).source
    assert source.kind is SourceKind.ASSUMED
    assert "efficiencies of Hopper" in source.text


def test_changed_efficiency_is_an_assumption() -> None:
    sources = efficiency_sources(Efficiency(matmul=0.5), "h100-sxm-80gb")
    assert sources["matmul"].kind is SourceKind.ASSUMED


def test_source_is_derived_for_defaults() -> None:
    assert RooflineModel(WORK, ROUND_GPU).source.kind is SourceKind.DERIVED


def test_source_of_pipelined_worker_is_assumed() -> None:
    source = RooflineModel(replace(WORK, pp=2), ROUND_GPU).source
    assert (source.kind, "stages in series" in source.text) == (SourceKind.ASSUMED, True)


@pytest.mark.parametrize(("elapsed_ns", "expected"), [(-1, 1), (0, 1), (10_001, 2), (10**9, 50)])
def test_iterations_until_stays_within_its_bounds(elapsed_ns: int, expected: int) -> None:
    model = RooflineModel(WORK, ROUND_GPU, IDEAL)
    assert model.iterations_until(3, 0, elapsed_ns, 50) == expected


def test_iterations_without_decodes_never_pass_time() -> None:
    model = RooflineModel(WORK, ROUND_GPU, IDEAL)
    assert (model.iterations_until(0, 0, 5, 50), model.iterations_until(0, 0, 0, 50)) == (50, 1)
