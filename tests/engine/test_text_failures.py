"""A tokenizer that raises on one request's text costs no other request a token."""

from collections.abc import Sequence

from test_token_parity import prompt_of
from tiny_models import BLOCK_SIZE, plain_greedy, tiny

from kvfabric.engine.executor_port import EngineStep, NewRequest, Sampling, ScheduledTokens
from kvfabric.engine.isolation import run_isolated
from kvfabric.engine.torch_executor import TorchExecutor


def refuse(token_ids: Sequence[int]) -> str:
    if len(token_ids) > 1:
        raise ValueError(list(token_ids))
    return "x" * len(token_ids)


def test_others_keep_the_token_of_that_step_once() -> None:
    spec, weights = tiny("llama")
    executor = TorchExecutor(
        spec, weights, num_blocks=32, block_size=BLOCK_SIZE, decode_text=refuse
    )
    prompts = [prompt_of(6, seed) for seed in range(3)]
    stops: tuple[tuple[str, ...], ...] = ((), ("end",), ())
    new = tuple(
        NewRequest(i, prompt, Sampling(5, ignore_eos=True, stop=stop))
        for i, (prompt, stop) in enumerate(zip(prompts, stops, strict=True))
    )
    blocks = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    outputs: dict[int, list[int]] = {0: [], 1: [], 2: []}
    unsent: tuple[NewRequest, ...] = new
    steps = (((0, 1, 2), 0, 6), ((0, 1, 2), 6, 1), ((0, 2), 7, 1), ((0, 2), 8, 1), ((0, 2), 9, 1))
    failed: list[list[int]] = []
    for requests, first, count in steps:
        parts = tuple(
            ScheduledTokens(i, first, count, True, 0, blocks[i])
            if first == 0
            else ScheduledTokens(i, first, count, True, 3, ())
            for i in requests
        )
        output = run_isolated(executor, EngineStep(unsent, parts), None)
        unsent = ()
        failed.append([request.request_id for request in output.failed])
        for token in output.tokens:
            outputs[token.request_id].append(token.token_id)
    assert failed == [[], [1], [], [], []]
    for i in (0, 2):
        assert outputs[i] == plain_greedy(spec, weights, prompts[i], 5)
