"""Clusters of workers that join over TCP, started by hand as another host would."""

import subprocess
import sys
import time  # noqa: TID251 - runs in real time
from collections.abc import Callable, Sequence
from typing import Any

from fake_clusters import PATIENCE_S, Outputs, settings_of

from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.events import GenerateRequest
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec
from kvfabric.engine.fake_executor import reference_tokens
from kvfabric.engine.hosts.joining import Role
from kvfabric.engine.hosts.remote_cluster import RemoteCluster
from kvfabric.protocol.record import Outcome

TOKEN = b"a token of some length"
_MAIN = """
import sys
from kvfabric.engine.hosts.joining import Role
from kvfabric.engine.hosts.remote_worker import RemoteWorker, RemoteWorkerSettings

host, port, role, model, token, attempts = sys.argv[1:]
settings = RemoteWorkerSettings(
    control=(host, int(port)),
    token=token.encode(),
    role=Role(role),
    model=model,
    num_attempts=int(attempts),
)
try:
    RemoteWorker(settings, lambda text: print(text, file=sys.stderr, flush=True)).run()
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def remote_cluster(
    outputs: Outputs,
    *,
    host: str = "127.0.0.1",
    step_ns: int = 0,
    log: DecisionLog | None = None,
    **settings: Any,
) -> RemoteCluster:
    of_cluster = settings_of(**settings)
    executor = ExecutorSpec(
        model="not told", num_blocks=of_cluster.num_blocks, block_size=4, fake_step_ns=step_ns
    )
    listen_on = (host, 0)
    return RemoteCluster(
        of_cluster, executor, outputs, listen_on=listen_on, token=TOKEN, log=log, check=True
    )


def start_worker(
    address: tuple[str, int],
    role: Role,
    *,
    model: str = FAKE,
    token: bytes = TOKEN,
    attempts: int = 20,
    within: Sequence[str] = (),
) -> subprocess.Popen[str]:
    host, port = address
    arguments = [host, str(port), role.value, model, token.decode(), str(attempts)]
    return subprocess.Popen(
        [*within, sys.executable, "-c", _MAIN, *arguments], stderr=subprocess.PIPE, text=True
    )


def wait(is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)


def assert_right(outputs: Outputs, asked: Sequence[GenerateRequest]) -> None:
    for one in asked:
        assert outputs.ends[one.request_id][0].outcome is Outcome.FINISHED
        expected = reference_tokens(one.prompt_ids, one.sampling)
        assert outputs.tokens[one.request_id] == expected
