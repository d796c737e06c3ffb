"""Peers that speak the wire format by hand, so that they can break it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from transport_workers import identity

from kvfabric.engine.transport.address import listen, parse_address
from kvfabric.engine.transport.frames import HEADER_BYTES, Frame, Kind, pack, unpack
from kvfabric.engine.transport.handshake import greeting

DIGEST = identity().digest
PATIENCE_S = 20


class RawPeer:
    """One greeted connection."""

    def __init__(self, sock: socket.socket) -> None:
        """Greet."""
        self.sock = sock
        sock.settimeout(PATIENCE_S)
        hello = greeting(identity())
        sock.sendall(hello)
        assert self.read(len(hello)) == hello

    def read(self, num_bytes: int) -> bytes:
        """Return bytes; fewer at the end of the stream."""
        data = b""
        while len(data) < num_bytes and (part := self.sock.recv(num_bytes - len(data))):
            data += part
        return data

    def tell(self, frame: Frame, behind: bytes = b"") -> None:
        """Send a frame."""
        self.sock.sendall(pack(frame, DIGEST) + behind)

    def hear(self) -> tuple[Frame, bytes]:
        """Return the next frame and what is behind it."""
        frame = unpack(self.read(HEADER_BYTES), DIGEST)
        return frame, self.read(frame.num_behind)

    def hear_kind(self, kind: Kind) -> tuple[Frame, bytes]:
        """Return the next frame, which must be of a kind."""
        frame, behind = self.hear()
        assert frame.kind is kind, (frame, behind)
        return frame, behind

    def is_cut(self) -> bool:
        """Return whether the other side closes the connection, whatever it sends before."""
        try:
            while self.sock.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


@contextmanager
def raw_sender(address: str) -> Iterator[RawPeer]:
    """Yield a connection to a worker."""
    where = parse_address(address)
    with socket.socket(where.family, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(where.for_socket)
        yield RawPeer(sock)


class RawListener:
    """A listening peer that accepts when it is told to."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        """Listen."""
        self._sock, self.address = sock, address
        sock.settimeout(PATIENCE_S)

    def accept(self) -> RawPeer:
        """Take the next connection and greet."""
        sock, _ = self._sock.accept()
        return RawPeer(sock)


@contextmanager
def raw_listener(kind: str = "unix") -> Iterator[RawListener]:
    """Yield a listener that a worker can send to."""
    with TemporaryDirectory() as folder:
        text = f"unix:{Path(folder) / 'raw'}" if kind == "unix" else "tcp:127.0.0.1:0"
        sock, address = listen(parse_address(text))
        with sock:
            yield RawListener(sock, str(address))
