"""Requests through control, schedulers and stand-in executors, in one process.

Oracle: ``reference_tokens``, which knows no cache. Tokens of the executor mix the KV cache of all
positions, so they are right only if every block was where the control thought.
"""

from random import Random
from typing import Any

import pytest
from fake_clusters import Outputs, local_cluster, request, settings_of

from kvfabric.engine.executor_port import FinishReason
from kvfabric.engine.fake_executor import reference_tokens
from kvfabric.protocol.record import Outcome
from kvfabric.serving.coordinator_config import HandoffMode, Reservation

SHAPES: dict[str, dict[str, Any]] = {
    "one worker": {},
    "three workers": {"num_prefill": 3},
    "no prefix cache": {"enable_prefix_caching": False},
    "few blocks": {"num_blocks": 31},  # one request of full length and no more: preempts
    "prefill and decode": {"num_decode": 1},
    "2 + 2": {"num_prefill": 2, "num_decode": 2},
    "decode first": {"num_decode": 1, "reservation": Reservation.DECODE_FIRST},
    "streamed": {"num_decode": 1, "handoff": HandoffMode.LAYER_WISE},
    "streamed, few blocks": {
        "num_decode": 2,
        "num_blocks": 31,
        "handoff": HandoffMode.LAYER_WISE,
    },
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_tokens_are_those_of_a_computation_without_cache(shape: dict[str, Any]) -> None:
    settings, outputs, random = settings_of(**shape), Outputs(), Random(1)
    heads = [[random.randrange(1000) for _ in range(24)] for _ in range(3)]
    requests = []
    for i in range(40):
        head = random.choice(heads)[: random.randrange(25)]
        prompt = head + [random.randrange(1000) for _ in range(random.randint(1, 50))]
        stop = tuple(random.randrange(1009) for _ in range(60))
        requests.append(request(i, prompt, random.randint(1, 40), stop_token_ids=stop))
    with local_cluster(settings, outputs) as cluster:
        for asked in requests:
            cluster.loop.submit(asked)
        outputs.wait_ended(len(requests))
    assert cluster.loop.driver.num_held_blocks == 0
    assert cluster.loop.driver.is_quiet
    for asked in requests:
        record, finish = outputs.ends[asked.request_id]
        expected = reference_tokens(asked.prompt_ids, asked.sampling)
        assert outputs.tokens[asked.request_id] == expected
        assert record.outcome is Outcome.FINISHED
        assert record.num_output_tokens == len(expected)
        has_stopped = expected[-1] in asked.sampling.stop_token_ids
        assert finish is (FinishReason.STOP if has_stopped else FinishReason.LENGTH)
    if settings.num_blocks == 31 and not settings.num_decode:
        assert sum(record.num_preemptions for record, _ in outputs.ends.values()) > 0
    if settings.enable_prefix_caching:
        assert sum(record.num_cached_tokens for record, _ in outputs.ends.values()) > 0


def test_the_output_is_cut_at_the_context_and_what_cannot_run_is_rejected() -> None:
    outputs = Outputs()
    with local_cluster(settings_of(), outputs) as cluster:
        cluster.loop.submit(request(0, range(115), 50))
        cluster.loop.submit(request(1, range(120), 50))
        outputs.wait_ended(2)
    assert len(outputs.tokens[0]) == 5
    assert outputs.ends[0][1] is FinishReason.LENGTH
    assert outputs.ends[1][0].outcome is Outcome.REJECTED
