"""How a worker of another host joins: both sides prove that they know the token, then agree.

    control                       worker
    challenge, version      ->
                            <-    version, challenge, role, proof
    proof, what to run      ->    or: refused, reason

A proof is the HMAC-SHA256 of both challenges, keyed with the token; the token itself does not
travel. Messages are JSON of at most 4 KiB behind their length; all must come before one deadline.
Nothing is encrypted: whoever can change packets between the hosts can take a connection over.
"""

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvfabric.errors import ConfigError, KvfabricError

JOIN_VERSION = 1
MAX_JOIN_BYTES = 4096
MIN_TOKEN_CHARACTERS = 16
JOIN_S = 10.0
_LENGTH = struct.Struct("<I")


class Role(Enum):
    """What a worker does; a cluster without decode workers lets prefill workers generate."""

    PREFILL = "prefill"
    DECODE = "decode"


class JoinError(KvfabricError):
    """A worker was not let in, or the other side is no cluster; the text says why."""


class BusyError(JoinError):
    """There is no place for such a worker now; there may be one later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What a worker is to run.

    Attributes:
        executor: fields of an ``ExecutorSpec``, but for what is the worker's own: ``model``,
            ``device`` and ``num_threads``.
        cluster: name that all workers of the cluster share.
        transfer_timeout_ns: until a transfer fails.
        transport: how KV blocks move, see ``transport.choose``.
    """

    executor: dict[str, Any]
    cluster: str
    transfer_timeout_ns: int
    transport: str = "sockets"


def check_token(token: str, where: str) -> bytes:
    """Return a token as bytes.

    Raises:
        ConfigError: it is too short to keep anybody out.
    """
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(
            f"a token of {len(token)} characters",
            where=where,
            hint=f"Write at least {MIN_TOKEN_CHARACTERS}, the same on every host",
        )
    return token.encode()


def _proof(token: bytes, who: str, *parts: str) -> str:
    return hmac.new(token, "|".join((who, *parts)).encode(), hashlib.sha256).hexdigest()


# ------------------------------------------------------------------ messages


class _Talk:
    """Small messages over a socket, all of them before one deadline."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._socket, self._end_s = sock, time.monotonic() + timeout_s

    def send(self, message: Mapping[str, object]) -> None:
        body = json.dumps(message).encode()
        assert len(body) <= MAX_JOIN_BYTES, "names are short"
        self._arm()
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise JoinError(f"the other side has gone: {error}") from None

    def receive(self) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_JOIN_BYTES:
            raise JoinError(f"the other side sent something else: {length} bytes to come")
        body = self._exactly(length)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise JoinError("the other side sent something else than a greeting")
        if "refused" in message:
            error = BusyError if message.get("busy") else JoinError
            raise error(str(message["refused"])[:500])
        return message

    def _exactly(self, num_bytes: int) -> bytes:
        data = b""
        while len(data) < num_bytes:
            self._arm()
            try:
                part = self._socket.recv(num_bytes - len(data))
            except OSError as error:
                raise JoinError(f"the other side does not greet: {error}") from None
            if not part:
                raise JoinError("the other side closed the connection")
            data += part
        return data

    def _arm(self) -> None:
        self._socket.settimeout(max(0.001, self._end_s - time.monotonic()))


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise JoinError(f"the other side's greeting has no {key}")
    return value


def _check_proof(message: Mapping[str, Any], expected: str, reason: str) -> None:
    if not hmac.compare_digest(_text(message, "proof").encode(), expected.encode()):
        raise JoinError(reason)


def _check_version(message: Mapping[str, Any]) -> None:
    if message.get("kvfabric") != JOIN_VERSION:
        raise JoinError(
            f"versions {message.get('kvfabric')} and {JOIN_VERSION} do not fit together"
        )


# ------------------------------------------------------------------ the two sides


class Joiner:
    """A worker that asks the control to be let in, as the control sees it."""

    def __init__(self, sock: socket.socket, token: bytes, timeout_s: float = JOIN_S) -> None:
        """Take over a connection that somebody opened."""
        self._socket, self._token = sock, token
        self._talk = _Talk(sock, timeout_s)
        self._challenges = ("", "")

    def identify(self) -> Role:
        """Return what the worker wants to be, once it has proved that it knows the token.

        Raises:
            JoinError: it does not, or is no worker; it has been told, if it listens.
        """
        ours = secrets.token_hex(16)
        self._talk.send({"kvfabric": JOIN_VERSION, "challenge": ours})
        answer = self._talk.receive()
        try:
            _check_version(answer)
            theirs, role = _text(answer, "challenge"), _text(answer, "role")
            expected = _proof(self._token, "worker", ours, theirs, role)
            _check_proof(answer, expected, "another token")
            self._challenges = ours, theirs
            return Role(role)
        except JoinError as error:
            self.refuse(str(error))
            raise
        except ValueError:
            self.refuse(f"role {role[:20]!r}")
            raise JoinError(f"role {role[:20]!r}") from None

    def welcome(self, welcome: Welcome) -> None:
        """Let the worker in; the socket then waits without end."""
        self._talk.send(
            {
                "proof": _proof(self._token, "control", *self._challenges),
                "executor": welcome.executor,
                "cluster": welcome.cluster,
                "transfer_timeout_ns": welcome.transfer_timeout_ns,
                "transport": welcome.transport,
            }
        )
        self._socket.settimeout(None)

    def refuse(self, reason: str, *, is_busy: bool = False) -> None:
        """Tell the worker that it cannot come in; it may not listen."""
        try:
            self._talk.send({"refused": reason, "busy": is_busy})
        except JoinError:
            return


def join(sock: socket.socket, token: bytes, role: Role, timeout_s: float = JOIN_S) -> Welcome:
    """Ask to be let in; return what to run. The socket then waits without end.

    Raises:
        BusyError: there is no place now.
        JoinError: this worker is refused, or the other side does not know the token.
    """
    talk = _Talk(sock, timeout_s)
    greeting = talk.receive()
    _check_version(greeting)
    theirs, ours = _text(greeting, "challenge"), secrets.token_hex(16)
    proof = _proof(token, "worker", theirs, ours, role.value)
    talk.send({"kvfabric": JOIN_VERSION, "challenge": ours, "role": role.value, "proof": proof})
    answer = talk.receive()
    expected = _proof(token, "control", theirs, ours)
    _check_proof(answer, expected, "the control does not know the token")
    executor, timeout_ns = answer.get("executor"), answer.get("transfer_timeout_ns")
    if not isinstance(executor, dict) or not isinstance(timeout_ns, int):
        raise JoinError("the control does not say what to run")
    sock.settimeout(None)
    return Welcome(
        executor=executor,
        cluster=_text(answer, "cluster"),
        transfer_timeout_ns=timeout_ns,
        transport=_text(answer, "transport"),
    )


# ------------------------------------------------------------------ connections between hosts

_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 10, 5, 4
_UNACKNOWLEDGED_MS = 30_000


def keep_alive(sock: socket.socket) -> None:
    """Let a connection end about half a minute after the other host has gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """Return the parts of ``HOST:PORT``; an IPv6 host stands in brackets.

    Raises:
        ConfigError: it is none.
    """
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    host = host.removeprefix("[").removesuffix("]")
    if not host or not is_port:
        raise ConfigError(f"{text!r}", where=where, hint="Write HOST:PORT, such as 10.0.0.1:7000")
    return host, int(port)
