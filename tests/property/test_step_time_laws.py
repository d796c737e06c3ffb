"""Laws of step times: cutting, monotonicity, exact search, and no work for free."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvfabric.catalog.gpus import gpu
from kvfabric.perf.efficiency import Efficiency
from kvfabric.perf.floor_sum import FloorSums, floor_sum, least_terms
from kvfabric.perf.roofline import RooflineModel
from kvfabric.perf.work import AttentionWork, ExpertWork, ModelWork
from kvfabric.protocol.ports import StepTimeModel
from kvfabric.protocol.step import StepShape

H100 = gpu("h100-sxm-80gb")
FREE = Efficiency(
    all_reduce_ns=0,
    layer_ns=0,
    expert_layer_ns=0,
    latent_layer_ns=0,
    index_layer_ns=0,
    host_step_ns=0,
    host_request_ns=0,
)

attentions = st.builds(
    AttentionWork,
    prefill_flops_per_pair=st.integers(0, 10**6),
    decode_flops_per_pair=st.integers(0, 10**6),
    kv_bytes_per_token=st.integers(0, 10**5),
    window=st.none() | st.integers(1, 300),
)
experts = st.builds(
    ExpertWork,
    num_experts=st.integers(8, 256),
    num_active=st.integers(1, 8),
    num_layers=st.integers(1, 80),
    weight_bytes=st.integers(0, 10**11),
    matmul_flops_per_token=st.integers(0, 10**11),
    row_bytes_per_token=st.integers(0, 10**8),
)
works = st.builds(
    ModelWork,
    tp=st.sampled_from([1, 2, 8]),
    pp=st.integers(1, 3),
    num_layers=st.integers(1, 80),
    num_latent_layers=st.integers(0, 80),
    num_index_layers=st.integers(0, 80),
    latent_flops_per_token=st.integers(0, 10**10),
    matmul_flops_per_token=st.integers(10**10, 10**11),
    head_flops_per_request=st.integers(0, 10**10),
    dense_weight_bytes=st.integers(0, 10**11),
    experts=st.none() | experts,
    attention=st.lists(attentions, max_size=3).map(tuple),
    state_bytes_per_request=st.integers(0, 10**7),
    activation_bytes_per_token=st.integers(0, 10**7),
    all_reduce_bytes_per_token=st.integers(0, 10**5),
    num_all_reduces=st.integers(0, 160),
    is_fp8_matmul=st.booleans(),
)


def build(work: ModelWork, efficiency: Efficiency) -> StepTimeModel:
    return RooflineModel(work, H100, efficiency)


# Half of the models have no fixed costs, so that rounding and knots weigh as much as they can.
models = st.builds(build, works, st.sampled_from([FREE, Efficiency()]))
batches = st.integers(1, 300)
mean_contexts = st.integers(0, 400)
chunks = st.lists(st.tuples(st.integers(1, 2_000), st.integers(0, 2_000)), max_size=3).map(tuple)


@given(models, batches, mean_contexts, st.integers(0, 299), st.integers(0, 300))
def test_decode_run_is_sum_of_its_steps(
    model: StepTimeModel, num_decodes: int, mean_context: int, odd: int, num_iterations: int
) -> None:
    context = num_decodes * mean_context + odd
    steps = (StepShape(num_decodes, context + i * num_decodes) for i in range(num_iterations))
    assert model.decode_run_ns(num_decodes, context, num_iterations) == sum(
        model.mixed_step_ns(step) for step in steps
    )


@given(models, batches, mean_contexts, st.integers(0, 10_000), st.integers(0, 10_000))
def test_cutting_a_run_changes_nothing(
    model: StepTimeModel, num_decodes: int, mean_context: int, first: int, second: int
) -> None:
    context = num_decodes * mean_context
    whole = model.decode_run_ns(num_decodes, context, first + second)
    rest_context = context + first * num_decodes
    assert whole == model.decode_run_ns(num_decodes, context, first) + model.decode_run_ns(
        num_decodes, rest_context, second
    )


@given(models, batches, mean_contexts, st.integers(-10, 10**9), st.integers(1, 60))
def test_iterations_until_equals_linear_scan(
    model: StepTimeModel, num_decodes: int, mean_context: int, elapsed_ns: int, most: int
) -> None:
    context = num_decodes * mean_context
    scan = (
        j for j in range(1, most + 1) if model.decode_run_ns(num_decodes, context, j) >= elapsed_ns
    )
    assert model.iterations_until(num_decodes, context, elapsed_ns, most) == next(scan, most)


@given(models, batches, mean_contexts, st.integers(1, 100_000), st.integers(-1, 1))
def test_iterations_until_inverts_decode_run(
    model: StepTimeModel, num_decodes: int, mean_context: int, count: int, off_ns: int
) -> None:
    # The instants where a run ends, one ns before and one after.
    context = num_decodes * mean_context
    elapsed_ns = model.decode_run_ns(num_decodes, context, count) + off_ns
    found = model.iterations_until(num_decodes, context, elapsed_ns, 10**6)
    assert model.decode_run_ns(num_decodes, context, found) >= elapsed_ns
    assert found == 1 or model.decode_run_ns(num_decodes, context, found - 1) < elapsed_ns


@given(models, batches, mean_contexts, st.integers(0, 5_000), chunks)
def test_step_is_never_shorter_with_more_context(
    model: StepTimeModel,
    num_decodes: int,
    mean_context: int,
    more_context: int,
    prefill: tuple[tuple[int, int], ...],
) -> None:
    shape = StepShape(num_decodes, num_decodes * mean_context, prefill)
    longer = replace(shape, context_tokens=shape.context_tokens + more_context)
    assert model.mixed_step_ns(longer) >= model.mixed_step_ns(shape)


@given(models, st.integers(0, 300), mean_contexts, st.integers(1, 50), chunks)
def test_step_is_never_shorter_with_more_decodes(
    model: StepTimeModel,
    num_decodes: int,
    mean_context: int,
    more_decodes: int,
    prefill: tuple[tuple[int, int], ...],
) -> None:
    shape = StepShape(num_decodes, num_decodes * mean_context, prefill)
    larger = replace(shape, num_decodes=num_decodes + more_decodes)
    assert model.mixed_step_ns(larger) >= model.mixed_step_ns(shape)


@given(models, st.integers(0, 100), chunks, st.integers(1, 500), st.integers(0, 500))
def test_step_is_never_shorter_with_more_prefill(
    model: StepTimeModel,
    num_decodes: int,
    prefill: tuple[tuple[int, int], ...],
    num_tokens: int,
    num_history: int,
) -> None:
    shape = StepShape(num_decodes, 100 * num_decodes, prefill)
    base = model.mixed_step_ns(shape)
    one_more = replace(shape, prefill=(*prefill, (num_tokens, num_history)))
    longer = replace(shape, prefill=(*prefill, (num_tokens + 1, num_history)))
    further = replace(shape, prefill=(*prefill, (num_tokens, num_history + 1)))
    assert base <= model.mixed_step_ns(one_more)
    assert model.mixed_step_ns(one_more) <= model.mixed_step_ns(longer)
    assert model.mixed_step_ns(one_more) <= model.mixed_step_ns(further)


@given(models, batches, chunks)
def test_work_is_never_free(
    model: StepTimeModel, num_decodes: int, prefill: tuple[tuple[int, int], ...]
) -> None:
    assert model.decode_run_ns(num_decodes, 0, 1) >= 1
    assert model.mixed_step_ns(StepShape(0, 0, prefill)) >= min(1, len(prefill))


@given(st.integers(0, 60), st.integers(1, 50), st.integers(0, 10**12), st.integers(0, 10**12))
def test_floor_sum_equals_plain_sum(num_terms: int, modulus: int, slope: int, start: int) -> None:
    terms = ((slope * i + start) // modulus for i in range(num_terms))
    expected = sum(terms)
    assert floor_sum(num_terms, modulus, slope, start) == expected
    assert FloorSums(modulus, slope).first(num_terms, start) == expected


@given(st.integers(1, 10**9), st.integers(1, 1_000), st.integers(0, 5_000), st.integers(0, 5_000))
def test_least_terms_is_least(limit: int, modulus: int, slope: int, extra: int) -> None:
    start = modulus + extra
    found = least_terms(limit, modulus, slope, start)
    assert floor_sum(found, modulus, slope, start) >= limit
    assert floor_sum(found - 1, modulus, slope, start) < limit
