"""Peers that speak the wire format by hand, so that they can break it."""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from transport_workers import PATIENCE_S, identity

from kvfabric.engine.transport.address import listen, parse_address
from kvfabric.engine.transport.frames import HEADER_BYTES, Frame, Kind, pack, unpack
from kvfabric.engine.transport.handshake import greeting

DIGEST = identity().digest


class RawPeer:
    """One greeted connection.

    Attributes:
        theirs: what the worker says beside its identity.
    """

    def __init__(self, sock: socket.socket, says: dict[str, int] | None = None) -> None:
        """Greet, and say more than the identity."""
        self.sock = sock
        sock.settimeout(PATIENCE_S)
        sock.sendall(greeting(identity(), says=says))
        magic, version, size = struct.unpack("<4sHH", self.read(8))
        assert (magic, version) == (b"kvHI", 1)
        greeted = json.loads(self.read(size))
        same = {key: greeted.pop(key) for key in identity().fields()}
        assert same == identity().fields()
        self.theirs: dict[str, object] = greeted

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
def raw_sender(address: str, says: dict[str, int] | None = None) -> Iterator[RawPeer]:
    """Yield a connection to a worker."""
    where = parse_address(address)
    with socket.socket(where.family, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(where.for_socket)
        yield RawPeer(sock, says)


class RawListener:
    """A listening peer that accepts when it is told to."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        """Listen."""
        self.sock, self.address = sock, address
        sock.settimeout(PATIENCE_S)

    def accept(self, says: dict[str, int] | None = None) -> RawPeer:
        """Take the next connection and greet."""
        sock, _ = self.sock.accept()
        return RawPeer(sock, says)


@contextmanager
def raw_listener(kind: str = "unix") -> Iterator[RawListener]:
    """Yield a listener that a worker can send to."""
    with TemporaryDirectory() as folder:
        text = f"unix:{Path(folder) / 'raw'}" if kind == "unix" else "tcp:127.0.0.1:0"
        sock, address = listen(parse_address(text))
        with sock:
            yield RawListener(sock, str(address))
