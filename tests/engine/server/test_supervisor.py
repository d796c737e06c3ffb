"""Workers that die come back by themselves."""

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
    with _cluster(outputs) as cluster, Supervisor(cluster, period_s=0.05):
        workers = cluster.loop.driver.workers
        for worker_id in (1, 0):
            before = cluster.links[worker_id]
            before.kill()
            wait_until(lambda: cluster.links[worker_id] is not before)  # noqa: B023 - waited for
            wait_until(lambda: not workers[worker_id].is_lost)  # noqa: B023
        cluster.loop.submit(request(0, range(20)))
        outputs.wait_ended(1)
    assert outputs.ends[0][1] is not None


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
            wait_until(lambda: broken.num_attempts == 3)
            wait_until(lambda: not cluster.loop.driver.workers[0].is_lost)
    assert "worker_id=0 does not start: no memory" in caplog.text
