"""Addresses of workers: ``unix:/path/of/socket`` on one host, ``tcp:127.0.0.1:7000`` between two.

An IPv6 host stands in brackets: ``tcp:[::1]:7000``. Port 0 lets the system choose.
"""

import errno
import socket
from pathlib import Path
from typing import NamedTuple

from kvfabric.errors import ConfigError

MAX_UNIX_PATH_BYTES = 107  # sun_path of Linux, without its final zero
_HINT = "Write unix:/path/of/socket or tcp:HOST:PORT"


class Address(NamedTuple):
    """A parsed address; ``path`` is empty for TCP."""

    path: str
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        """Return the text that ``parse_address`` reads."""
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp:{host}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """Return the socket family."""
        if self.path:
            return socket.AF_UNIX
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def for_socket(self) -> str | tuple[str, int]:
        """Return what ``bind`` and ``connect`` take."""
        return self.path or (self.host, self.port)


def parse_address(text: str) -> Address:
    """Read an address, or raise ConfigError that says how to write one."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest:
        if len(rest.encode()) > MAX_UNIX_PATH_BYTES:
            what = f"socket path of {len(rest.encode())} bytes in {text!r}"
            raise ConfigError(what, hint=f"At most {MAX_UNIX_PATH_BYTES} fit; use a shorter folder")
        return Address(rest)
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"address {text!r}", hint=_HINT)
    if int(port) > 65535:
        raise ConfigError(f"port {port} in {text!r}", hint="Ports end at 65535")
    return Address("", host.removeprefix("[").removesuffix("]"), int(port))


def listen(address: Address) -> tuple[socket.socket, Address]:
    """Return a listening socket and where it listens; a dead worker's socket file is replaced."""
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        _bind(listener, address)
        listener.listen(64)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        hint = "Choose another address, or end what uses it"
        raise ConfigError(f"cannot listen on {address}: {reason}", hint=hint) from error
    if not address.path:
        address = address._replace(port=listener.getsockname()[1])
    return listener, address


def _bind(listener: socket.socket, address: Address) -> None:
    if not address.path:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    elif _is_dead(address):
        Path(address.path).unlink()
    listener.bind(address.for_socket)
    if address.path:
        Path(address.path).chmod(0o600)


def _is_dead(address: Address) -> bool:
    """Return whether a socket file is there that nobody listens on."""
    if not Path(address.path).is_socket():
        return False
    with socket.socket(address.family, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(address.for_socket) == errno.ECONNREFUSED
