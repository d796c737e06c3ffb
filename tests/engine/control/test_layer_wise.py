"""Layer-wise hand-offs: a layer group of a chunk leaves while later layers are computed.

Laws: the tokens are those of a computation without cache, a group is on its way before its step
ends, and whatever dies or is cancelled in the middle of a group leaks no block on either side.
"""

import signal
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from fake_clusters import Outputs, fake_executor, local_cluster, request, settings_of
from replays import replay

from kvfabric.engine.block_transfers import Moving
from kvfabric.engine.decision_log import NEVER_NS, DecisionLog
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.fake_executor import reference_tokens
from kvfabric.engine.messages import SendBlocks, ToWorker
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.protocol.record import Outcome
from kvfabric.serving.coordinator_config import HandoffMode

LAYER_WISE: dict[str, Any] = {
    "num_decode": 1,
    "handoff": HandoffMode.LAYER_WISE,
    "num_layer_groups": 2,
}
STEP_NS = 60_000_000


def processes(outputs: Outputs, log: DecisionLog | None = None, **settings: Any) -> ProcessCluster:
    of_cluster = settings_of(**(LAYER_WISE | settings))
    executor = ExecutorSpec(
        model=FAKE, num_blocks=of_cluster.num_blocks, block_size=4, fake_step_ns=STEP_NS
    )
    return ProcessCluster(of_cluster, executor, outputs, log=log, check=True)


def test_a_layer_group_is_on_its_way_before_its_step_ends() -> None:
    outputs, log = Outputs(), DecisionLog()
    asked = [request(i, range(100 * i, 100 * i + 45), 4) for i in range(3)]
    with processes(outputs, log) as cluster:
        for i, one in enumerate(asked):
            cluster.loop.submit(one)
            outputs.wait_ended(i + 1)  # the next one's blocks are reserved at once then
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
        block_bytes = cluster.block_bytes
        moved_bytes = cluster.loop.driver.moved_bytes
    assert cluster.loop.failures == []
    for one in asked:
        assert outputs.tokens[one.request_id] == reference_tokens(one.prompt_ids, one.sampling)
    # every block of every layer has moved once: 12 of each prompt
    assert moved_bytes == 3 * 12 * block_bytes
    chunks = [step for step in log.steps if step.worker_id == 0]
    assert chunks
    assert all(step.start_ns < at < step.end_ns for step in chunks for at in step.layers_ns)
    assert all(len(step.layers_ns) == 1 for step in chunks)
    starts = {start_ns for start_ns, _ in log.transfers.values()}
    early = [at for step in chunks for at in step.layers_ns if at in starts]
    assert len(early) == len(chunks), "each first group left at once, its blocks were reserved"
    replayed = replay(settings_of(**LAYER_WISE), log, block_bytes, num_layers=2)
    assert replayed.log_digest == log.digest


def test_groups_of_many_layers_move_in_their_shares() -> None:
    settings = settings_of(**(LAYER_WISE | {"num_layer_groups": 3}))
    outputs, log = Outputs(), DecisionLog()
    executors = [fake_executor(settings, lambda _: 500_000, num_layers=7) for _ in range(2)]
    random = Random(1)
    prompts = [random.choices(range(1000), k=random.randint(1, 70)) for _ in range(20)]
    prompts += [[*prompt, 5, 6, 7, 8, 9] for prompt in prompts[:5]]
    asked = [request(i, prompt, 6) for i, prompt in enumerate(prompts)]
    with local_cluster(settings, outputs, executors, log=log) as cluster:
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
    for one in asked:
        expected = reference_tokens(one.prompt_ids, one.sampling, num_layers=7)
        assert outputs.tokens[one.request_id] == expected
    blocks = sum(-(-len(prompt) // 4) for prompt in prompts)
    assert cluster.loop.driver.moved_bytes == blocks * executors[0].block_bytes
    assert replay(settings, log, executors[0].block_bytes, 7).log_digest == log.digest


def test_no_more_groups_than_layers() -> None:
    settings = settings_of(**(LAYER_WISE | {"num_layer_groups": 50}))
    outputs = Outputs()
    with local_cluster(settings, outputs) as cluster:
        asked = request(0, range(30))
        cluster.loop.submit(asked)
        outputs.wait_ended(1)
    assert outputs.tokens[0] == reference_tokens(asked.prompt_ids, asked.sampling)


def stop_within_a_group(cluster: ProcessCluster) -> list[Moving]:
    """Stop both workers of the first transfer that starts while its step goes on.

    Return where that transfer is put once they are stopped.
    """
    caught: list[Moving] = []

    def post(post: Callable[[ToWorker], None], message: ToWorker) -> None:
        driver = cluster.loop.driver
        if isinstance(message, SendBlocks) and not caught:
            moving = driver._blocks._moving[message.transfer_id]
            source = driver.workers[moving.source]
            if source.plan is not None and source.layers_ns:
                for worker in (moving.source, moving.destination):
                    cluster.links[worker].process.send_signal(signal.SIGSTOP)
                caught.append(moving)
        post(message)

    for link in cluster.links:
        link.post = partial(post, link.post)  # type: ignore[method-assign]
    return caught


@pytest.mark.parametrize("happening", ["source dies", "destination dies", "client gives up"])
def test_what_happens_in_the_middle_of_a_group_leaks_nothing(happening: str) -> None:
    outputs, log = Outputs(), DecisionLog()
    settings = {"num_prefill": 2, "num_decode": 2, "max_restarts": 3}
    asked = [request(i, range(100 * i, 100 * i + 60), 4) for i in range(6)]
    with processes(outputs, log, **settings) as cluster:
        caught = stop_within_a_group(cluster)
        for one in asked:
            cluster.loop.submit(one)
        driver = cluster.loop.driver
        outputs.wait(lambda: bool(caught))
        (moving,) = caught
        if happening == "client gives up":
            for one in asked[:4]:
                cluster.loop.cancel(one.request_id)
            outputs.wait(lambda: {one.request_id for one in asked[:4]} <= outputs.ends.keys())
        else:
            dead = moving.source if happening == "source dies" else moving.destination
            cluster.links[dead].kill()
            outputs.wait(lambda: driver.workers[dead].is_lost)
        for worker in (moving.source, moving.destination):
            cluster.links[worker].process.send_signal(signal.SIGCONT)
        if happening != "client gives up":
            cluster.restart(dead)
        after = [request(10 + i, range(100 * i, 100 * i + 60), 4) for i in range(4)]
        for one in after:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked) + len(after))
        outputs.wait(lambda: driver.num_held_blocks == 0)
        outputs.wait(lambda: driver.is_quiet)
    for one in [*asked, *after]:
        expected = reference_tokens(one.prompt_ids, one.sampling)
        is_over = outputs.ends[one.request_id][0].outcome is Outcome.FINISHED
        got = outputs.tokens.get(one.request_id, [])
        assert got == (expected if is_over else expected[: len(got)])
    finished = [r for r, _ in outputs.ends.values() if r.outcome is Outcome.FINISHED]
    assert len(finished) >= (6 if happening == "client gives up" else 10)
    if happening == "source dies":
        assert any(step.end_ns == NEVER_NS for step in log.steps)
