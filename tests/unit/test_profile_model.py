"""A step added up by hand from round operator times."""

from dataclasses import replace

import pytest
from profiles import MEASURED, MODEL, curve, tables

from kvfabric.errors import ConfigError
from kvfabric.perf.collectives import AnalyticCollectives
from kvfabric.perf.moe import ExpertRouting, ExpertTable
from kvfabric.perf.profile import ProfileModel, RankGroups, capture_sizes
from kvfabric.perf.profile_tables import DENSE_MLP
from kvfabric.protocol.provenance import SourceKind
from kvfabric.protocol.step import StepShape

# Per layer two norms, qkv, qk norm, rotary, output and three of the feed-forward; once embedding
# and last norm; two heads per request.
CALLS = 2 + 9 * MODEL.num_layers
EXACT = ProfileModel(tables(), MODEL, captured=())


def linear_ns(num_tokens: int, num_requests: int) -> int:
    return CALLS * (1_000 + 100 * num_tokens) + 2 * (10_000 + 1_000 * num_requests)


def test_prefill_adds_operators_heads_and_attention_of_all_layers() -> None:
    attention = 4 * (40_000 + 6_400)
    assert EXACT.mixed_step_ns(StepShape(0, 0, ((40, 64),))) == linear_ns(40, 1) + attention


def test_prompts_of_a_step_share_one_look_up() -> None:
    both = EXACT.mixed_step_ns(StepShape(0, 0, ((30, 14), (10, 50))))
    assert both == linear_ns(40, 2) + 4 * (40_000 + 6_400)


def test_decodes_have_the_mean_context() -> None:
    # 4 decodes of 32 tokens on average: 4 + 4 * 32 / 100 us per layer.
    assert EXACT.decode_run_ns(4, 128, 1) == linear_ns(4, 4) + 4 * 5_280


def test_mixed_step_is_one_look_up_too() -> None:
    attention = 4 * (40_000 + 6_400 + 5_280)
    assert EXACT.mixed_step_ns(StepShape(4, 128, ((40, 64),))) == linear_ns(44, 5) + attention


def test_decodes_without_prefill_take_the_same_either_way() -> None:
    assert EXACT.mixed_step_ns(StepShape(4, 130)) == EXACT.decode_run_ns(4, 130, 1)


@pytest.mark.parametrize("shape", [StepShape(0, 0), StepShape(0, 0, ((0, 9),))])
def test_step_without_work_takes_no_time(shape: StepShape) -> None:
    assert EXACT.mixed_step_ns(shape) == 0


def test_tokens_are_padded_to_the_next_captured_size() -> None:
    model = ProfileModel(tables(), MODEL, captured=(1, 8))
    unpadded = 4 * 6_600
    assert model.decode_run_ns(5, 160, 1) == linear_ns(8, 5) + unpadded
    assert model.decode_run_ns(9, 288, 1) == EXACT.decode_run_ns(9, 288, 1)


def test_captured_sizes_are_those_of_vllm() -> None:
    """Source: cudagraph_capture_sizes of the recorded RTX 4090 run, vLLM 0.19.0."""
    assert len(capture_sizes()) == 51
    assert capture_sizes()[:6] == (1, 2, 4, 8, 16, 24)
    assert capture_sizes()[-18:-15] == (248, 256, 272)
    assert capture_sizes(256)[-2:] == (248, 256)


def test_context_beyond_the_table_goes_on_along_its_last_line() -> None:
    assert EXACT.decode_run_ns(1, 5_000, 1) == linear_ns(1, 1) + 4 * 51_000


def test_layers_without_query_norm_do_without() -> None:
    model = ProfileModel(tables(leave_out=("qk_norm",)), MODEL, captured=())
    assert EXACT.decode_run_ns(1, 32, 1) - model.decode_run_ns(1, 32, 1) == 4 * 1_100


def test_host_time_per_request_makes_it_calibrated() -> None:
    model = ProfileModel(tables(), MODEL, captured=(), host_request_ns=7_000)
    assert model.decode_run_ns(3, 96, 1) - EXACT.decode_run_ns(3, 96, 1) == 21_000
    assert "calibrated: 7000 ns" in str(model.source)
    assert EXACT.source == MEASURED


# A start of 1,000 ns; 2 ranks move as many bytes as the tensor has, at 1 byte per ns.
LINK = AnalyticCollectives(num_ranks=2, alpha_ns=1_000, bus_bytes_per_s=10**9, source=MEASURED)


