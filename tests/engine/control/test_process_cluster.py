"""Stand-in executors in processes of their own, KV blocks over Unix sockets; some are harmed.

Laws as in ``test_worker_failures``; killing is SIGKILL, stalling SIGSTOP.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_clusters import SETTINGS, Outputs, let_steps_run_late, request, settings_of

from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.fake_executor import reference_tokens
from kvfabric.engine.process_cluster import ProcessCluster, WorkerStartError
from kvfabric.protocol.record import Outcome
from kvfabric.serving.coordinator_config import HandoffMode


def process_cluster(
    outputs: Outputs, *, step_ns: int = 0, restarts_lost: bool = False, **settings: Any
) -> ProcessCluster:
    of_cluster = settings_of(**settings)
    executor = ExecutorSpec(
        model=FAKE,
        num_blocks=of_cluster.num_blocks,
        block_size=SETTINGS["block_size"],
        fake_step_ns=step_ns,
    )
    return ProcessCluster(of_cluster, executor, outputs, restarts_lost=restarts_lost, check=True)


def held() -> set[object]:
    """Return the threads of this process, and what its file descriptors stand for."""
    found: set[object] = set(threading.enumerate())
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.add(path.readlink())
    return found


def assert_right(outputs: Outputs, asked: Sequence[GenerateRequest]) -> None:
    for one in asked:
        assert outputs.ends[one.request_id][0].outcome is Outcome.FINISHED
        expected = reference_tokens(one.prompt_ids, one.sampling)
        assert outputs.tokens[one.request_id] == expected


@pytest.mark.parametrize("handoff", HandoffMode)
@pytest.mark.parametrize("kv_transport", ["sockets", "shared"])
def test_prefill_and_decode_processes_give_the_right_tokens(
    handoff: HandoffMode, kv_transport: str
) -> None:
    outputs = Outputs()
    asked = [request(i, range(7 * i, 7 * i + 20 + i), 12) for i in range(30)]
    settings: dict[str, Any] = {"handoff": handoff, "kv_transport": kv_transport}
    with process_cluster(outputs, num_prefill=2, num_decode=2, **settings) as cluster:
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        assert cluster.loop.driver.moved_bytes > 0
    assert_right(outputs, asked)
    assert cluster.loop.driver.num_held_blocks == 0
    assert cluster.loop.failures == []


@pytest.mark.parametrize("name", ["nixl", "mooncake"])
def test_kv_cache_moves_by_other_transports(name: str) -> None:
    module = {"nixl": "nixl_cu12", "mooncake": "mooncake"}[name]
    pytest.importorskip(module, reason=f"{module} is not installed")
    outputs = Outputs()
    asked = [request(i, range(7 * i, 7 * i + 20 + i), 8) for i in range(10)]
    settings: dict[str, Any] = {"handoff": HandoffMode.LAYER_WISE, "num_layer_groups": 2}
    with process_cluster(outputs, num_decode=1, kv_transport=name, **settings) as cluster:
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
    assert_right(outputs, asked)
    assert cluster.loop.failures == []


def test_a_transport_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkerStartError, match="KV transport 'pigeon'"):
        process_cluster(Outputs(), num_decode=1, kv_transport="pigeon")


@pytest.mark.parametrize("kv_transport", ["sockets", "shared"])
def test_killed_workers_come_back_and_their_requests_run_elsewhere(kv_transport: str) -> None:
    outputs = Outputs()
    settings: dict[str, Any] = {
        "num_prefill": 2,
        "num_decode": 2,
        "max_restarts": 5,
        "kv_transport": kv_transport,
    }
    asked = [request(i, range(7 * i, 7 * i + 40), 20) for i in range(40)]
    with process_cluster(outputs, step_ns=3_000_000, **settings) as cluster:
        for one in asked[:20]:
            cluster.loop.submit(one)
        outputs.wait_ended(2)
        for worker in (0, 3):  # stopped before they die: they have requests then
            os.kill(cluster.links[worker].process.pid, signal.SIGSTOP)
        for one in asked[20:25]:
            cluster.loop.submit(one)
        outputs.wait(lambda: cluster.loop._coordinator.num_arrived == 25)
        cluster.links[0].kill()
        cluster.links[3].kill()
        for one in asked[25:30]:
            cluster.loop.submit(one)
        cluster.restart(0)
        cluster.restart(3)
        for one in asked[30:]:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
    assert_right(outputs, asked)
    assert len(cluster.loop.failures) >= 2
    assert sum(record.num_restarts for record, _ in outputs.ends.values()) > 0


@pytest.mark.parametrize("kv_transport", ["sockets", "shared"])
def test_a_stopped_decode_worker_costs_its_requests_and_nobody_elses(kv_transport: str) -> None:
    outputs = Outputs()
    settings: dict[str, Any] = {
        "num_decode": 2,
        "kv_transport": kv_transport,
        "handoff_deadline_ns": 200_000_000,
        "max_restarts": 3,
    }
    asked = [request(i, range(5 * i, 5 * i + 30), 10) for i in range(8)]
    with process_cluster(outputs, **settings) as cluster:
        let_steps_run_late(cluster.loop, 1, cluster.links[1])
        os.kill(cluster.links[1].process.pid, signal.SIGSTOP)
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        cluster.links[1].kill()
    assert_right(outputs, asked)
    assert "worker 1: its step takes too long" in cluster.loop.failures


def test_a_worker_that_cannot_start_says_why() -> None:
    settings = settings_of()
    executor = ExecutorSpec(model="no-such-model", num_blocks=64, block_size=4)
    with pytest.raises(WorkerStartError, match="no-such-model"):
        ProcessCluster(settings, executor, Outputs())


@pytest.mark.parametrize("kv_transport", ["sockets", "shared"])
def test_a_closed_cluster_leaves_nothing_behind(kv_transport: str) -> None:
    before = held()
    outputs = Outputs()
    with process_cluster(outputs, num_decode=1, kv_transport=kv_transport) as cluster:
        cluster.loop.submit(request(0, range(30)))
        outputs.wait_ended(1)
        cluster.links[0].kill()
        cluster.restart(0)
        cluster.loop.submit(request(1, range(30)))
        outputs.wait_ended(2)
    assert [link.process.poll() for link in cluster.links] == [0, 0]
    assert held() <= before, "what an earlier test left may have gone meanwhile"
    assert not Path(cluster._folder.name).exists()


@pytest.mark.parametrize("kv_transport", ["sockets", "shared"])
def test_lost_workers_come_back_by_themselves(kv_transport: str) -> None:
    outputs = Outputs()
    settings: dict[str, Any] = {"num_decode": 1, "kv_transport": kv_transport}
    with process_cluster(outputs, restarts_lost=True, **settings) as cluster:
        for worker in (0, 1):
            lost = cluster.links[worker]
            lost.kill()
            outputs.wait(lambda: cluster.links[worker] is not lost)  # noqa: B023 - called here
            outputs.wait(lambda: not cluster.loop.driver.workers[worker].is_lost)  # noqa: B023
        asked = request(0, range(30))
        cluster.loop.submit(asked)
        outputs.wait_ended(1)
    assert_right(outputs, [asked])
