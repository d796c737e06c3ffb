"""The sending side: one connection and one thread per peer, transfers taking turns by frames."""

import errno
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from kvfabric.engine.transport.address import Address
from kvfabric.engine.transport.connection import (
    Connection,
    ConnectionEndedError,
    Heard,
    PeerClosedError,
    now_ns,
    reason_of,
)
from kvfabric.engine.transport.frames import Frame, Kind, ProtocolError
from kvfabric.engine.transport.greeter import Greeter
from kvfabric.engine.transport.handshake import HandshakeError
from kvfabric.engine.transport.outgoing import Outgoing
from kvfabric.engine.transport.port import (
    BlockMemory,
    Deadlines,
    Report,
    Side,
    TransferDone,
    TransferFailed,
    TransportEvent,
)
from kvfabric.engine.transport.scatter_list import ScatterList

_RETRY_S = 0.005
_CALLS_PER_TURN = 8  # then the peer is heard, and others may take the lock
_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK)
_CLOSED = (errno.ECONNRESET, errno.EPIPE)


class SendingPeer:
    """All transfers to one peer. It ends with its connection; the next transfer needs a new one.

    ``_lock`` guards all state, and is held while the source's blocks are read: a transfer that was
    cancelled is not read any more. What a peer copies by itself it drops once the stamp is wiped,
    which happens before anybody is told that a transfer is over. Events are reported without it.
    """

    def __init__(
        self,
        address: Address,
        greeter: Greeter,
        memory: BlockMemory,
        deadlines: Deadlines,
        report: Report,
        move: Callable[["SendingPeer"], Sequence[Outgoing]],
    ) -> None:
        """Prepare a socket; OSError if there is none left.

        ``move`` offers what ``take_movable`` gives on a new connection, and returns what it cannot.
        """
        self._address, self._greeter = address, greeter
        self._memory, self._deadlines, self._report = memory, deadlines, report
        self._move = move
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        self._connection = Connection(sock, greeter.digest, deadlines.stall_ns)
        self._lock = threading.Lock()
        self._transfers: dict[int, Outgoing] = {}
        self._turns: deque[Outgoing] = deque()  # granted, not sent
        self._data = ScatterList(())  # what is left of the frame under way
        self._data_owner: Outgoing | None = None
        self._events: list[TransportEvent] = []  # to be reported without the lock
        self._is_ended = False
        self._is_mapped = False  # the peer has this worker's pool
        self._thread = threading.Thread(target=self._run, name=f"kv-send {address}", daemon=True)

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Connect and serve what was submitted."""
        self._thread.start()

    def submit(self, outgoing: Outgoing) -> bool:
        """Take on a transfer; return False if this peer has ended."""
        with self._lock:
            if self._is_ended:
                return False
            outgoing.may_move = self._thread.ident is not None  # another transfer began to connect
            self._transfers[outgoing.transfer_id] = outgoing
            self._connection.post(outgoing.offer())
            return True

    def knows(self, transfer_id: int) -> bool:
        """Return whether a transfer is under way here."""
        return transfer_id in self._transfers

    @property
    def is_ended(self) -> bool:
        """Return whether it takes no more transfers."""
        return self._is_ended

    @property
    def is_alive(self) -> bool:
        """Return whether its thread runs."""
        return self._thread.is_alive()

    def cancel(self, transfer_id: int) -> bool:
        """Forget a transfer; return whether it was there."""
        with self._lock:
            outgoing = self._transfers.pop(transfer_id, None)
            if outgoing is None:
                return False
            self._drop(outgoing, "the sender cancelled it")
            return True

    def take_movable(self) -> Sequence[Outgoing]:
        """Take no more transfers, and give up those that another connection can take on."""
        with self._lock:
            self._is_ended = True
            moved = [one for one in self._transfers.values() if one.may_move and not one.is_granted]
            for outgoing in moved:
                del self._transfers[outgoing.transfer_id]
            return moved

    def stop(self) -> None:
        """Let the thread end soon; ``join`` waits for it."""
        self._connection.stop()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        reason, is_closed = "the transport broke down", False
        try:
            self._connect()
            deadline_ns = self._soon(self._deadlines.handshake_ns)
            self._is_mapped = self._greeter.greet_receiver(self._connection, deadline_ns)
            self._serve()
        except (OSError, ProtocolError, HandshakeError, ConnectionEndedError) as error:
            reason = reason_of(error)
            is_closed = isinstance(error, PeerClosedError) or (
                isinstance(error, OSError) and error.errno in _CLOSED
            )
        finally:
            self._end(reason, is_closed=is_closed)

    def _end(self, reason: str, *, is_closed: bool) -> None:
        """Let nothing be under way here any more; the peer may have closed long ago, unnoticed."""
        stuck = self._move(self) if is_closed else ()
        with self._lock:
            self._is_ended = True
            left = [*self._transfers.values(), *stuck]
            self._transfers.clear()
            self._turns.clear()
            self._data, self._data_owner = ScatterList(()), None
            for outgoing in left:
                self._wipe(outgoing)
            self._connection.close()
        self._events += [_failed(outgoing, f"{reason} ({self._address})") for outgoing in left]
        self._report_events()

    def _report_events(self) -> None:
        events, self._events = self._events, []
        for event in events:
            self._report(event)

    def _connect(self) -> None:
        sock, deadline_ns = self._connection.sock, self._soon(self._deadlines.connect_ns)
        while True:
            code = sock.connect_ex(self._address.for_socket)
            if code in {0, errno.EISCONN}:
                return
            if code in {errno.EINPROGRESS, errno.EALREADY}:
                self._connection.wait(to_write=True, to_read=False, deadline_ns=deadline_ns)
            elif code in _BUSY:  # a Unix socket whose queue is full
                time.sleep(_RETRY_S)
                self._connection.check_stopped()
            else:
                raise OSError(code, f"cannot connect: {errno.errorcode.get(code, code)}")
            if now_ns() >= deadline_ns:
                raise ConnectionEndedError("cannot connect in time")

    def _soon(self, limit_ns: int) -> int:
        """Return the end of a limit from now on, or the first deadline of what waits."""
        waiting = list(self._transfers.values())
        return min([now_ns() + limit_ns, *(outgoing.deadline_ns for outgoing in waiting)])

    def _serve(self) -> None:
        idle_ns = now_ns()
        while True:
            self._connection.check_stopped()
            with self._lock:
                while (heard := self._connection.hear()) is not None:
                    self._handle(heard)
                self._expire()
                has_moved = self._pump_some()
                is_idle = not self._transfers
                if is_idle and now_ns() >= idle_ns + self._deadlines.idle_ns:
                    self._is_ended = True
                    raise ConnectionEndedError("not used any more")
            self._report_events()
            if not is_idle:
                idle_ns = now_ns()
            if not has_moved:
                self._wait(idle_ns)

    def _wait(self, idle_ns: int) -> None:
        deadlines = [t.deadline_ns for t in list(self._transfers.values())]
        is_in_frame = self._data.num_bytes or self._connection.is_in_frame
        if is_in_frame:
            deadlines.append(self._connection.stall_deadline_ns)
        if not deadlines:
            deadlines.append(idle_ns + self._deadlines.idle_ns)
        to_write = bool(self._data.num_bytes) or self._connection.is_sending
        is_ready = self._connection.wait(to_write=to_write, deadline_ns=min(deadlines))
        if is_in_frame and not is_ready:
            self._connection.check_stall()

    # ------------------------------------------------------------------ under the lock

    def _handle(self, heard: Heard) -> None:
        """Take in what the peer says; it may concern a transfer that has ended here."""
        outgoing = self._transfers.get(heard.frame.transfer_id)
        match heard.frame.kind:
            case Kind.GRANT if outgoing and not outgoing.is_granted:
                outgoing.is_granted = True
                if self._is_mapped and self._greeter.pool is not None:
                    outgoing.stamp = self._greeter.pool.stamp()  # None: bytes then
                outgoing.stage = "the peer did not take all bytes"
                self._turns.append(outgoing)
            case Kind.ACK if outgoing and outgoing.is_sent:
                del self._transfers[outgoing.transfer_id]
                self._wipe(outgoing)
                duration_ns = now_ns() - outgoing.start_ns
                self._events.append(
                    TransferDone(outgoing.transfer_id, Side.SOURCE, outgoing.num_bytes, duration_ns)
                )
            case Kind.REFUSE if outgoing:
                del self._transfers[outgoing.transfer_id]
                self._drop(outgoing, "refused")
                self._events.append(_failed(outgoing, f"the receiver refused: {heard.reason}"))
            case Kind.GRANT | Kind.ACK | Kind.REFUSE if outgoing is None:
                pass
            case kind:
                raise ProtocolError(f"a receiver sent {kind.name} out of turn")

    def _expire(self) -> None:
        now = now_ns()
        for outgoing in [t for t in self._transfers.values() if t.deadline_ns <= now]:
            del self._transfers[outgoing.transfer_id]
            self._drop(outgoing, "the sender's deadline passed")
            seconds = (outgoing.deadline_ns - outgoing.start_ns) / 1e9
            self._events.append(_failed(outgoing, f"not done in {seconds:g} s: {outgoing.stage}"))

    def _drop(self, outgoing: Outgoing, reason: str) -> None:
        """Read nothing of a transfer any more, and say so to the peer."""
        self._wipe(outgoing)
        if outgoing in self._turns:
            self._turns.remove(outgoing)
        if outgoing is self._data_owner:
            self._data.blank()
            self._data_owner = None
        self._connection.post(Frame(Kind.CANCEL, outgoing.transfer_id), reason)

    def _wipe(self, outgoing: Outgoing) -> None:
        """Let the peer take nothing that it copies from now on."""
        if outgoing.stamp is not None and self._greeter.pool is not None:
            self._greeter.pool.wipe(outgoing.stamp)
            outgoing.stamp = None

    def _pump_some(self) -> bool:
        """Send a few calls' worth; return False once there is nothing to do or no room."""
        return all(self._pump() for _ in range(_CALLS_PER_TURN))

    def _pump(self) -> bool:
        """Send as much as the socket takes at once; return False if there is nothing to do."""
        if self._data.num_bytes:
            return self._connection.send_from(self._data)
        self._data_owner = None
        if self._connection.is_sending:
            return self._connection.flush()
        if not self._turns:
            return False
        self._begin_frame(self._turns.popleft())
        return True

    def _begin_frame(self, outgoing: Outgoing) -> None:
        data = self._next(outgoing)
        if data is None:
            outgoing.is_sent = True
            outgoing.stage = "the peer did not acknowledge it"
            self._connection.post(outgoing.end())
            return
        frame, views = data
        self._data_owner = outgoing
        self._data = self._connection.with_header(frame, views)
        self._turns.append(outgoing)

    def _next(self, outgoing: Outgoing) -> tuple[Frame, ScatterList] | None:
        """Return what to send next: ids of blocks if the peer can copy them, else bytes."""
        if outgoing.stamp is None:
            return outgoing.next_data(self._memory)
        return outgoing.next_blocks(self._memory)


def _failed(outgoing: Outgoing, reason: str) -> TransferFailed:
    return TransferFailed(outgoing.transfer_id, Side.SOURCE, reason)
