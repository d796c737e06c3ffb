"""Blocks of generated tokens: found by the next turn of a conversation, as vLLM V1 has it.

vLLM hashes a block when its last token is known, of prompt or output alike (``kv_cache_manager``,
``cache_full_blocks``); the last output token has no KV cache.
"""

from typing import Any

import pytest
from fake_clusters import Outputs, local_cluster, request, settings_of
from replays import replay

from kvfabric.engine.block_hashes import HashChain, block_hashes
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.fake_executor import reference_tokens


def turns(
    first_prompt: list[int], max_tokens: int, **settings: Any
) -> tuple[Outputs, DecisionLog, list[int]]:
    """Run a prompt, and one that goes on from its output; return also the second prompt."""
    outputs, log = Outputs(), DecisionLog()
    of_cluster = settings_of(**settings)
    with local_cluster(of_cluster, outputs, log=log) as cluster:
        cluster.loop.submit(request(0, first_prompt, max_tokens))
        outputs.wait_ended(1)
        second = [*first_prompt, *outputs.tokens[0], 5, 6, 7]
        asked = request(1, second, 4)
        cluster.loop.submit(asked)
        outputs.wait_ended(2)
        assert outputs.tokens[1] == reference_tokens(second, asked.sampling)
    result = replay(of_cluster, log, cluster.block_bytes)
    assert result.log_digest == log.digest
    assert list(result.records) == log.records
    return outputs, log, second


@pytest.mark.parametrize(
    ("num_prompt", "num_outputs", "found"),
    [
        (20, 12, 28),  # 31 tokens have KV cache: 7 full blocks of 4
        (20, 13, 32),  # 32 tokens: 8 blocks
        (18, 4, 20),  # 21 tokens; the fifth block holds the end of the prompt and two outputs
        (18, 2, 16),  # the output's last token has none: that block is not full
        (1, 9, 8),  # a prompt without a full block
    ],
)
def test_the_next_turn_finds_prompt_and_output(
    num_prompt: int, num_outputs: int, found: int
) -> None:
    outputs, _, _ = turns(list(range(3, 3 + num_prompt)), num_outputs)
    assert outputs.ends[1][0].num_cached_tokens == found


def test_without_prefix_caching_nothing_is_found() -> None:
    outputs, _, _ = turns(list(range(20)), 12, enable_prefix_caching=False)
    assert outputs.ends[1][0].num_cached_tokens == 0


def test_a_decode_worker_keeps_what_it_generated_to_itself() -> None:
    # the next turn's prompt is computed on a prefill worker, which has only seen the first prompt
    outputs, _, _ = turns(list(range(20)), 12, num_decode=1)
    assert outputs.ends[1][0].num_cached_tokens == 20


def test_hashes_go_on_from_those_of_the_prompt() -> None:
    tokens = list(range(50))
    whole = block_hashes(tokens, 4, key=b"k")
    chain = HashChain(4, b"k", whole[4])
    assert [h for h in map(chain.push, tokens[20:]) if h is not None] == list(whole[5:])
    assert block_hashes(tokens, 4) != whole
