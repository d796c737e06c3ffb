"""The 8-bit KV cache: its error, and that blocks survive a transfer."""

import torch
from test_token_parity import OneRequest, new_request, prompt_of
from tiny_models import BLOCK_SIZE, tiny_executor

from kvfabric.engine.int8_kv import quantize
from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.kv_tensors import BlockRows

torch.set_num_threads(1)


def test_error_of_a_value_is_at_most_half_a_step() -> None:
    values = torch.randn(50, 3, 16, generator=torch.Generator().manual_seed(1))
    values[7] = 0
    codes, scales = quantize(values)
    restored = codes.to(torch.float32) * scales[..., None]
    step = values.abs().amax(-1, keepdim=True) / 127
    assert bool(((restored - values).abs() <= step * 0.5001).all())
    assert codes.abs().max() == 127
    assert bool((restored[7] == 0).all())


def test_context_error_under_one_percent() -> None:
    """facts: relative error of the output 0.8 to 1 % on normal values."""
    eight, plain = (tiny_executor("llama", kv_dtype=kind).kv for kind in ("int8", None))
    generator = torch.Generator().manual_seed(2)
    slots = torch.arange(4, 24)
    k, v = (torch.randn(20, 2, 16, generator=generator) for _ in range(2))
    for kv in (eight, plain):
        kv.write(1, slots, k, v)
    rows = BlockRows(torch.tensor([3, 1, 5]))
    wanted = [part.clone() for part in plain.context(1, rows)]
    got = [part.clone() for part in eight.context(1, rows)]
    for ours, exact in zip(got, wanted, strict=True):
        assert 0 < float((ours - exact).norm() / exact.norm()) < 0.01


def test_moved_blocks_continue_alike() -> None:
    prompt = prompt_of(21)
    here, there = (tiny_executor("qwen3", kv_dtype="int8") for _ in range(2))
    first = OneRequest(here, new_request(1, prompt), tuple(range(1, 20)))
    first.run(0, 21)
    second = OneRequest(there, new_request(1, prompt, *first.output), tuple(range(30, 50)))
    data = here.read_blocks(first.blocks[:6], 0, 3)
    assert data.nbytes == here.kv.layout.wire_bytes(6, 3)
    there.write_blocks(second.blocks[:6], 0, 3, data)
    assert there.read_blocks(second.blocks[:6], 0, 3) == data
    first.decode()
    second.decode()
    assert first.output == second.output


def test_bytes_of_a_block() -> None:
    """SmolLM2: 30 layers of 3 KV heads of 64; bf16 has 23,040 B per token (facts/engine.md)."""
    shape = {"num_layers": 30, "block_size": 16, "num_kv_heads": 3, "head_dim": 64}
    assert KvLayout(**shape, kv_dtype="bfloat16").block_bytes == 16 * 23_040
    eight = KvLayout(**shape, kv_dtype="int8")
    assert eight.block_bytes == 16 * 30 * 2 * 3 * (64 + 4)
    assert tiny_executor("llama").kv.layout.block_size == BLOCK_SIZE
