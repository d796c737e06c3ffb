"""One connection: a socket that never blocks, and the one thread that waits on it.

The calls of a ``Connection`` are for that thread, except ``wake``, ``post`` and ``stop``.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from typing import NamedTuple

from kvfabric.engine.transport.frames import (
    HEADER_BYTES,
    MAX_HEARD_BYTES,
    Frame,
    Kind,
    ProtocolError,
    pack,
    printable,
    reason_bytes,
    unpack,
    unpack_ids,
)
from kvfabric.engine.transport.scatter_list import ScatterList

MAX_CALL_BYTES = 1 << 20  # handed to the kernel at once
SOCKET_BUFFER_BYTES = 1 << 19  # of a Unix socket; more leaves the caches, less wakes more often
MAX_POSTED = 1 << 14  # frames that the peer has not read
NS_PER_MS = 1_000_000


class ConnectionEndedError(Exception):
    """The peer is gone, does not move, or this side closes; the text is the reason."""


class PeerClosedError(ConnectionEndedError):
    """The peer closed its end."""


class Heard(NamedTuple):
    """A frame from the peer, its reason or block ids; the bytes of DATA are still to be read."""

    frame: Frame
    reason: str = ""
    block_ids: tuple[int, ...] = ()


def now_ns() -> int:
    """Return the instant that deadlines are compared with."""
    return time.monotonic_ns()


class Connection:
    """Frames in and out over a socket, and waiting for either with a deadline."""

    def __init__(self, sock: socket.socket, layout_digest: int, stall_ns: int) -> None:
        """Take over a socket, connected or about to be."""
        sock.setblocking(False)
        self.sock = sock
        self._layout_digest = layout_digest
        self._stall_ns = stall_ns
        self._wake_lock = threading.Lock()  # a closed socket's number may be somebody else's
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wakened, select.POLLIN)
        self._header = bytearray(HEADER_BYTES + MAX_HEARD_BYTES)
        self._num_read = 0
        self._frame: Frame | None = None
        self._posted: deque[bytes] = deque()
        self._out = ScatterList(())
        self._moved_ns = now_ns()
        self._why_stopped = ""
        tune(sock)

    # ------------------------------------------------------------------ from any thread

    def wake(self) -> None:
        """End a wait, or the next one."""
        with self._wake_lock, contextlib.suppress(OSError):  # it is awake, or gone
            self._waker.send(b"w")

    def post(self, frame: Frame, reason: str = "") -> None:
        """Send a frame without bytes of KV."""
        behind = reason_bytes(reason)
        frame = frame._replace(num_behind=len(behind))
        if len(self._posted) >= MAX_POSTED:
            self.stop("the peer does not read its answers")
        self._posted.append(pack(frame, self._layout_digest) + behind)
        self.wake()

    def stop(self, reason: str = "this worker closes its connections") -> None:
        """Let the thread's next wait raise ConnectionEndedError."""
        self._why_stopped = reason
        self.wake()

    # ------------------------------------------------------------------ waiting

    def wait(self, *, to_write: bool, to_read: bool = True, deadline_ns: int | None) -> bool:
        """Wait until the socket is ready, somebody wakes the thread, or a deadline: then False.

        Raises:
            ConnectionEndedError: this side closes.
        """
        events = select.POLLOUT * to_write | select.POLLIN * to_read
        self._poll.register(self.sock, events)
        timeout_ms = None
        if deadline_ns is not None:
            timeout_ms = max(0, -((now_ns() - deadline_ns) // NS_PER_MS))
        ready = self._poll.poll(timeout_ms)
        if any(fd == self._wakened.fileno() for fd, _ in ready):
            self._drain_wakes()
        self.check_stopped()
        return bool(ready)

    def check_stopped(self) -> None:
        """Raise ConnectionEndedError if this side closes."""
        if self._why_stopped:
            raise ConnectionEndedError(self._why_stopped)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._wakened.recv(4096)) == 4096:
                pass

    @property
    def is_in_frame(self) -> bool:
        """Return whether a frame has come, or left, in part."""
        return self._num_read > 0 or self._out.num_bytes > 0

    @property
    def stall_deadline_ns(self) -> int:
        """Return when a frame under way counts as stalled."""
        return self._moved_ns + self._stall_ns

    def check_stall(self) -> None:
        """Raise ConnectionEndedError if no byte of a frame under way moved for too long."""
        if now_ns() >= self.stall_deadline_ns:
            seconds = self._stall_ns / 1e9
            raise ConnectionEndedError(f"the peer stalled: not a byte in {seconds:g} s")

    def restart_stall(self) -> None:
        """Count from now: a frame begins."""
        self._moved_ns = now_ns()

    # ------------------------------------------------------------------ frames out

    @property
    def is_sending(self) -> bool:
        """Return whether something is left to be sent."""
        return bool(self._out.num_bytes or self._posted)

    def flush(self) -> bool:
        """Send posted frames as far as the socket takes them; return whether none is left."""
        while self.is_sending:
            if not self._out.num_bytes:
                self._out = ScatterList([memoryview(self._posted.popleft())])
                self.restart_stall()
            if not self.send_from(self._out):
                return False
        return True

    def with_header(self, frame: Frame, data: ScatterList) -> ScatterList:
        """Return the bytes of a DATA frame, its header in front; its time begins."""
        data.put_before(memoryview(pack(frame, self._layout_digest)))
        self.restart_stall()
        return data

    def send_from(self, data: ScatterList) -> bool:
        """Send what the socket takes at once; return False when it takes nothing."""
        try:
            num_bytes = self.sock.sendmsg(data.peek(MAX_CALL_BYTES))
        except BlockingIOError:
            return False
        data.advance(num_bytes)
        self._moved_ns = now_ns()
        return True

    # ------------------------------------------------------------------ frames in

    def hear(self) -> Heard | None:
        """Return the next frame if it is there.

        Raises:
            ConnectionEndedError: the peer closed its end.
            ProtocolError: it sent garbage.
        """
        if self._frame is None:
            if not self._fill(HEADER_BYTES):
                return None
            self._frame = unpack(self._header, self._layout_digest)
        frame = self._frame
        end = HEADER_BYTES if frame.kind is Kind.DATA else HEADER_BYTES + frame.num_behind
        if not self._fill(end):
            return None
        self._frame, self._num_read = None, 0
        behind = self._header[HEADER_BYTES:end]
        if frame.kind is Kind.BLOCKS:
            return Heard(frame, block_ids=unpack_ids(behind))
        return Heard(frame, printable(behind))

    def _fill(self, end: int) -> bool:
        view = memoryview(self._header)
        while self._num_read < end:
            num_bytes = self.receive_into([view[self._num_read : end]])
            if not num_bytes:
                return False
            self._num_read += num_bytes
        return True

    def receive_into(self, views: list[memoryview]) -> int:
        """Fill segments with what is there; return how many bytes, 0 when nothing is."""
        try:
            num_bytes = self.sock.recvmsg_into(views)[0]
        except BlockingIOError:
            return 0
        if not num_bytes:
            raise PeerClosedError("the peer closed the connection")
        self._moved_ns = now_ns()
        return num_bytes

    # ------------------------------------------------------------------ before frames

    def send_all(self, data: bytes, deadline_ns: int) -> None:
        """Send bytes; raises ConnectionEndedError at the deadline."""
        out = ScatterList([memoryview(data)])
        while out.num_bytes:
            if not self.send_from(out):
                self._wait_in_time(to_write=True, deadline_ns=deadline_ns)

    def receive_exactly(self, num_bytes: int, deadline_ns: int) -> bytes:
        """Wait for bytes; raises ConnectionEndedError at the deadline."""
        data = bytearray(num_bytes)
        num_read = 0
        while num_read < num_bytes:
            got = self.receive_into([memoryview(data)[num_read:]])
            num_read += got
            if not got:
                self._wait_in_time(to_write=False, deadline_ns=deadline_ns)
        return bytes(data)

    def send_fd(self, fd: int, deadline_ns: int) -> None:
        """Hand a file descriptor to the peer; raises ConnectionEndedError at the deadline."""
        while True:
            try:
                socket.send_fds(self.sock, [b"P"], [fd])
            except BlockingIOError:
                self._wait_in_time(to_write=True, deadline_ns=deadline_ns)
            else:
                return

    def receive_fd(self, deadline_ns: int) -> int:
        """Wait for a file descriptor; the caller closes it.

        Raises:
            ConnectionEndedError: it did not come in time.
            ProtocolError: something else came.
        """
        while True:
            try:
                data, fds, flags, _ = socket.recv_fds(self.sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                self._wait_in_time(to_write=False, deadline_ns=deadline_ns)
            else:
                break
        if not data:
            raise PeerClosedError("the peer closed the connection")
        if len(fds) == 1 and not flags & socket.MSG_CTRUNC:
            return fds[0]
        for fd in fds:
            os.close(fd)
        raise ProtocolError("the peer passed something else than one file descriptor")

    def _wait_in_time(self, *, to_write: bool, deadline_ns: int) -> None:
        self.wait(to_write=to_write, to_read=not to_write, deadline_ns=deadline_ns)
        if now_ns() >= deadline_ns:
            raise ConnectionEndedError("the peer did not greet in time")

    def close(self) -> None:
        """Close the socket; for the thread, when it ends."""
        with self._wake_lock:
            self._waker.close()
        self._wakened.close()
        self.sock.close()


def tune(sock: socket.socket) -> None:
    """Set buffers, and send at once what is small."""
    if sock.family == socket.AF_UNIX:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reason_of(error: Exception) -> str:
    """Return why a connection ended, in words."""
    if isinstance(error, ProtocolError):
        return f"protocol error: {error}"
    if isinstance(error, OSError):
        return f"connection lost: {error.strerror or error}"
    return str(error)
