"""The way in: who knows the token joins, everybody else is refused before anything is allocated."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_clusters import PATIENCE_S

from kvfabric.engine.hosts.joining import (
    JOIN_VERSION,
    MAX_JOIN_BYTES,
    BusyError,
    Joiner,
    JoinError,
    Role,
    Welcome,
    check_token,
    host_and_port,
    join,
)
from kvfabric.errors import ConfigError

TOKEN = b"sixteen letters!"
WELCOME = Welcome(executor={"block_size": 4}, cluster="c", transfer_timeout_ns=5)


def both(control: Callable[[socket.socket], Any], worker: Callable[[socket.socket], Any]) -> Any:
    """Run both sides; return what each gave or raised."""
    ours, theirs = socket.socketpair()
    found: list[Any] = [None, None]

    def run(index: int, side: Callable[[socket.socket], Any], sock: socket.socket) -> None:
        try:
            found[index] = side(sock)
        except JoinError as error:
            found[index] = error

    with ours, theirs:
        thread = threading.Thread(target=run, args=(0, control, ours))
        thread.start()
        run(1, worker, theirs)
        theirs.shutdown(socket.SHUT_WR)
        thread.join()
    return found


def let_in(sock: socket.socket, token: bytes = TOKEN) -> Role:
    joiner = Joiner(sock, token, PATIENCE_S)
    role = joiner.identify()
    joiner.welcome(WELCOME)
    return role


@pytest.mark.parametrize("role", Role)
def test_who_knows_the_token_is_told_what_to_run(role: Role) -> None:
    assert both(let_in, lambda sock: join(sock, TOKEN, role, PATIENCE_S)) == [role, WELCOME]


def test_another_token_is_refused_on_both_sides_and_does_not_travel() -> None:
    seen = bytearray()

    class Tapped(socket.socket):
        def sendall(self, data: bytes, *_: Any) -> None:  # type: ignore[override]
            seen.extend(data)
            super().sendall(data)

    ours, theirs = (Tapped(fileno=one.detach()) for one in socket.socketpair())
    with ours, theirs:

        def control() -> None:
            with pytest.raises(JoinError, match="another token"):
                let_in(ours)

        thread = threading.Thread(target=control)
        thread.start()
        with pytest.raises(JoinError, match="another token"):
            join(theirs, b"another sixteen letters", Role.DECODE, PATIENCE_S)
        thread.join()
    assert TOKEN not in seen
    assert b"another sixteen" not in seen


def test_a_control_that_does_not_know_the_token_is_no_control() -> None:
    def pretend(sock: socket.socket) -> None:
        frame(sock, {"kvfabric": JOIN_VERSION, "challenge": "x"})
        sock.recv(4096)
        frame(sock, {"proof": "0" * 64, "executor": {}, "cluster": "c", "transfer_timeout_ns": 1})

    _, error = both(pretend, lambda sock: join(sock, TOKEN, Role.PREFILL, PATIENCE_S))
    assert "does not know the token" in str(error)


def test_a_proof_of_an_older_connection_proves_nothing() -> None:
    """A recorded answer is of another challenge."""
    recorded: list[bytes] = []

    def record(sock: socket.socket) -> None:
        frame(sock, {"kvfabric": JOIN_VERSION, "challenge": "an older one"})
        recorded.append(sock.recv(4096))
        sock.shutdown(socket.SHUT_WR)

    both(record, lambda sock: join(sock, TOKEN, Role.PREFILL, PATIENCE_S))
    error, _ = both(let_in, lambda sock: sock.sendall(recorded[0]))
    assert "another token" in str(error)


def frame(sock: socket.socket, message: Any) -> None:
    body = json.dumps(message).encode()
    sock.sendall(struct.pack("<I", len(body)) + body)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "something else"),
        (struct.pack("<I", MAX_JOIN_BYTES + 1), "4097 bytes to come"),
        (struct.pack("<I", 4) + b"[[[[", "something else than a greeting"),
        (struct.pack("<I", 2) + b"[]", "something else than a greeting"),
        (struct.pack("<I", 4000) + b"[" * 4000, "something else than a greeting"),
        (b"", "closed the connection"),
    ],
)
def test_garbage_is_refused(sent: bytes, reason: str) -> None:
    error, _ = both(let_in, lambda sock: sock.sendall(sent))
    assert reason in str(error)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"kvfabric": 99, "challenge": "a", "role": "decode", "proof": "b"}, "versions 99 and 1"),
        ({"kvfabric": JOIN_VERSION, "challenge": 5, "role": "decode", "proof": "b"}, "challenge"),
        ({"kvfabric": JOIN_VERSION, "challenge": "a", "role": "decode"}, "no proof"),
    ],
)
def test_a_greeting_that_lacks_something_is_refused(message: Any, reason: str) -> None:
    error, _ = both(let_in, lambda sock: frame(sock, message))
    assert reason in str(error)


def test_a_stranger_that_says_nothing_costs_a_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(JoinError, match="does not greet"):
        Joiner(ours, TOKEN, 0.05).identify()


def test_a_full_cluster_is_told_apart_from_a_refusal() -> None:
    def refuse(sock: socket.socket) -> None:
        joiner = Joiner(sock, TOKEN, PATIENCE_S)
        joiner.identify()
        joiner.refuse("all are there", is_busy=True)

    _, error = both(refuse, lambda sock: join(sock, TOKEN, Role.PREFILL, PATIENCE_S))
    assert isinstance(error, BusyError)


def test_addresses_and_tokens() -> None:
    assert host_and_port("10.0.0.1:7000", "--join") == ("10.0.0.1", 7000)
    assert host_and_port("[::1]:0", "--join") == ("::1", 0)
    for text in ("7000", "host:", ":1", "a:65536", "a:x"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            host_and_port(text, "--join")
    with pytest.raises(ConfigError, match="16"):
        check_token("short", "--worker-token")
