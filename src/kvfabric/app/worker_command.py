"""``kvfabric worker``: one worker of a cluster on several hosts."""

from collections.abc import Mapping
from typing import Any

import click

from kvfabric.engine.hosts.joining import Role, check_token, host_and_port
from kvfabric.engine.hosts.remote_worker import RemoteWorker, RemoteWorkerSettings
from kvfabric.engine.model_sources import open_model
from kvfabric.errors import ConfigError


def run_worker(options: Mapping[str, Any]) -> None:
    """Join a cluster and serve it until it ends.

    Raises:
        ConfigError: an address, a token or a model that cannot be used.
        JoinError: the cluster refuses this worker, or could not be reached.
    """
    if options["worker_token"] is None:
        raise ConfigError(
            "no token",
            where="--worker-token",
            hint="Write the one of kvfabric serve, or better set KVFABRIC_WORKER_TOKEN",
        )
    data_address = options["data_address"]
    open_model(options["model"])  # so that a wrong name is told before anybody is asked
    settings = RemoteWorkerSettings(
        control=host_and_port(options["join"], "--join"),
        token=check_token(options["worker_token"], "--worker-token"),
        role=Role(options["role"]),
        model=options["model"],
        device=options["device"],
        num_threads=options["threads"],
        data_address=data_address and host_and_port(data_address, "--data-address"),
        num_attempts=options["attempts"],
    )
    RemoteWorker(settings, lambda text: click.echo(f"kvfabric: {text}", err=True)).run()
