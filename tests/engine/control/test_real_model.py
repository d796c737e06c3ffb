"""A tiny random Llama through control, schedulers and workers: token and replay parity.

Oracle of tokens: the same model without KV cache. fp32, greedy.
"""

from typing import Any

import pytest
from fake_clusters import Outputs, settings_of
from replays import replay

from kvfabric.engine.block_hashes import block_hashes
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import Sampling
from kvfabric.engine.executor_spec import ExecutorSpec, MadeExecutor, make_executor
from kvfabric.engine.generate import generate_without_cache, generator
from kvfabric.engine.local_cluster import LocalCluster
from kvfabric.errors import ConfigError
from kvfabric.serving.coordinator_config import HandoffMode

pytest.importorskip("torch")

SHAPES: dict[str, dict[str, Any]] = {
    "one worker": {},
    "few blocks": {"num_blocks": 31},
    "2 + 2": {"num_prefill": 2, "num_decode": 2},
    "streamed": {"num_decode": 1, "handoff": HandoffMode.LAYER_WISE},
    "layer by layer": {
        "num_decode": 1,
        "handoff": HandoffMode.LAYER_WISE,
        "num_layer_groups": 2,
    },
}
SAMPLING = Sampling(12, ignore_eos=True)


def made(num_blocks: int) -> MadeExecutor:
    return make_executor(
        ExecutorSpec(
            model="random:llama",
            num_blocks=num_blocks,
            block_size=4,
            dtype="float32",
            num_threads=1,
        )
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_cluster_gives_the_tokens_of_a_model_without_cache(shape: dict[str, Any]) -> None:
    settings, outputs, log = settings_of(**shape), Outputs(), DecisionLog()
    workers = [made(settings.num_blocks) for _ in range(settings.num_workers)]
    prompts = [[(7 * i + j * (1 + i % 3)) % 200 for j in range(10 + 5 * i)] for i in range(8)]
    prompts += [[*prompt, 3, 1, 4] for prompt in prompts[:3]]
    cluster = LocalCluster(
        settings,
        [worker.executor for worker in workers],
        outputs,
        block_bytes=workers[0].layout.block_bytes,
        num_layers=workers[0].layout.num_layers,
        log=log,
        check=True,
    )
    with cluster:
        for i, prompt in enumerate(prompts):
            hashes = block_hashes(prompt, settings.block_size)
            cluster.loop.submit(GenerateRequest(i, tuple(prompt), SAMPLING, hashes))
        outputs.wait_ended(len(prompts))
    oracle = made(64).executor
    for i, prompt in enumerate(prompts):
        expected = generate_without_cache(oracle, prompt, SAMPLING, 4)
        assert outputs.tokens[i] == list(expected.token_ids)
    assert cluster.loop.driver.num_held_blocks == 0
    result = replay(settings, log, cluster.block_bytes)
    assert result.log_digest == log.digest
    assert list(result.records) == sorted(log.records, key=lambda record: record.request_id)


@pytest.mark.parametrize("kv_transport", ["sockets", "shared"])
def test_processes_hand_over_the_cache_of_a_real_model(kv_transport: str) -> None:
    settings = settings_of(num_decode=1, block_size=4, kv_transport=kv_transport)
    spec = ExecutorSpec(
        model="random:llama", num_blocks=64, block_size=4, dtype="float32", num_threads=1
    )
    prompt = list(range(50))
    with generator(settings, spec) as running:
        first = running.generate(prompt, SAMPLING)
        again = running.generate(prompt, SAMPLING)
        with pytest.raises(ConfigError, match=r"token id 1000000 in the prompt"):
            running.generate([*prompt, 10**6], SAMPLING)
        with pytest.raises(ConfigError, match=r"1000050 tokens of prompt and output"):
            running.generate(prompt, SAMPLING._replace(max_tokens=10**6))
        assert running.generate(prompt, SAMPLING).token_ids == first.token_ids  # nobody has died
    expected = generate_without_cache(made(64).executor, prompt, SAMPLING, 4)
    assert first.token_ids == again.token_ids == expected.token_ids
    assert first.num_cached_tokens == 0
    assert again.num_cached_tokens == 48  # 12 full blocks; 2 tokens are left to compute
    assert first.handoff_bytes == 13 * first.block_bytes
    assert first.kv_bytes == first.num_blocks * first.block_bytes
    assert first.num_blocks == 16  # 50 + 12 - 1 tokens in blocks of 4
    assert expected.num_computed_tokens == sum(range(50, 62))


@pytest.mark.parametrize("handoff", HandoffMode)
def test_an_8_bit_cache_moves_alike_by_every_way(handoff: HandoffMode) -> None:
    """Oracle: one worker, which moves nothing; scales that got lost would change the tokens."""
    spec = ExecutorSpec(
        model="random:llama",
        num_blocks=64,
        block_size=4,
        dtype="float32",
        kv_dtype="int8",
        num_threads=1,
    )
    prompts = [list(range(first, first + 41)) for first in (0, 50, 100)]
    answers = []
    shapes: list[dict[str, Any]] = [{}] + [
        {"num_decode": 1, "handoff": handoff, "kv_transport": name} for name in ("shared", "auto")
    ]
    for shape in [*shapes, {**shapes[1], "kv_transport": "sockets"}]:
        with generator(settings_of(**shape), spec) as running:
            answers.append([running.generate(prompt, SAMPLING).token_ids for prompt in prompts])
    assert answers[1:] == [answers[0]] * 3
    assert len(set(answers[0])) == 3
