"""The receiving side: one thread per connection, which puts bytes where its worker expects them."""

import socket
import threading
from collections.abc import Callable

from kvfabric.engine.transport.connection import (
    Connection,
    ConnectionEndedError,
    Heard,
    now_ns,
    reason_of,
)
from kvfabric.engine.transport.copy_turns import CopyTurns
from kvfabric.engine.transport.expected import ExpectedTransfers
from kvfabric.engine.transport.frames import Frame, Kind, ProtocolError
from kvfabric.engine.transport.greeter import Greeter
from kvfabric.engine.transport.handshake import HandshakeError
from kvfabric.engine.transport.incoming import Incoming
from kvfabric.engine.transport.port import Deadlines, PeerRefused, Report
from kvfabric.engine.transport.shared_pool import MappedPool, Stamp

_SCRATCH_BYTES = 1 << 16
_IDLE_FACTOR = 2  # the sender is the first to close an idle connection


class ReceivingPeer:
    """One connection from a sender; it grants, refuses and fills what ``ExpectedTransfers`` has."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        greeter: Greeter,
        expected: ExpectedTransfers,
        *,
        deadlines: Deadlines,
        report: Report,
        on_end: Callable[["ReceivingPeer"], None],
    ) -> None:
        """Take over an accepted socket; ``on_end`` is called when its thread ends."""
        self._name, self._greeter, self._expected = name, greeter, expected
        self._deadlines, self._report, self._on_end = deadlines, report, on_end
        self._connection = Connection(sock, greeter.digest, deadlines.stall_ns)
        self._granted: dict[int, Incoming] = {}  # until END or CANCEL says that no more comes
        self._peer: MappedPool | None = None  # the sender's pool, if it shows one
        self._turns = CopyTurns()
        self._filling: Incoming | None = None
        self._num_left = 0  # bytes of the DATA frame under way
        self._scratch: memoryview | None = None
        self._idle_ns = now_ns()
        self._thread = threading.Thread(target=self._run, name=f"kv-receive {name}", daemon=True)

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Greet and serve."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end soon; ``join`` waits for it."""
        self._connection.stop()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def grant(self, incoming: Incoming) -> None:
        """Let the sender send."""
        self._granted[incoming.transfer_id] = incoming
        self._connection.post(Frame(Kind.GRANT, incoming.transfer_id))

    def refuse(self, transfer_id: int, reason: str) -> None:
        """Tell the sender that a transfer is not wanted (any more)."""
        self._connection.post(Frame(Kind.REFUSE, transfer_id), reason)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        reason = "the transport broke down"
        try:
            deadline_ns = now_ns() + self._deadlines.handshake_ns
            self._peer = self._greeter.greet_sender(self._connection, deadline_ns)
            reason = self._serve_until_end()
        except (OSError, ProtocolError, HandshakeError, ConnectionEndedError) as error:
            reason = reason_of(error)
            self._report(PeerRefused(self._name, reason))
        finally:
            self._connection.close()
            self._expected.lost(self, reason)
            self._granted.clear()
            if self._peer is not None:
                self._peer.close()
            self._on_end(self)

    def _serve_until_end(self) -> str:
        """Serve frames; return why the connection ended."""
        try:
            while True:
                self._connection.check_stopped()
                if not self._serve_once():
                    self._wait()
        except (OSError, ProtocolError, ConnectionEndedError) as error:
            return reason_of(error)

    def _serve_once(self) -> bool:
        """Do what can be done without waiting; return False if that is nothing."""
        if self._connection.is_sending and not self._connection.flush():
            pass  # the sender does not read; go on taking its bytes
        if self._hear_some():
            return True
        if self._turns:
            self._take_turn(self._turns.take())
            return True
        return False

    def _hear_some(self) -> bool:
        """Take in what has come; return False if that is nothing."""
        if self._filling is not None:
            return self._fill(self._filling)
        heard = None if self._turns.is_full else self._connection.hear()
        if heard is not None:
            self._handle(heard)
        return heard is not None

    def _wait(self) -> None:
        connection = self._connection
        is_in_frame = self._filling is not None or connection.is_in_frame
        if is_in_frame:
            deadline_ns = connection.stall_deadline_ns
        else:
            deadline_ns = self._idle_ns + _IDLE_FACTOR * self._deadlines.idle_ns
        is_ready = connection.wait(to_write=connection.is_sending, deadline_ns=deadline_ns)
        if is_ready:
            return
        if is_in_frame:
            connection.check_stall()
        elif self._granted:
            self._idle_ns = now_ns()  # its transfers have deadlines of their own
        else:
            raise ConnectionEndedError("not used any more")

    def _handle(self, heard: Heard) -> None:
        self._idle_ns = now_ns()
        frame = heard.frame
        match frame.kind:
            case Kind.OFFER:
                self._expected.offer(frame, self)
            case Kind.DATA:
                self._begin(frame)
            case Kind.BLOCKS:
                self._granted_now(frame)
                self._turns.add(heard)
            case Kind.END if frame.transfer_id in self._turns:
                self._turns.add(heard)
            case Kind.END:
                self._end(frame)
            case Kind.CANCEL:
                self._withdraw(frame.transfer_id, heard.reason)
            case kind:
                raise ProtocolError(f"a sender sent {kind.name}")

    def _begin(self, frame: Frame) -> None:
        incoming = self._granted_now(frame)
        misfit = incoming.begin(frame)
        if misfit:
            self._expected.fail(incoming, misfit)  # its bytes are read and dropped
        if frame.num_behind:
            self._filling, self._num_left = incoming, frame.num_behind
            self._connection.restart_stall()

    def _granted_now(self, frame: Frame) -> Incoming:
        incoming = self._granted.get(frame.transfer_id)
        if incoming is None:
            raise ProtocolError(f"{frame.kind.name} of transfer {frame.transfer_id}, not granted")
        return incoming

    def _fill(self, incoming: Incoming) -> bool:
        if self._scratch is None:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while self._num_left:
            num_bytes = incoming.fill(self._connection, self._num_left, self._scratch)
            if not num_bytes:
                return False
            self._num_left -= num_bytes
        self._filling = None
        return True

    def _take_turn(self, heard: Heard) -> None:
        self._idle_ns = now_ns()
        if heard.frame.kind is Kind.END:
            self._end(heard.frame)
        else:
            self._copy(heard.frame, heard.block_ids)
            end = self._turns.take_end(heard.frame.transfer_id)
            if end is not None:
                self._end(end.frame)

    def _copy(self, frame: Frame, block_ids: tuple[int, ...]) -> None:
        incoming = self._granted_now(frame)
        if self._peer is None:
            raise ProtocolError("a sender that shows no KV pool sent BLOCKS")
        misfit = incoming.copy(frame, block_ids, self._peer)
        if misfit:
            self._expected.fail(incoming, misfit)

    def _end(self, frame: Frame) -> None:
        incoming = self._granted_now(frame)
        del self._granted[frame.transfer_id]
        if not incoming.is_complete:
            self._expected.fail(incoming, "the sender ended before all bytes were sent")
        elif incoming.is_copied and not self._is_whole(Stamp(frame.offset, frame.num_bytes)):
            self._expected.fail(incoming, "the sender gave its blocks up before they were copied")
        elif self._expected.finish(incoming):
            self._connection.post(Frame(Kind.ACK, frame.transfer_id))

    def _is_whole(self, stamp: Stamp) -> bool:
        return self._peer is not None and self._peer.has(stamp)

    def _withdraw(self, transfer_id: int, reason: str) -> None:
        self._expected.withdraw(transfer_id, self)
        self._turns.drop(transfer_id)
        incoming = self._granted.pop(transfer_id, None)
        if incoming is not None:
            self._expected.fail(incoming, reason, is_told=False)
