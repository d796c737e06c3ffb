"""``kvfabric worker``: one worker of a cluster on several hosts."""

import os
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from kvfabric.engine.hosts.joining import Role, check_token, host_and_port
from kvfabric.engine.hosts.remote_worker import RemoteWorker, RemoteWorkerSettings
from kvfabric.engine.model_sources import open_model
from kvfabric.errors import ConfigError, KvfabricError


def run_worker(options: Mapping[str, Any]) -> NoReturn:
    """Join a cluster, serve it until it ends, and end the process.

    Raises:
        ConfigError: an address, a token or a model that cannot be used.
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
    code = 0
    try:
        RemoteWorker(settings, _say).run()
    except KvfabricError as error:
        _say(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        code = 130
    os._exit(code)  # what NIXL loads crashes when it is unloaded, and torch takes its time


def _say(text: str) -> None:
    click.echo(f"kvfabric: {text}", err=True)
