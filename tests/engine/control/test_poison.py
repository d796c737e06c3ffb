"""A request that no step can compute: it fails alone, its worker and everybody else live on.

The stand-in executor raises for token ids that it does not have; admission, which would refuse them
before, is not in the way here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_clusters import Outputs, fake_executor, local_cluster, request, settings_of

from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import (
    EngineStep,
    FinishReason,
    NewRequest,
    Sampling,
    ScheduledTokens,
)
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.fake_executor import VOCAB_SIZE, reference_tokens
from kvfabric.engine.isolation import run_isolated
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.protocol.record import Outcome, RequestRecord
from kvfabric.serving.coordinator_config import HandoffMode

POISON = VOCAB_SIZE + 7
SHAPES: dict[str, dict[str, Any]] = {
    "aggregated": {},
    "1 + 1": {"num_decode": 1},
    "layer groups": {"num_decode": 1, "handoff": HandoffMode.LAYER_WISE, "num_layer_groups": 2},
}


class Rounds(Outputs):
    """Asks again once as many have ended; the loop, which tells so, takes them in one instant.

    Which blocks a step shares with the poison depends on who came before it.
    """

    submit: Callable[[GenerateRequest], None]

    def __init__(self, again: Sequence[GenerateRequest]) -> None:
        super().__init__()
        self.again = again

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        super().on_end(record, finish)
        if len(self.ends) == len(self.again):
            for one in self.again:
                self.submit(one)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("place", [0, 17, 39])
def test_it_fails_alone_and_no_worker_dies(shape: dict[str, Any], place: int) -> None:
    settings = settings_of(**shape)
    head = list(range(40))
    poisoned = [*head[:place], POISON, *head[place + 1 :]]
    prompts = [[9, *head], poisoned, head, [8, *head], poisoned, [*head, 1, 2, 3]]
    asked = [request(i, prompt, 5) for i, prompt in enumerate(prompts)]
    again = [request(10 + i, prompt, 5) for i, prompt in enumerate(prompts)]
    outputs = Rounds(again)
    cluster = local_cluster(settings, outputs)
    outputs.submit = cluster.loop.submit
    for one in asked:
        cluster.loop.submit(one)
    with cluster:
        outputs.wait_ended(2 * len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
        assert not any(worker.is_lost for worker in cluster.loop.driver.workers)
    assert cluster.loop.driver.is_quiet
    for one in [*asked, *again]:
        if POISON in one.prompt_ids:
            assert outputs.ends[one.request_id][0].outcome is Outcome.FAILED
            assert one.request_id not in outputs.tokens
            continue
        assert outputs.ends[one.request_id][0].outcome is Outcome.FINISHED
        assert outputs.tokens[one.request_id] == reference_tokens(one.prompt_ids, one.sampling)
    assert any("token ids" in text for text in cluster.loop.failures)


def test_a_worker_process_survives_it() -> None:
    outputs = Outputs()
    settings = settings_of(num_decode=1)
    executor = ExecutorSpec(model=FAKE, num_blocks=settings.num_blocks, block_size=4)
    good = request(1, range(30))
    with ProcessCluster(settings, executor, outputs, check=True) as cluster:
        cluster.loop.submit(request(0, [POISON] * 10))
        cluster.loop.submit(good)
        outputs.wait_ended(2)
        assert [link.process.poll() for link in cluster.links] == [None, None]
    assert outputs.ends[0][0].outcome is Outcome.FAILED
    assert outputs.tokens[1] == reference_tokens(good.prompt_ids, good.sampling)


def test_who_found_blocks_that_were_not_written_fails_too() -> None:
    settings = settings_of(max_num_batched_tokens=64)
    outputs = Outputs()
    fails = True

    def step_ns(step: EngineStep) -> int:
        # whoever holds the blocks of the first request's chunk
        if fails and any(share.request_id == 0 for share in step.scheduled):
            raise ValueError("the first one")
        return 0

    executor = fake_executor(settings, step_ns)
    head = list(range(20))
    with local_cluster(settings, outputs, [executor]) as cluster:
        for i in range(2):
            cluster.loop.submit(request(i, [*head, i], 3))
        outputs.wait_ended(2)
        fails = False
        asked = request(2, [*head, 2], 3)
        cluster.loop.submit(asked)
        outputs.wait_ended(3)
    assert outputs.ends[0][0].outcome is Outcome.FAILED
    assert outputs.ends[2][0].outcome is Outcome.FINISHED
    assert outputs.tokens[2] == reference_tokens(asked.prompt_ids, asked.sampling)
    if outputs.ends[1][0].outcome is Outcome.FINISHED:  # it came a step later
        assert outputs.tokens[1] == reference_tokens([*head, 1], Sampling(3))
    else:
        assert 1 not in outputs.tokens


def test_an_executor_that_takes_no_step_at_all_is_broken() -> None:
    def broken(step: EngineStep) -> int:
        raise RuntimeError(len(step.new))

    executor = fake_executor(settings_of(), broken)
    share = ScheduledTokens(0, 0, 3, samples=True, table_start=0, new_blocks=(1,))
    step = EngineStep((NewRequest(0, (1, 2, 3), Sampling(4)),), (share,))
    with pytest.raises(RuntimeError):
        run_isolated(executor, step, None)
