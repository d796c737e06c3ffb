"""The workers behind ``kvfabric serve``: processes of this host, or whoever joins from others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvfabric.engine.cluster_settings import ClusterSettings
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.executor_spec import ExecutorSpec
from kvfabric.engine.hosts.joining import check_token, host_and_port
from kvfabric.engine.hosts.remote_cluster import RemoteCluster
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.engine.server.supervisor import Supervisor
from kvfabric.engine.token_streams import OutputSink
from kvfabric.errors import ConfigError

Say = Callable[[str], None]


@contextmanager
def local_workers(
    settings: ClusterSettings,
    executor: ExecutorSpec,
    sink: OutputSink,
    on_error: Callable[[BaseException], None],
    say: Say,
    *,
    log: DecisionLog | None,
) -> Iterator[ProcessCluster]:
    """Start worker processes, bring back those that die, and end them all."""
    say(f"starting {settings.num_workers} worker(s) of {executor.model}")
    cluster = ProcessCluster(settings, executor, sink, on_error=on_error, log=log)
    with cluster, Supervisor(cluster):
        yield cluster


@contextmanager
def remote_workers(
    settings: ClusterSettings,
    executor: ExecutorSpec,
    sink: OutputSink,
    on_error: Callable[[BaseException], None],
    say: Say,
    *,
    log: DecisionLog | None,
    listen_on: str,
    token: str | None,
) -> Iterator[RemoteCluster]:
    """Wait until all workers have joined, and tell them to end in the end.

    Raises:
        ConfigError: no token, or an address that cannot be listened on.
    """
    if token is None:
        raise ConfigError(
            "workers join from other hosts and no token keeps strangers out",
            where="--worker-token",
            hint="Write one, or better set KVFABRIC_WORKER_TOKEN, here and on every host",
        )
    cluster = RemoteCluster(
        settings,
        executor,
        sink,
        listen_on=host_and_port(listen_on, "--workers-on"),
        token=check_token(token, "--worker-token"),
        on_event=say,
        on_error=on_error,
        log=log,
    )
    try:
        host, port = cluster.address
        shown = f"[{host}]" if ":" in host else host
        missing = [f"{number} {role.value}" for role, number in cluster.missing().items() if number]
        say(f"waiting for workers to join {shown}:{port}: {', '.join(missing)}")
        cluster.wait_ready()
    except BaseException:
        cluster.close()
        raise
    with cluster:
        yield cluster
