"""Workers that die come back by themselves."""

import threading
from typing import Any

import pytest
from fake_clusters import SETTINGS, Outputs, request, settings_of
from http_server import wait_until

from kvfabric.engine.control_loop import ControlLoop
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.process_cluster import ProcessCluster, WorkerStartError
from kvfabric.engine.server.supervisor import Supervisor


def _cluster(outputs: Outputs) -> ProcessCluster:
    settings = settings_of(num_decode=1)
    spec = ExecutorSpec(
        model=FAKE, num_blocks=settings.num_blocks, block_size=SETTINGS["block_size"]
    )
    return ProcessCluster(settings, spec, outputs, check=True)


def test_killed_processes_are_started_again() -> None:
    outputs = Outputs()
    with _cluster(outputs) as cluster:
        with Supervisor(cluster, period_s=0.05):
            workers = cluster.loop.driver.workers
            for worker_id in (1, 0):
                before = cluster.links[worker_id]
                before.kill()
                wait_until(lambda: cluster.links[worker_id] is not before)  # noqa: B023 - waited for
                wait_until(lambda: not workers[worker_id].is_lost)  # noqa: B023
        cluster.loop.submit(request(0, range(20)))
        outputs.wait_ended(1)
    assert outputs.ends[0][1] is not None


class _Slow:
    """A cluster whose loop takes in what comes back once it is let; counts starts and looks."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster, self.goes_on = cluster, threading.Event()
        self.num_starts = self.num_looks = 0
        rejoin = cluster.loop._rejoin

        def rejoin_late(*arguments: Any) -> None:
            self.goes_on.wait()
            rejoin(*arguments)

        cluster.loop._rejoin = rejoin_late  # type: ignore[assignment]

    @property
    def loop(self) -> ControlLoop:
        self.num_looks += 1
        return self.cluster.loop

    def restart(self, worker_id: int) -> None:
        self.num_starts += 1
        self.cluster.restart(worker_id)


def test_one_that_has_come_back_is_not_started_again_while_the_loop_is_slow() -> None:
    with _cluster(Outputs()) as cluster:
        slow = _Slow(cluster)
        with Supervisor(slow, period_s=0.02):
            cluster.links[0].kill()
            wait_until(lambda: slow.num_starts == 1 and cluster.loop.is_joining(0))
            before = slow.num_looks
            wait_until(lambda: slow.num_looks >= before + 3)
            slow.goes_on.set()
            wait_until(lambda: not cluster.loop.driver.workers[0].is_lost)
            wait_until(lambda: not cluster.loop.is_joining(0))
    assert slow.num_starts == 1


class _Broken:
    """A cluster whose worker 0 is dead and starts at the third attempt only."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster, self.num_attempts = cluster, 0

    @property
    def loop(self) -> ControlLoop:
        return self.cluster.loop

    def restart(self, worker_id: int) -> None:
        self.num_attempts += 1
        if self.num_attempts < 3:
            raise WorkerStartError("no memory")
        self.cluster.restart(worker_id)


def test_a_start_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with _cluster(Outputs()) as cluster:
        broken = _Broken(cluster)
        with Supervisor(broken, period_s=0.02):
            cluster.links[0].kill()
            wait_until(lambda: broken.num_attempts >= 3)
            wait_until(lambda: not cluster.loop.driver.workers[0].is_lost)
    assert "worker_id=0 does not start: no memory" in caplog.text
