"""A Unix socket between two workers that can be cut, or stop to pass anything on, at some byte."""

import contextlib
import socket
import threading
from pathlib import Path

from kvfabric.engine.transport.address import parse_address
from kvfabric.engine.transport.frames import Frame, Kind, pack

_DATA = pack(Frame(Kind.DATA, 0), 0)[:5]  # how its header begins: what is on the wire, and kind


class CuttingProxy:
    """Passes bytes on to a worker's data address; does harm once, to the first connection.

    It does so within DATA: an offer alone that is lost is made again, and nobody notices.

    Attributes:
        address: what senders are to be told.
        has_harmed: whether it did.
    """

    def __init__(self, folder: Path, target: str, *, after_bytes: int, cuts: bool) -> None:
        self._target = parse_address(target)
        self._after_bytes, self._cuts = after_bytes, cuts
        self.address = f"unix:{folder / 'proxy'}"
        self.has_harmed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "proxy"))
        self._listener.listen()
        self._sockets: list[socket.socket] = [self._listener]
        self._thread = threading.Thread(target=self._accept_all, daemon=True)
        self._thread.start()

    def _accept_all(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sender, _ = self._listener.accept()
                receiver = socket.socket(self._target.family, socket.SOCK_STREAM)
                receiver.connect(self._target.for_socket)
                self._sockets += [sender, receiver]
                for source, sink, harms in ((sender, receiver, True), (receiver, sender, False)):
                    arguments = (source, sink, harms)
                    threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, harms: bool) -> None:
        passed = b""
        with contextlib.suppress(OSError):
            while data := source.recv(256):
                begun = passed + data
                is_within_data = begun[begun.rfind(_DATA[:4]) :].startswith(_DATA)
                is_due = len(passed) >= self._after_bytes and is_within_data
                if harms and is_due and not self.has_harmed.is_set():
                    self.has_harmed.set()
                    if not self._cuts:
                        return  # and never anything again on this connection
                    break
                sink.sendall(data)
                passed = begun
            for end in (source, sink):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._thread.join()
