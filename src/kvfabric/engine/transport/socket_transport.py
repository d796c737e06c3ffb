"""KV block transfers over Unix or TCP sockets: no dependency, and the receiver owns all addresses.

Threads: one that accepts and keeps time, one per connection. Between two workers that send to each
other there are two connections, each with a thread at either end.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvfabric.engine.transport.address import Address, listen, parse_address
from kvfabric.engine.transport.connection import NS_PER_MS, now_ns, reason_of
from kvfabric.engine.transport.expected import ExpectedTransfers
from kvfabric.engine.transport.greeter import Greeter
from kvfabric.engine.transport.handshake import Identity
from kvfabric.engine.transport.outgoing import Outgoing, worth_sending
from kvfabric.engine.transport.port import (
    BlockMemory,
    Deadlines,
    PeerRefused,
    Piece,
    Report,
    Side,
    TransferFailed,
)
from kvfabric.engine.transport.receiver import ReceivingPeer
from kvfabric.engine.transport.sender import SendingPeer
from kvfabric.engine.transport.shared_pool import SharedPool

MAX_CONNECTIONS = 256
_RETRY_MS = 50  # after the system had no socket left


class SocketTransport:
    """One worker's end of all its transfers, over sockets; implements ``port.KvTransport``."""

    def __init__(
        self,
        identity: Identity,
        memory: BlockMemory,
        report: Report,
        *,
        listen_on: str = "tcp:127.0.0.1:0",
        deadlines: Deadlines | None = None,
        pool: SharedPool | None = None,
    ) -> None:
        """Listen for peers.

        Args:
            identity: what peers must have in common with this worker.
            memory: where blocks are.
            report: takes what happens, from other threads.
            listen_on: on this host only unless told otherwise; nothing is encrypted, and whoever
                reaches it and knows the identity can offer blocks that are expected.
            deadlines: None takes the defaults.
            pool: what ``memory`` lies in, if peers of this host may map it: between two workers on
                a Unix socket that both have one, the receiver copies blocks, and no KV byte goes
                through the socket.

        Raises:
            ConfigError: it cannot listen there.
        """
        self._greeter, self._memory, self._report = Greeter(identity, pool), memory, report
        self._deadlines = deadlines or Deadlines()
        self._listener, self._address = listen(parse_address(listen_on))
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._timer_ns: int | None = None  # when the accepting thread wakes by itself
        self._expected = ExpectedTransfers(memory, self._deadlines, report, self._set_timer)
        self._lock = threading.Lock()
        self._senders: dict[Address, SendingPeer] = {}
        self._old_senders: list[SendingPeer] = []
        self._receivers: set[ReceivingPeer] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept_all, name="kv-accept", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Return where peers reach this worker."""
        return str(self._address)

    # ------------------------------------------------------------------ transfers

    def send(
        self, transfer_id: int, peer: str, pieces: Sequence[Piece], *, timeout_ns: int | None = None
    ) -> None:
        """Send pieces to a peer; see ``port.KvTransport``. ConfigError for a bad address."""
        address = parse_address(peer)
        sent = worth_sending(pieces, self._memory)
        timeout_ns = self._deadlines.transfer_ns if timeout_ns is None else timeout_ns
        num_bytes, start_ns = sum(map(self._memory.num_bytes, sent)), now_ns()
        outgoing = Outgoing(transfer_id, sent, num_bytes, start_ns, start_ns + timeout_ns)
        try:
            with self._lock:
                self._check_open()
                if any(sender.knows(transfer_id) for sender in self._senders.values()):
                    raise ValueError(f"transfer {transfer_id} is being sent already")
                self._submit(address, outgoing)
        except OSError as error:
            self._report(TransferFailed(transfer_id, Side.SOURCE, reason_of(error)))

    def _submit(self, address: Address, outgoing: Outgoing) -> None:
        sender = self._senders.get(address)
        if sender is not None and sender.submit(outgoing):
            return
        fresh = SendingPeer(
            address,
            self._greeter,
            self._memory,
            self._deadlines,
            self._report,
            partial(self._move, address),
        )
        known = [*self._old_senders, *self._senders.values()]
        self._old_senders = [one for one in known if one.is_ended and one.is_alive]
        self._senders = {at: one for at, one in self._senders.items() if not one.is_ended}
        self._senders[address] = fresh
        fresh.submit(outgoing)
        fresh.start()

    def _move(self, address: Address, ended: SendingPeer) -> Sequence[Outgoing]:
        """Offer transfers whose connection had ended on a new one; return those that cannot be.

        Under the lock from the old one to the new one, so that ``cancel`` finds them in either.
        """
        with self._lock:
            if self._is_closed:
                return ()
            moved = ended.take_movable()
            for place, outgoing in enumerate(moved):
                try:
                    self._submit(address, outgoing)
                except OSError:  # the system has no socket left
                    return moved[place:]
        return ()

    def expect(
        self, transfer_id: int, pieces: Sequence[Piece], *, timeout_ns: int | None = None
    ) -> None:
        """Take what a transfer brings into blocks; see ``port.KvTransport``."""
        self._check_open()
        self._expected.expect(transfer_id, pieces, timeout_ns)

    def cancel(self, transfer_id: int) -> bool:
        """Stop a transfer; see ``port.KvTransport``."""
        with self._lock:  # so that none is between two connections
            if any(sender.cancel(transfer_id) for sender in self._senders.values()):
                return True
        return self._expected.cancel(transfer_id)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the transport is closed")

    # ------------------------------------------------------------------ accepting and time

    def _set_timer(self, deadline_ns: int) -> None:
        if self._timer_ns is None or deadline_ns < self._timer_ns:
            self._timer_ns = deadline_ns
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or gone
            self._waker.send(b"w")

    def _accept_all(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wakened, select.POLLIN)
        while not self._is_closed:
            self._timer_ns = None
            self._timer_ns = self._expected.next_deadline_ns()
            for fd, _ in poll.poll(self._timeout_ms()):
                if fd == self._wakened.fileno():
                    self._wakened.recv(4096)
                elif not self._accept():
                    select.select([self._wakened], [], [], _RETRY_MS / 1000)
            self._expected.expire()

    def _timeout_ms(self) -> int | None:
        deadline_ns = self._timer_ns
        return None if deadline_ns is None else max(0, -((now_ns() - deadline_ns) // NS_PER_MS))

    def _accept(self) -> bool:
        """Let one peer in; return False if the system has no socket left."""
        try:
            sock, where = self._listener.accept()
        except BlockingIOError:
            return True
        except OSError as error:
            self._report(PeerRefused("a peer", reason_of(error)))
            return False
        name = f"tcp:{where[0]}:{where[1]}" if where else "a peer on this host"
        with self._lock:
            if len(self._receivers) >= MAX_CONNECTIONS or self._is_closed:
                sock.close()
                reason = f"{MAX_CONNECTIONS} connections are open already"
            else:
                return self._receive_from(sock, name)
        self._report(PeerRefused(name, reason))
        return True

    def _receive_from(self, sock: socket.socket, name: str) -> bool:
        try:
            receiver = ReceivingPeer(
                sock,
                name,
                self._greeter,
                self._expected,
                deadlines=self._deadlines,
                report=self._report,
                on_end=self._forget,
            )
        except OSError:
            sock.close()
            return False
        self._receivers.add(receiver)
        receiver.start()
        return True

    def _forget(self, receiver: ReceivingPeer) -> None:
        with self._lock:
            self._receivers.discard(receiver)

    # ------------------------------------------------------------------ ending

    def close(self) -> None:
        """Fail what is under way, cut all connections, and wait for the threads to end."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake()
        self._thread.join()
        with self._lock:
            peers: list[SendingPeer | ReceivingPeer] = [
                *self._senders.values(),
                *self._old_senders,
                *self._receivers,
            ]
        for peer in peers:
            peer.stop()
        for peer in peers:
            peer.join()
        self._expected.fail_all("this worker closes its connections")
        for sock in (self._listener, self._waker, self._wakened):
            sock.close()
        if self._address.path:
            Path(self._address.path).unlink(missing_ok=True)
