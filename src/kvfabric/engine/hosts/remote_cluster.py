"""A cluster whose workers come from anywhere: they join over TCP, go, and come back."""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from kvfabric.engine.admission import Limits
from kvfabric.engine.cluster_settings import ClusterSettings, coordinator_of, schedulers_of
from kvfabric.engine.control_loop import ControlLoop
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.executor_spec import ExecutorSpec
from kvfabric.engine.hosts.joining import Joiner, JoinError, Role, Welcome, keep_alive
from kvfabric.engine.links import SocketLink, WorkerStartError
from kvfabric.engine.loop_thread import LoopThread
from kvfabric.engine.messages import FromWorker, Hello, Refused
from kvfabric.engine.token_streams import OutputSink
from kvfabric.errors import ConfigError

MAX_JOINING = 32
_STALLED_S = 5.0
_WORKERS_OWN = ("model", "device", "num_threads")


class RemoteLink(SocketLink):
    """The way to a worker that joined."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        """Take over its connection; ``name`` is where it comes from."""
        super().__init__(sock)
        self.name = name
        self.is_closed = False
        self._cut = threading.Timer(_STALLED_S, self._socket.shutdown)
        self._cut.daemon = True

    def _write_all(self) -> None:
        super()._write_all()
        self._socket.shutdown()  # everything is said; the worker may come back

    def close(self) -> None:
        """Say what is left to be said, then cut the connection, within some seconds."""
        if not self.is_closed:
            self.is_closed = True
            self._outbox.put(None)
            self._cut.start()

    @property
    def is_over(self) -> bool:
        """Return whether nothing more will be said or heard."""
        is_heard = self._reader is not None and self._reader.is_alive()
        return self.is_closed and not is_heard and not self._writer.is_alive()

    def join(self) -> None:
        """Wait until what was to be said is said, then end."""
        self.close()
        self._writer.join(_STALLED_S)
        self._cut.cancel()
        self.end_threads()


class _Place:
    """Where a worker of a role can be: empty, taken by one that loads, or by one that is ready."""

    __slots__ = ("hello", "is_taken", "link")

    def __init__(self) -> None:
        self.is_taken = False
        self.link: RemoteLink | None = None
        self.hello: Hello | None = None

    def clear(self) -> None:
        self.is_taken, self.link, self.hello = False, None, None


class RemoteCluster:
    """Places for workers, control and loop; a context manager that ends them all.

    Attributes:
        address: ``(host, port)`` that workers join at.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        executor: ExecutorSpec,
        sink: OutputSink,
        *,
        listen_on: tuple[str, int],
        token: bytes,
        log: DecisionLog | None = None,
        on_event: Callable[[str], None] = lambda _: None,
        on_error: Callable[[BaseException], None] | None = None,
        check: bool = False,
    ) -> None:
        """Listen for workers; ``wait_ready`` waits for them.

        Args:
            settings: of the cluster.
            executor: of every worker, but for what is its own.
            sink: who takes tokens and ends.
            listen_on: host and port.
            token: that workers must know.
            log: keeps what happens.
            on_event: told, by any thread, who comes, goes or is refused.
            on_error: called by the loop's thread with what ended it; nothing more will come.
            check: assert every invariant after every instant (slow).

        Raises:
            ConfigError: it cannot listen there.
        """
        self._settings, self._sink, self._log, self._check = settings, sink, log, check
        self._token, self._on_event, self._on_error = token, on_event, on_error
        own = {name: value for name, value in executor.to_dict().items() if name in _WORKERS_OWN}
        fields = {k: v for k, v in executor.to_dict().items() if k not in own}
        self._welcome = Welcome(
            executor=fields,
            cluster=secrets.token_hex(8),
            transfer_timeout_ns=2 * settings.handoff_deadline_ns,
            transport=settings.kv_transport,
        )
        self._places = [_Place() for _ in range(settings.num_workers)]
        self._changed = threading.Condition()
        self._links: list[RemoteLink] = []  # all there ever were and have not ended
        self._joining = threading.Semaphore(MAX_JOINING)
        self._is_closing = False
        self._model = ""  # of the first workers, once all are there
        self._loop: ControlLoop | None = None
        self._thread: LoopThread | None = None
        self.block_bytes = 0
        self.limits: Limits | None = None
        self._listener = _listen(listen_on)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept_all, name="joins", daemon=True)
        self._acceptor.start()

    # ------------------------------------------------------------------ who joins

    def _accept_all(self) -> None:
        while True:
            try:
                sock, where = self._listener.accept()
            except OSError:
                if self._is_closing:
                    return
                time.sleep(0.05)  # the system had no socket left
                continue
            if not self._joining.acquire(blocking=False):
                sock.close()
                continue
            name = f"{where[0]}:{where[1]}"
            threading.Thread(target=self._let_in, args=(sock, name), daemon=True).start()

    def _let_in(self, sock: socket.socket, name: str) -> None:
        """Go with one worker from its first byte to its place."""
        worker_id: int | None = None
        link: RemoteLink | None = None
        try:
            keep_alive(sock)
            joiner = Joiner(sock, self._token)
            role = joiner.identify()
            worker_id = self._take_place(role)
            if worker_id is None:
                reason = f"all {self._num_of(role)} {role.value} workers are there"
                joiner.refuse(reason, is_busy=True)
                raise JoinError(reason)  # noqa: TRY301 - told like every other refusal
            joiner.welcome(self._welcome)
            link = self._keep(RemoteLink(sock, name))
            self._seat(worker_id, link, link.wait_hello())
        except (JoinError, WorkerStartError, OSError) as error:
            self._on_event(f"worker at {name} is not let in: {error}")
            if link is not None:
                link.close()
            else:
                sock.close()
            if worker_id is not None:
                with self._changed:
                    self._places[worker_id].clear()
        finally:
            self._joining.release()

    def _keep(self, link: RemoteLink) -> RemoteLink:
        """Remember a connection until it is over; let go of those that are."""
        with self._changed:
            over = [one for one in self._links if one.is_over]
            self._links = [*(one for one in self._links if one not in over), link]
        for one in over:
            one.join()
        return link

    def _num_of(self, role: Role) -> int:
        return self._settings.num_prefill if role is Role.PREFILL else self._settings.num_decode

    def _take_place(self, role: Role) -> int | None:
        first = 0 if role is Role.PREFILL else self._settings.num_prefill
        with self._changed:
            for worker_id in range(first, first + self._num_of(role)):
                place = self._places[worker_id]
                if place.link is not None and place.link.is_closed:
                    place.clear()
                if not place.is_taken:
                    place.is_taken = True
                    return worker_id
        return None

    def _seat(self, worker_id: int, link: RemoteLink, hello: Hello) -> None:
        """Give a ready worker its place, unless it is of another model than the others."""
        with self._changed:
            misfit = self._misfit(hello)
            if misfit:
                link.post(Refused(misfit))
                raise JoinError(misfit)
            place = self._places[worker_id]
            place.link, place.hello = link, hello
            loop = self._loop
            if loop is not None:
                loop.receive(worker_id, link, hello)
            self._changed.notify_all()
        self._on_event(f"worker {worker_id} joined from {link.name}")
        link.start_reading(
            lambda message: self._received(worker_id, link, message),
            lambda reason: self._lost(worker_id, link, reason),
        )

    def _misfit(self, hello: Hello) -> str:
        models = [place.hello.model for place in self._places if place.hello is not None]
        model = self._model or (models[0] if models else hello.model)
        if hello.model == model:
            return ""
        return (
            f"another model, dtype or KV layout: {hello.model[:200]}, the others have {model[:200]}"
        )

    def _received(self, worker_id: int, link: RemoteLink, message: FromWorker) -> None:
        with self._changed:
            loop = self._loop
        if loop is not None:
            loop.receive(worker_id, link, message)

    def _lost(self, worker_id: int, link: RemoteLink, reason: str) -> None:
        with self._changed:
            place = self._places[worker_id]
            if self._loop is None:
                if place.link is link:
                    place.clear()
            else:
                self._loop.lose(worker_id, link, reason)
        if not self._is_closing:
            self._on_event(f"worker {worker_id} is gone: {reason}")
        link.close()

    # ------------------------------------------------------------------ running

    def missing(self) -> dict[Role, int]:
        """Return how many workers of each role are not ready."""
        with self._changed:
            ready = [place.hello is not None for place in self._places]
        num_prefill = self._settings.num_prefill
        return {
            Role.PREFILL: num_prefill - sum(ready[:num_prefill]),
            Role.DECODE: self._settings.num_decode - sum(ready[num_prefill:]),
        }

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until every place is taken; return False at the timeout. Then it can be entered."""
        with self._changed:
            places = self._places
            is_ready = self._changed.wait_for(
                lambda: all(place.hello is not None for place in places), timeout_s
            )
            if not is_ready:
                return False
            hellos = [place.hello for place in places if place.hello is not None]
            links = [place.link for place in places if place.link is not None]
            self.block_bytes, self.limits = hellos[0].block_bytes, hellos[0].limits
            self._model = hellos[0].model
            loop = ControlLoop(
                coordinator_of(self._settings, self.block_bytes, hellos[0].num_layers),
                schedulers_of(self._settings),
                self._sink,
                log=self._log,
                check=self._check,
            )
            loop.connect(links, hellos)
            self._loop, self._thread = loop, LoopThread(loop, self._on_error)
            return True

    @property
    def loop(self) -> ControlLoop:
        """Return what takes requests, once ``wait_ready`` was True."""
        assert self._loop is not None, "workers are missing"
        return self._loop

    @property
    def is_alive(self) -> bool:
        """Return whether the loop runs."""
        return self._thread is not None and self._thread.is_alive

    def raise_if_failed(self) -> None:
        """Raise what ended the loop, if anything did."""
        if self._thread is not None:
            self._thread.raise_if_failed()

    def __enter__(self) -> Self:
        """Start the loop, if all workers are there."""
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the loop and tell all workers to end.

        Raises:
            Exception: the loop ended by one.
        """
        try:
            if self._thread is not None:
                self._thread.end()
        finally:
            self.close()

    def close(self) -> None:
        """Stop to listen, and end all connections."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._changed:
            links = list(self._links)
        for link in links:
            link.join()


def _listen(where: tuple[str, int]) -> socket.socket:
    host, port = where
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=MAX_JOINING)
    except OSError as error:
        raise ConfigError(
            f"cannot wait for workers on {host}:{port}: {error.strerror or error}",
            hint="Choose another address",
        ) from None
