"""Clusters of stand-in executors, and who takes their output."""

import threading
import time  # noqa: TID251 - runs in real time
from collections.abc import Callable, Sequence
from typing import Any

from kvfabric.engine.block_hashes import block_hashes
from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.control_loop import ControlLoop, WorkerLink
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_port import EngineStep, FinishReason, Sampling
from kvfabric.engine.fake_executor import FakeExecutor
from kvfabric.engine.local_cluster import LocalCluster
from kvfabric.engine.messages import ToWorker
from kvfabric.protocol.record import RequestRecord

PATIENCE_S = 240.0  # only against waiting for ever: a machine may be slow
NUM_LAYERS = 2  # of the executors of ``ExecutorSpec`` too
SETTINGS: dict[str, Any] = {
    "num_blocks": 64,
    "block_size": 4,
    "max_model_len": 120,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "signal_interval_ns": 1_000_000,
}


class Outputs:
    """Keeps tokens and ends, and lets a test wait for them."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, tuple[RequestRecord, FinishReason | None]] = {}
        self._changed = threading.Condition()

    def on_token(self, request_id: int, token_id: int) -> None:
        with self._changed:
            assert request_id not in self.ends, "a token after the end"
            self.tokens.setdefault(request_id, []).append(token_id)
            self._changed.notify_all()

    def on_end(self, record: RequestRecord, finish: FinishReason | None) -> None:
        with self._changed:
            assert record.request_id not in self.ends, "a request ended twice"
            self.ends[record.request_id] = record, finish
            self._changed.notify_all()

    def wait_ended(self, num: int, timeout_s: float = PATIENCE_S) -> None:
        self.wait(lambda: len(self.ends) >= num, timeout_s)

    def wait(self, is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while not is_so():
                assert time.monotonic() < end_s, "waited in vain"
                self._changed.wait(0.02)  # what is waited for need not be an output


def let_steps_run_late(loop: ControlLoop, worker_id: int, link: WorkerLink) -> None:
    """Let every step of one worker come to its deadline soon; the others keep all their time.

    That of the loop is as long as ever: a good step takes long on a busy machine.
    """
    post = link.post

    def posted(message: ToWorker) -> None:
        if isinstance(message, EngineStep):
            loop.driver.workers[worker_id].start_ns -= loop._step_deadline_ns - 50_000_000
        post(message)

    link.post = posted  # type: ignore[method-assign]


def let_time_pass(loop: ControlLoop, time_ns: int) -> None:
    """Put the clock of a running loop forward."""
    clock = loop._clock
    loop._clock = lambda: clock() + time_ns
    loop.cancel(-1)  # nobody's: the loop looks at its clock


def settings_of(**settings: Any) -> ClusterSettings:
    return ClusterSettings(**(SETTINGS | settings))


def fake_executor(
    settings: ClusterSettings,
    step_ns: Callable[[EngineStep], int] | None = None,
    num_layers: int = NUM_LAYERS,
) -> FakeExecutor:
    return FakeExecutor(
        settings.num_blocks, settings.block_size, num_layers=num_layers, step_ns=step_ns
    )


def local_cluster(
    settings: ClusterSettings,
    outputs: Outputs,
    executors: Sequence[FakeExecutor] | None = None,
    *,
    log: DecisionLog | None = None,
) -> LocalCluster:
    executors = executors or [fake_executor(settings) for _ in range(settings.num_workers)]
    return LocalCluster(
        settings,
        executors,
        outputs,
        block_bytes=executors[0].block_bytes,
        num_layers=executors[0].num_layers,
        log=log,
        check=True,
    )


def request(
    request_id: int, prompt_ids: Sequence[int], max_tokens: int = 10, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        request_id,
        tuple(prompt_ids),
        Sampling(max_tokens, **sampling),
        block_hashes(prompt_ids, SETTINGS["block_size"]),
        hash_key=b"",
    )
