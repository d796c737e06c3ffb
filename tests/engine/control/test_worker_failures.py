"""Workers that die, stall and come back, clients that give up: every request ends exactly once.

Laws: no block is leaked on any worker, what finished has the tokens of a computation without cache,
whatever happened to the others (kvfabric issue: "an error or a re-route, the rest keeps running").
"""

import threading
import time  # noqa: TID251 - runs in real time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from fake_clusters import (
    Outputs,
    fake_executor,
    let_steps_run_late,
    local_cluster,
    request,
    settings_of,
)
from replays import replay

from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import EngineStep
from kvfabric.engine.fake_executor import FakeExecutor, reference_tokens
from kvfabric.engine.local_cluster import LocalCluster
from kvfabric.engine.messages import SendBlocks, ToWorker, TransferFailed
from kvfabric.protocol.record import Outcome
from kvfabric.serving.coordinator_config import HandoffMode, OnExpiry, Reservation

SHAPES: dict[str, dict[str, Any]] = {
    "aggregated": {"num_prefill": 3},
    "2 + 2": {"num_prefill": 2, "num_decode": 2},
    "decode first": {
        "num_prefill": 2,
        "num_decode": 2,
        "reservation": Reservation.DECODE_FIRST,
        "num_blocks": 40,
    },
    "streamed": {"num_prefill": 2, "num_decode": 2, "handoff": HandoffMode.LAYER_WISE},
    "layer groups": {
        "num_prefill": 2,
        "num_decode": 2,
        "handoff": HandoffMode.LAYER_WISE,
        "num_layer_groups": 2,
    },
}


