"""However a generation is scheduled, its greedy tokens are those of plain generation (fp32, CPU).

Plain generation keeps no cache: it computes the whole sequence again for every token.
"""

import numpy as np
import pytest
import torch
from tiny_models import BLOCK_SIZE, CONFIGS, plain_greedy, tiny, tiny_executor

from kvfabric.engine.executor_port import (
    EngineStep,
    FinishReason,
    NewRequest,
    Sampling,
    ScheduledTokens,
)
from kvfabric.engine.torch_executor import TorchExecutor

torch.set_num_threads(1)
NUM_OUTPUT = 9
MODELS = list(CONFIGS)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Return random token ids."""
    return tuple(int(i) for i in np.random.default_rng(seed).integers(0, 131, length))


def new_request(request_id: int, prompt: tuple[int, ...], *output: int) -> NewRequest:
    """Return a greedy request that ends at its limit."""
    return NewRequest(request_id, prompt, Sampling(NUM_OUTPUT, ignore_eos=True), output)


class OneRequest:
    """Schedules one request by hand: its blocks, and how far it is."""

    def __init__(self, executor: TorchExecutor, new: NewRequest, blocks: tuple[int, ...]) -> None:
        """Know the request; send nothing."""
        self.executor, self.new, self.blocks = executor, new, blocks
        self.output = list(new.output_ids)
        self.unsent: tuple[NewRequest, ...] = (new,)
        self.sent_blocks = 0

    def scheduled(self, first: int, count: int) -> ScheduledTokens:
        """Return a part of a step with the blocks it needs that were not sent yet."""
        end = first + count
        needed = -(-end // BLOCK_SIZE)
        start, self.sent_blocks = self.sent_blocks, max(needed, self.sent_blocks)
        samples = end == len(self.new.prompt_ids) + len(self.output)
        new_blocks = self.blocks[start : self.sent_blocks]
        return ScheduledTokens(self.new.request_id, first, count, samples, start, new_blocks)

    def run(self, first: int, count: int) -> None:
        """Run one step of this request alone."""
        output = self.executor.run(EngineStep(self.unsent, (self.scheduled(first, count),)))
        self.unsent = ()
        self.output += [token.token_id for token in output.tokens]

    def decode(self) -> None:
        """Run decode steps to the limit."""
        while len(self.output) < NUM_OUTPUT:
            self.run(len(self.new.prompt_ids) + len(self.output) - 1, 1)


def shuffled_blocks(seed: int, num_blocks: int = 64) -> tuple[int, ...]:
    """Return block ids in random order, without the null block."""
    return tuple(int(b) for b in np.random.default_rng(seed).permutation(num_blocks - 1) + 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("length", [1, 4, 23])
def test_paged_generation_is_plain_generation(model: str, length: int) -> None:
    prompt = prompt_of(length)
    request = OneRequest(tiny_executor(model), new_request(7, prompt), shuffled_blocks(1))
    request.run(0, length)
    request.decode()
    assert request.output == plain_greedy(*tiny(model), prompt, NUM_OUTPUT)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_chunked_prefill_is_plain_generation(model: str, chunk: int) -> None:
    prompt = prompt_of(23)
    request = OneRequest(tiny_executor(model), new_request(7, prompt), shuffled_blocks(2))
    for first in range(0, 23, chunk):
        request.run(first, min(chunk, 23 - first))
    request.decode()
    assert request.output == plain_greedy(*tiny(model), prompt, NUM_OUTPUT)


def test_long_chunk_over_history_is_plain_generation() -> None:
    """More queries than one attention call takes, with history before them."""
    prompt = prompt_of(411)
    executor = tiny_executor("llama", num_blocks=128)
    request = OneRequest(executor, new_request(7, prompt), shuffled_blocks(3, 128))
    request.run(0, 90)
    request.run(90, 321)
    request.decode()
    assert request.output == plain_greedy(*tiny("llama"), prompt, NUM_OUTPUT)


@pytest.mark.parametrize("model", MODELS)
def test_shared_prefix_blocks_give_plain_generation(model: str) -> None:
    """A second request takes the first one's full blocks, and computes only what is its own."""
    head, executor = prompt_of(16), tiny_executor(model)
    first = OneRequest(executor, new_request(1, head + prompt_of(5, 1)), tuple(range(1, 20)))
    first.run(0, 21)
    prompt = head + prompt_of(7, 2)
    blocks = first.blocks[: 16 // BLOCK_SIZE] + tuple(range(40, 50))
    second = OneRequest(executor, new_request(2, prompt), blocks)
    second.run(16, 7)
    second.decode()
    first.decode()
    assert second.output == plain_greedy(*tiny(model), prompt, NUM_OUTPUT)
    assert first.output == plain_greedy(*tiny(model), first.new.prompt_ids, NUM_OUTPUT)


@pytest.mark.parametrize("model", MODELS)
def test_preempted_request_gives_plain_generation(model: str) -> None:
    """Its blocks go to another request; prompt and output are computed again into new ones."""
    prompt, executor = prompt_of(18), tiny_executor(model)
    request = OneRequest(executor, new_request(1, prompt), tuple(range(1, 9)))
    request.run(0, 18)
    for _ in range(4):
        request.run(18 + len(request.output) - 1, 1)
    thief = OneRequest(executor, new_request(2, prompt_of(30, 5)), tuple(range(1, 12)))
    thief.run(0, 30)
    request.blocks, request.sent_blocks = tuple(range(30, 40)), 0
    request.run(0, 10)
    request.run(10, 18 + len(request.output) - 10)
    request.decode()
    assert request.output == plain_greedy(*tiny(model), prompt, NUM_OUTPUT)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layers_at_once", [1, 3])
def test_moved_request_gives_plain_generation(model: str, layers_at_once: int) -> None:
    """Prefill here, blocks as bytes to other ids of another worker, decode there."""
    prompt, prefill, decode = prompt_of(21), tiny_executor(model), tiny_executor(model)
    here = OneRequest(prefill, new_request(1, prompt), shuffled_blocks(4))
    here.run(0, 21)
    there = OneRequest(decode, new_request(9, prompt, *here.output), shuffled_blocks(5))
    count = -(-21 // BLOCK_SIZE)
    for layer in range(0, 3, layers_at_once):
        data = prefill.read_blocks(here.blocks[:count], layer, layer + layers_at_once)
        assert data.nbytes == prefill.kv.layout.wire_bytes(count, layers_at_once)
        received = memoryview(bytes(data))
        decode.write_blocks(there.blocks[:count], layer, layer + layers_at_once, received)
    there.decode()
    assert there.output == plain_greedy(*tiny(model), prompt, NUM_OUTPUT)


@pytest.mark.parametrize("model", MODELS)
def test_mixed_steps_give_plain_generation(model: str) -> None:
    """Decodes of unlike contexts beside prefill chunks in one step, in the scheduler's order."""
    executor = tiny_executor(model, num_blocks=256)
    lengths = (3, 60, 17, 61, 33)
    prompts = [prompt_of(length, length) for length in lengths]
    pool = shuffled_blocks(6, 256)
    requests = [
        OneRequest(executor, new_request(i, prompt), pool[i * 40 : i * 40 + 40])
        for i, prompt in enumerate(prompts)
    ]
    computed = [0] * len(requests)
    while any(len(request.output) < NUM_OUTPUT for request in requests):
        parts = []
        for i, request in enumerate(requests):
            left = len(request.new.prompt_ids) + len(request.output) - computed[i]
            if len(request.output) < NUM_OUTPUT and left:
                parts.append(request.scheduled(computed[i], min(left, 20)))
                computed[i] += min(left, 20)
        new = tuple(n for request in requests for n in request.unsent)
        output = executor.run(EngineStep(new, tuple(parts)))
        for request in requests:
            request.unsent = ()
        assert [t.request_id for t in output.tokens] == [p.request_id for p in parts if p.samples]
        for token in output.tokens:
            requests[token.request_id].output.append(token.token_id)
            at_limit = len(requests[token.request_id].output) == NUM_OUTPUT
            assert token.finish is (FinishReason.LENGTH if at_limit else None)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.output == plain_greedy(*tiny(model), prompt, NUM_OUTPUT)


@pytest.mark.parametrize("model", MODELS)
def test_tiny_models_say_different_things(model: str) -> None:
    """A model that repeats one token would agree with itself however wrong its cache is."""
    assert len(set(plain_greedy(*tiny(model), prompt_of(23), NUM_OUTPUT))) >= 4
