"""A worker's thread of steps: whether its executor can be used again afterwards."""

import pytest

from kvfabric.engine.executor_port import EngineStep, Reached, StepOutput
from kvfabric.engine.fake_executor import FakeExecutor
from kvfabric.engine.messages import FromWorker, WorkerFailed
from kvfabric.engine.transport_mover import TransportMover
from kvfabric.engine.worker import Worker


class NoMover(TransportMover):
    def __init__(self) -> None:
        """Move nothing."""

    def close(self) -> None:
        """Do nothing."""


class Broken(FakeExecutor):
    def run(self, step: EngineStep, reached: Reached | None = None) -> StepOutput:
        del step, reached
        raise RuntimeError("the device is gone")


@pytest.mark.parametrize("make", [FakeExecutor, Broken])
def test_an_executor_whose_step_failed_is_not_used_again(make: type[FakeExecutor]) -> None:
    told: list[FromWorker] = []
    worker = Worker(make(8, 4), NoMover(), told.append)
    worker.handle(EngineStep((), ()))
    worker.stop()
    assert worker.join() is (make is FakeExecutor)
    assert isinstance(told[0], WorkerFailed) is (make is Broken)
