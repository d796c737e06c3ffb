"""The compiled decode step gives what torch gives: the torch path is the readable twin."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_token_parity import OneRequest, new_request, prompt_of, shuffled_blocks
from tiny_models import BLOCK_SIZE, CONFIGS, plain_greedy, tiny
from torch import Tensor

from kvfabric.engine.attention import PagedAttention
from kvfabric.engine.compiled_decoder import CompiledDecoder, decoder_for
from kvfabric.engine.decoder import Decoder
from kvfabric.engine.int8_kv import Int8KvTensors
from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.kv_tensors import PlainKvTensors
from kvfabric.engine.model_spec import ModelSpec
from kvfabric.engine.step_batch import BatchBuilder, RequestShare
from kvfabric.engine.torch_executor import TorchExecutor
from kvfabric.engine.weights import DecoderWeights, LayerWeights

CPU = torch.device("cpu")
COMPILED = [name for name in CONFIGS if name != "gpt2"]
LENGTHS = ([1], [4], [37, 5], [9, 8, 4], [33, 20, 20, 16, 3, 2, 1], [50] * 9)
NUM_OUTPUT = 9


def layout_of(spec: ModelSpec, dtype: str) -> KvLayout:
    return KvLayout(
        num_layers=spec.num_layers,
        block_size=BLOCK_SIZE,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        kv_dtype=dtype,
    )


def filled_cache(spec: ModelSpec, dtype: str) -> PlainKvTensors:
    kv = PlainKvTensors(layout_of(spec, dtype), 256, CPU)
    kv.pool.normal_(generator=torch.Generator().manual_seed(5))
    return kv


def shares_of(lengths: Sequence[int], vocab: int) -> list[RequestShare]:
    """Return one decode per context, its blocks anywhere in the pool, none shared."""
    rng = np.random.default_rng(len(lengths))
    blocks: NDArray[np.int64] = rng.permutation(255) + 1
    shares, used = [], 0
    for length in lengths:
        count = -(-length // BLOCK_SIZE)
        token = int(rng.integers(0, vocab))
        shares.append(RequestShare(length - 1, [token], blocks[used : used + count]))
        used += count
    return shares


def torch_logits(
    spec: ModelSpec, weights: DecoderWeights, kv: PlainKvTensors, shares: Sequence[RequestShare]
) -> Tensor:
    builder = BatchBuilder(
        BLOCK_SIZE, spec.num_kv_heads * spec.head_dim, weights.embedding.dtype, CPU
    )
    batch = builder.build(shares)
    decoder = Decoder(spec, weights)
    with torch.inference_mode():
        attention = PagedAttention(kv, batch)
        return decoder.logits(decoder.hidden(batch.token_ids, batch.positions, attention))


def in_bf16(weights: DecoderWeights) -> DecoderWeights:
    def half(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(torch.bfloat16)

    layers = tuple(LayerWeights(*map(half, layer)) for layer in weights.layers)  # type: ignore[arg-type]
    rest = [half(t) for t in (weights.embedding, weights.final_norm, weights.head)]
    return DecoderWeights(rest[0], layers, rest[1], rest[2])  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("model", COMPILED)
def test_logits_and_cache_are_those_of_torch_in_fp32(
    model: str, lengths: list[int], threads: int
) -> None:
    spec, weights = tiny(model)
    shares = shares_of(lengths, spec.vocab_size)
    ours, theirs = filled_cache(spec, "float32"), filled_cache(spec, "float32")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits = CompiledDecoder(spec, weights, ours).logits(shares).clone()
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(logits, torch_logits(spec, weights, theirs, shares), atol=2e-4, rtol=1e-4)
    assert torch.allclose(ours.pool, theirs.pool, atol=1e-5)


@pytest.mark.parametrize("model", COMPILED)
def test_bf16_is_no_further_from_fp32_than_torch_is(model: str) -> None:
    spec, weights = tiny(model)
    weights = in_bf16(weights)
    shares = shares_of([33, 20, 20, 16, 3, 2, 1], spec.vocab_size)
    wide = DecoderWeights(
        weights.embedding.float(),
        tuple(
            LayerWeights(*(None if t is None else t.float() for t in layer))  # type: ignore[arg-type]
            for layer in weights.layers
        ),
        weights.final_norm.float(),
        weights.head.float(),
    )
    exact_kv = filled_cache(spec, "float32")
    exact_kv.pool.copy_(filled_cache(spec, "bfloat16").pool)
    exact = torch_logits(spec, wide, exact_kv, shares)
    ours = CompiledDecoder(spec, weights, filled_cache(spec, "bfloat16")).logits(shares)
    theirs = torch_logits(spec, weights, filled_cache(spec, "bfloat16"), shares)
    assert (ours - exact).abs().mean() < (theirs - exact).abs().mean()


def test_bf16_is_stored_as_torch_rounds_it() -> None:
    spec, weights = tiny("llama")
    ours, theirs = filled_cache(spec, "bfloat16"), filled_cache(spec, "bfloat16")
    shares = shares_of([7], spec.vocab_size)
    CompiledDecoder(spec, in_bf16(weights), ours).logits(shares)
    torch_logits(spec, in_bf16(weights), theirs, shares)
    # The first layer's inputs are the same, so that K and V differ by one rounding at most.
    assert torch.allclose(ours.pool[0].float(), theirs.pool[0].float(), atol=2e-2, rtol=2e-2)
    slot = (shares[0].table[1], 2)
    mask = torch.ones_like(ours.pool, dtype=torch.bool)
    mask[:, :, slot[0], slot[1]] = False
    assert torch.equal(ours.pool[mask], filled_cache(spec, "bfloat16").pool[mask])


@pytest.mark.parametrize("model", COMPILED)
def test_generation_with_the_kernels_is_plain_generation(model: str) -> None:
    spec, weights = tiny(model)
    prompt = prompt_of(23)
    executor = TorchExecutor(spec, weights, num_blocks=64, block_size=BLOCK_SIZE, compiled=True)
    request = OneRequest(executor, new_request(7, prompt), shuffled_blocks(1))
    request.run(0, 23)
    request.decode()
    assert request.output == plain_greedy(spec, weights, prompt, NUM_OUTPUT)


def test_models_and_caches_that_the_kernels_cannot_take_are_left_to_torch() -> None:
    spec, weights = tiny("gpt2")
    kv = PlainKvTensors(layout_of(spec, "float32"), 4, CPU)
    assert decoder_for(spec, weights, kv) is None
    spec, weights = tiny("llama")
    assert decoder_for(spec, weights, PlainKvTensors(layout_of(spec, "float32"), 4, CPU))
    assert decoder_for(spec, weights, PlainKvTensors(layout_of(spec, "bfloat16"), 4, CPU)) is None
    eight = Int8KvTensors(layout_of(spec, "int8"), 4, CPU, torch.float32)
    assert decoder_for(spec, weights, eight) is None