def test_tensor_ranks_reduce_twice_per_layer_once_more_and_gather_logits() -> None:
    model = ProfileModel(tables(tp=2), MODEL, ranks=RankGroups(tensor=LINK), captured=())
    reduces = 9 * (1_000 + 3 * 1_000 * 2)
    logits = 1_000 + 3 * 10_000 * 2 // 2
    added = model.decode_run_ns(3, 96, 1) - EXACT.decode_run_ns(3, 96, 1)
    assert added == reduces + logits


def test_reduced_tensors_are_padded() -> None:
    ranks = RankGroups(tensor=LINK)
    model = ProfileModel(tables(tp=2), MODEL, ranks=ranks, captured=(8,))
    alone = ProfileModel(tables(), MODEL, captured=(8,))
    reduces = 9 * (1_000 + 8 * 1_000 * 2)
    added = model.decode_run_ns(3, 96, 1) - alone.decode_run_ns(3, 96, 1)
    assert added == reduces + 1_000 + 3 * 10_000 * 2 // 2


def test_tensor_ranks_without_collectives_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 tensor-parallel ranks and no cost"):
        ProfileModel(tables(tp=2), MODEL)


def test_collectives_among_other_ranks_are_refused() -> None:
    four = replace(LINK, num_ranks=4)
    with pytest.raises(ConfigError, match="2 tensor-parallel ranks, but collectives among 4"):
        ProfileModel(tables(tp=2), MODEL, ranks=RankGroups(tensor=four))
    with pytest.raises(ConfigError, match=r"among 2\. Leave the collective model out"):
        ProfileModel(tables(), MODEL, ranks=RankGroups(tensor=LINK))


# 8 experts of which a token uses 2; 1 us per token and 10 us per expert reached.
EXPERTS = ExpertTable(
    (2, 4, 8), tuple(curve({1: 1 + 10 * e, 101: 101 + 10 * e}) for e in (2, 4, 8))
)
SPARSE = replace(MODEL, num_expert_layers=4, num_experts=8, num_active_experts=2)
NO_MLP = ProfileModel(
    tables(leave_out=DENSE_MLP, experts=ExpertTable((1,), (curve({1: 0}),))), SPARSE, captured=()
)


def experts_ns(model: ProfileModel, num_tokens: int) -> int:
    """Return what the experts add to a decode step."""
    context = 32 * num_tokens
    return model.decode_run_ns(num_tokens, context, 1) - NO_MLP.decode_run_ns(
        num_tokens, context, 1
    )


def test_experts_take_the_place_of_the_dense_feed_forward() -> None:
    model = ProfileModel(tables(leave_out=DENSE_MLP, experts=EXPERTS), SPARSE, captured=())
    assert experts_ns(model, 1) == 4 * 21_000
    # Two tokens reach 8 * (1 - 0.75 ** 2) = 3.5 experts.
    assert experts_ns(model, 2) == 4 * 37_000


def test_measured_routing_replaces_uniform() -> None:
    routing = ExpertRouting(8, 2, ((1, 2.0), (3, 3.0)), MEASURED)
    model = ProfileModel(
        tables(leave_out=DENSE_MLP, experts=EXPERTS), SPARSE, routing=routing, captured=()
    )
    assert experts_ns(model, 2) == 4 * 27_000
    assert "round numbers" in str(model.source)


def test_dense_layers_keep_their_feed_forward() -> None:
    half = replace(SPARSE, num_expert_layers=1)
    model = ProfileModel(tables(experts=EXPERTS), half, captured=())
    assert experts_ns(model, 1) == 21_000 + 3 * 3 * 1_100


def test_data_ranks_share_experts_and_exchange_tokens() -> None:
    model = ProfileModel(
        tables(leave_out=DENSE_MLP, experts=EXPERTS),
        SPARSE,
        ranks=RankGroups(num_data_ranks=2, data=LINK),
        captured=(),
    )
    # Two tokens of each rank reach 8 * (1 - 0.75 ** 4) = 5.46875 experts, half of them here.
    compute = 2_000 + 27_343.75
    rows = 2 * 2 * 2
    exchange = 2 * 1_000 + rows * 1_008 // 2 + rows * 1_000 // 2
    assert experts_ns(model, 2) == 4 * (compute + exchange)
    assert "equally loaded (assumed)" in str(model.source)


def test_experts_without_table_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Add moe\.csv"):
        ProfileModel(tables(), SPARSE)


def test_dense_model_without_feed_forward_is_refused() -> None:
    with pytest.raises(ConfigError, match="lacks gate_up_proj, act_fn, down_proj"):
        ProfileModel(tables(leave_out=DENSE_MLP), MODEL)


def test_source_is_derived_once_collectives_join() -> None:
    model = ProfileModel(tables(tp=2), MODEL, ranks=RankGroups(tensor=LINK))
    assert model.source.kind is SourceKind.DERIVED
    assert "tensor collectives measured: round numbers" in str(model.source)
