"""A worker of another host: joins a cluster, serves it, and joins again when it was lost."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, fields
from time import sleep
from typing import Any

from kvfabric.engine.executor_spec import ExecutorSpec, MadeExecutor
from kvfabric.engine.hosts.joining import (
    JOIN_S,
    BusyError,
    JoinError,
    Role,
    Welcome,
    join,
    keep_alive,
)
from kvfabric.engine.messages import Refused, Stop, WorkerFailed
from kvfabric.engine.wire import MessageSocket, WireError
from kvfabric.engine.worker_main import WorkerProcess, WorkerProcessSettings
from kvfabric.errors import ConfigError, KvfabricError

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 15.0
_OF_THE_CLUSTER = {"num_blocks", "block_size", "dtype", "kv_dtype", "fake_step_ns"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkerSettings:
    """A worker to be.

    Attributes:
        control: host and port of the control.
        token: that it must know.
        role: what this worker is.
        model: as this host names it.
        device: for torch.
        num_threads: for torch; None leaves it alone.
        data_address: host, and port or 0, where other workers reach this one with KV blocks; None
            takes the address that it reaches the control from.
        num_attempts: to join in a row without success; None tries for ever.
    """

    control: tuple[str, int]
    token: bytes
    role: Role
    model: str
    device: str = "cpu"
    num_threads: int | None = None
    data_address: tuple[str, int] | None = None
    num_attempts: int | None = None


class RemoteWorker:
    """Runs until the cluster ends or refuses it."""

    def __init__(self, settings: RemoteWorkerSettings, say: Callable[[str], None]) -> None:
        """Make a worker; ``say`` is told what it does."""
        self._settings, self._say = settings, say
        self._kept: tuple[ExecutorSpec, MadeExecutor] | None = None  # of a connection that was lost

    def run(self) -> None:
        """Join, serve, and join again after a lost connection.

        Raises:
            JoinError: it is refused, or could not join.
            ConfigError: the model is not there or cannot be run.
        """
        num_failed = 0
        while True:
            try:
                if self._serve_once():
                    return
                num_failed = 0
                self._say("the control has gone; joining again")
            except (BusyError, OSError) as error:
                num_failed += 1
                host, port = self._settings.control
                text = f"cannot join {host}:{port}: {error}"
                if num_failed == self._settings.num_attempts:
                    raise JoinError(text) from None
                self._say(text)
            sleep(min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(num_failed, 8)))

    def _serve_once(self) -> bool:
        """Serve over one connection; return whether the cluster has ended."""
        settings = self._settings
        sock = socket.create_connection(settings.control, JOIN_S)
        control: MessageSocket | None = None
        try:
            keep_alive(sock)
            welcome = join(sock, settings.token, settings.role)
            local_host: str = sock.getsockname()[0]
            control = MessageSocket(sock)
            return self._serve(control, welcome, local_host)
        except (KvfabricError, WireError, MemoryError) as error:
            if control is not None:
                _tell(control, str(error) or repr(error))
            raise
        finally:
            if control is None:
                sock.close()
            else:
                control.close()

    def _serve(self, control: MessageSocket, welcome: Welcome, local_host: str) -> bool:
        host, port = self._settings.data_address or (local_host, 0)
        shown = f"[{host}]" if ":" in host else host
        spec = self._executor(welcome)
        process = WorkerProcess(
            control,
            WorkerProcessSettings(
                executor=spec.to_dict(),
                listen_on=f"tcp:{shown}:{port}",
                cluster=welcome.cluster,
                transfer_timeout_ns=welcome.transfer_timeout_ns,
                transport=welcome.transport,
            ),
            self._take_kept(spec),
        )
        self._say(f"serving as {self._settings.role.value} worker")
        match process.run():
            case Refused(reason):
                raise JoinError(reason)
            case Stop():
                return True
            case None:
                if process.has_ended:
                    process.made.executor.forget_requests()
                    self._kept = spec, process.made
                return False

    def _take_kept(self, spec: ExecutorSpec) -> MadeExecutor | None:
        """Return the executor of the last connection if it is such a one; loading takes minutes."""
        kept, self._kept = self._kept, None
        return kept[1] if kept is not None and kept[0] == spec else None

    def _executor(self, welcome: Welcome) -> ExecutorSpec:
        own: dict[str, Any] = {
            "model": self._settings.model,
            "device": self._settings.device,
            "num_threads": self._settings.num_threads,
        }
        known = {field.name for field in fields(ExecutorSpec)}
        given = welcome.executor
        if not _OF_THE_CLUSTER <= given.keys() <= known - own.keys():
            raise ConfigError(f"the control asks for {sorted(given)[:20]}", hint="Use one version")
        return ExecutorSpec(**own, **given)


def _tell(control: MessageSocket, reason: str) -> None:
    try:
        control.send(WorkerFailed(reason))
    except OSError:
        return  # nobody is there to be told