def is_right(outputs: Outputs, asked: GenerateRequest) -> bool:
    expected = reference_tokens(asked.prompt_ids, asked.sampling)
    got = outputs.tokens.get(asked.request_id, [])
    if outputs.ends[asked.request_id][0].outcome is Outcome.FINISHED:
        return got == expected
    return got == expected[: len(got)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_anything_may_happen_at_any_time(shape: dict[str, Any], seed: int) -> None:
    settings, outputs, random, log = settings_of(**shape), Outputs(), Random(seed), DecisionLog()
    delay = lambda step: random.choice([0, 50_000, 300_000]) * bool(step.scheduled)
    executors = [fake_executor(settings, delay) for _ in range(settings.num_workers)]
    asked: list[GenerateRequest] = []
    dead: set[int] = set()
    with local_cluster(settings, outputs, executors, log=log) as cluster:
        for _ in range(600):
            happening = random.random()
            if happening < 0.5:
                prompt = [7] * random.choice([0, 24]) + random.choices(range(1000), k=30)
                asked.append(request(len(asked), prompt, random.randint(1, 30)))
                cluster.loop.submit(asked[-1])
            elif happening < 0.6 and asked:
                cluster.loop.cancel(random.randrange(len(asked)))
            elif happening < 0.63 and len(dead) < settings.num_workers - 1:
                worker = random.choice(sorted(set(range(settings.num_workers)) - dead))
                dead.add(worker)
                cluster.kill(worker)
            elif happening < 0.68 and dead:
                worker = random.choice(sorted(dead))
                dead.remove(worker)
                executors[worker] = fake_executor(settings, delay)
                cluster.restart(worker, executors[worker])
            elif happening < 0.8:
                time.sleep(0.001)
        for worker in dead:
            executors[worker] = fake_executor(settings, delay)
            cluster.restart(worker, executors[worker])
        num_before = len(asked)
        for _ in range(20):
            asked.append(request(len(asked), random.choices(range(1000), k=30)))
            cluster.loop.submit(asked[-1])
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
    driver = cluster.loop.driver
    assert driver.is_quiet
    assert driver.num_held_blocks == 0
    assert all(is_right(outputs, one) for one in asked)
    after = [outputs.ends[one.request_id][0].outcome for one in asked[num_before:]]
    assert set(after) == {Outcome.FINISHED}, "all workers were back"
    assert replay(settings, log, executors[0].block_bytes).log_digest == log.digest


class SlowCopies(FakeExecutor):
    """KV cache that takes long to leave."""

    delay_s = 0.0

    def read_blocks(self, *args: Any) -> memoryview:
        time.sleep(self.delay_s)
        return super().read_blocks(*args)


@pytest.mark.parametrize("on_expiry", OnExpiry)
def test_a_stalled_transfer_ends_by_its_deadline(on_expiry: OnExpiry) -> None:
    settings = settings_of(num_decode=1, handoff_deadline_ns=30_000_000, on_expiry=on_expiry)
    source = SlowCopies(settings.num_blocks, settings.block_size)
    source.delay_s = 0.3
    outputs = Outputs()
    asked = [request(0, range(50)), request(1, range(100, 150))]
    with local_cluster(settings, outputs, [source, fake_executor(settings)]) as cluster:
        cluster.loop.submit(asked[0])
        outputs.wait_ended(1)
        source.delay_s = 0.0
        cluster.loop.submit(asked[1])
        outputs.wait_ended(2)
    is_failed = on_expiry is OnExpiry.FAIL
    assert outputs.ends[0][0].outcome is (Outcome.ABORTED if is_failed else Outcome.FINISHED)
    assert all(is_right(outputs, one) for one in asked)
    assert cluster.loop.driver.num_held_blocks == 0


def cut_transfers(cluster: LocalCluster, random: Random) -> None:
    """Let one side report the end of every third transfer before its source is told to send."""

    def cut(post: Callable[[ToWorker], None], message: ToWorker) -> None:
        if isinstance(message, SendBlocks) and random.random() < 1 / 3:
            side = random.choice([0, 3])
            failed = TransferFailed(message.transfer_id, "cut")
            cluster.loop.receive(side, cluster._links[side], failed)
        post(message)

    for link in cluster._links:
        link.post = partial(cut, link.post)  # type: ignore[method-assign]


@pytest.mark.parametrize("on_expiry", OnExpiry)
@pytest.mark.parametrize("shape", ["2 + 2", "decode first", "streamed", "layer groups"])
def test_a_transfer_that_fails_ends_at_once_and_only_its_request_knows(
    shape: str, on_expiry: OnExpiry
) -> None:
    settings, log = settings_of(**SHAPES[shape], on_expiry=on_expiry), DecisionLog()
    outputs, random = Outputs(), Random(3)
    executors = [SlowCopies(settings.num_blocks, settings.block_size) for _ in range(4)]
    for executor in executors:
        executor.delay_s = 0.002
    asked = [request(i, random.choices(range(1000), k=50), 5) for i in range(60)]
    cluster = local_cluster(settings, outputs, executors, log=log)
    cut_transfers(cluster, random)
    with cluster:
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
    outcomes = [outputs.ends[one.request_id][0].outcome for one in asked]
    is_failed = on_expiry is OnExpiry.FAIL
    assert set(outcomes) == ({Outcome.ABORTED} if is_failed else set()) | {Outcome.FINISHED}
    assert all(is_right(outputs, one) for one in asked)
    assert cluster.loop._coordinator.num_broken > 0
    assert cluster.loop._coordinator.num_expired == 0
    assert cluster.loop.driver.is_quiet
    assert replay(settings, log, executors[0].block_bytes).log_digest == log.digest


def test_a_worker_that_stalls_is_taken_for_dead_and_its_requests_go_elsewhere() -> None:
    settings, outputs = settings_of(num_prefill=2), Outputs()
    goes_on = threading.Event()

    def stall(step: EngineStep) -> int:
        goes_on.wait()
        return 0 * len(step.scheduled)

    executors = [fake_executor(settings, stall), fake_executor(settings)]
    cluster = local_cluster(settings, outputs, executors)
    let_steps_run_late(cluster.loop, 0, cluster._links[0])
    with cluster:
        asked = [request(i, range(i, 40)) for i in range(4)]
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(4)
        goes_on.set()
    assert all(record.outcome is Outcome.FINISHED for record, _ in outputs.ends.values())
    assert all(is_right(outputs, one) for one in asked)
    assert cluster.loop.failures == ["worker 0: its step takes too long"]


def test_a_step_that_fails_ends_the_worker_and_not_the_cluster() -> None:
    settings, outputs = settings_of(num_prefill=2, max_restarts=0), Outputs()

    def fail(step: EngineStep) -> int:
        raise ValueError(len(step.scheduled))

    with local_cluster(
        settings, outputs, [fake_executor(settings, fail), fake_executor(settings)]
    ) as cluster:
        for i in range(4):
            cluster.loop.submit(request(i, range(40)))
        outputs.wait_ended(4)
    outcomes = [outputs.ends[i][0].outcome for i in range(4)]
    assert Outcome.FINISHED in outcomes
    assert "a step failed" in cluster.loop.failures[0]
