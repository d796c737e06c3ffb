"""A worker process: ``python -m kvfabric.engine.worker_main FD SETTINGS``.

FD is the inherited end of the control connection, SETTINGS a JSON object: the fields of
``WorkerProcessSettings``. It ends when the control says so or has gone.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import asdict, dataclass

from kvfabric.engine.executor_spec import ExecutorSpec, MadeExecutor, make_executor
from kvfabric.engine.messages import FromWorker, Hello, Refused, Stop, WorkerFailed
from kvfabric.engine.transport.choose import SOCKETS, make_transport, maps_pools
from kvfabric.engine.transport.handshake import Identity
from kvfabric.engine.transport.port import Deadlines, KvTransport
from kvfabric.engine.transport_mover import TransportMover, report_to
from kvfabric.engine.wire import MessageSocket, WireError, decode_to_worker
from kvfabric.engine.worker import Worker
from kvfabric.errors import KvfabricError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcessSettings:
    """What a worker process has to know.

    Attributes:
        executor: fields of an ``ExecutorSpec``.
        listen_on: where it takes KV blocks, see ``transport.address``.
        cluster: name that all workers of the cluster share.
        transfer_timeout_ns: until a transfer fails.
        transport: name for ``transport.choose``.
    """

    executor: dict[str, object]
    listen_on: str
    cluster: str
    transfer_timeout_ns: int
    transport: str = SOCKETS

    def to_json(self) -> str:
        """Return the text for the command line."""
        return json.dumps(asdict(self))


class WorkerProcess:
    """Executor, transport and worker behind one control connection.

    Attributes:
        made: its executor, and what belongs to it.
        has_ended: whether ``run`` is over, no step runs and none failed: the executor is free.
    """

    def __init__(
        self,
        control: MessageSocket,
        settings: WorkerProcessSettings,
        made: MadeExecutor | None = None,
    ) -> None:
        """Load the model unless ``made`` has it, listen for peers, and say hello."""
        self._control, self.has_ended = control, False
        spec = ExecutorSpec(**settings.executor)  # type: ignore[arg-type]
        if made is None:
            made = make_executor(spec, is_shared=maps_pools(settings.transport, settings.listen_on))
        self.made = made
        transport = self._transport(made, settings)
        mover = TransportMover(transport)
        self._worker = Worker(made.executor, mover, self._tell)
        if made.pool is not None:
            threading.Thread(target=made.pool.touch, name="touch", daemon=True).start()
        self._tell(
            Hello(
                f"{made.model} {made.layout}",
                spec.num_blocks,
                made.layout.block_bytes,
                transport.address,
                made.limits,
                made.layout.num_layers,
            )
        )

    def _transport(self, made: MadeExecutor, settings: WorkerProcessSettings) -> KvTransport:
        timeout_ns = settings.transfer_timeout_ns
        return make_transport(
            settings.transport,
            Identity(model=made.model, layout=made.layout, cluster=settings.cluster),
            made.memory,
            report_to(self._tell),
            listen_on=settings.listen_on,
            deadlines=Deadlines(transfer_ns=timeout_ns, early_ns=timeout_ns),
            pool=made.pool,
        )

    def _tell(self, message: FromWorker) -> None:
        with contextlib.suppress(OSError):  # without control the reading end stops everything
            self._control.send(message)

    def run(self) -> Stop | Refused | None:
        """Handle messages until told to stop; return what told it, None if the control has gone."""
        last: Stop | Refused | None = None
        while last is None and (body := self._control.read()) is not None:
            message = decode_to_worker(body)
            if isinstance(message, Stop | Refused):
                last = message
            else:
                self._worker.handle(message)
        self._worker.stop()
        self.has_ended = self._worker.join()
        return last


def main() -> None:
    """Run one worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the control decides when to end
    fd, text = sys.argv[1:]
    control = MessageSocket(socket.socket(fileno=int(fd)))
    try:
        WorkerProcess(control, WorkerProcessSettings(**json.loads(text))).run()
    except (KvfabricError, WireError, MemoryError) as error:
        with contextlib.suppress(OSError):
            control.send(WorkerFailed(str(error) or repr(error)))
        os._exit(1)
    os._exit(0)  # all is closed; torch needs a second and more to unload


if __name__ == "__main__":
    main()
