"""What ends an output: limit, the model's end token, stop tokens and stop texts."""

import pytest
import torch

from kvfabric.engine.executor_port import (
    EngineStep,
    FinishReason,
    NewRequest,
    SampledToken,
    Sampling,
    ScheduledTokens,
)
from kvfabric.engine.model_sources import open_model
from kvfabric.engine.torch_executor import TorchExecutor
from kvfabric.errors import ConfigError

torch.set_num_threads(1)
PROMPT = (72, 101, 108)


def generate(
    sampling: Sampling, *, eos: tuple[int, ...] = (), text: bool = True
) -> list[SampledToken]:
    """Return the output of a tiny model, until it ends or 20 tokens are there."""
    model = open_model("random:llama")
    spec = model.spec
    for name, value in (("eos_token_ids", eos),):
        object.__setattr__(spec, name, value)
    decode = model.tokenizer().decode if text else None
    executor = TorchExecutor(
        spec, model.load_weights("float32"), num_blocks=9, block_size=4, decode_text=decode
    )
    part = ScheduledTokens(1, 0, 3, samples=True, table_start=0, new_blocks=tuple(range(1, 8)))
    tokens = [*executor.run(EngineStep((NewRequest(1, PROMPT, sampling),), (part,))).tokens]
    while tokens[-1].finish is None and len(tokens) < 20:
        part = ScheduledTokens(1, 2 + len(tokens), 1, True, 7, ())
        tokens += executor.run(EngineStep((), (part,))).tokens
    return tokens


FREE = [token.token_id for token in generate(Sampling(12))]


def test_limit() -> None:
    tokens = generate(Sampling(12))
    assert len(tokens) == 12
    assert tokens[-1].finish is FinishReason.LENGTH
    assert len(set(FREE)) > 4  # or the tests below would say little


def test_end_token_of_the_model() -> None:
    end = FREE[5]
    tokens = generate(Sampling(12), eos=(end,))
    assert tokens[-1] == SampledToken(1, end, FinishReason.STOP)
    assert len(tokens) == FREE.index(end) + 1
    assert len(generate(Sampling(12, ignore_eos=True), eos=(end,))) == 12


def test_stop_token() -> None:
    end = FREE[4]
    tokens = generate(Sampling(12, stop_token_ids=(end,), ignore_eos=True))
    assert tokens[-1] == SampledToken(1, end, FinishReason.STOP)
    assert len(tokens) == FREE.index(end) + 1


def test_stop_text() -> None:
    decode = open_model("random:llama").tokenizer().decode
    text = decode(FREE)
    place = next(i for i in range(len(text) - 1) if "\ufffd" not in text[i : i + 2])
    stop = text[place : place + 2]
    tokens = generate(Sampling(12, stop=(stop,)))
    assert tokens[-1].finish is FinishReason.STOP
    ids = [token.token_id for token in tokens]
    assert stop in decode(ids)
    assert stop not in decode(ids[:-1])


def test_stop_text_without_tokenizer() -> None:
    with pytest.raises(ConfigError, match="stop texts need a tokenizer"):
        generate(Sampling(12, stop=("x",)), text=False)


def test_seeded_draws_repeat_and_differ_by_seed() -> None:
    drawn = [
        [token.token_id for token in generate(Sampling(12, temperature=1.0, seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
