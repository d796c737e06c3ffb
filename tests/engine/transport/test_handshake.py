import socket
from dataclasses import replace

import pytest
from transport_workers import (
    LAYOUT,
    PATIENCE_S,
    PATIENT,
    SECOND,
    MakeWorker,
    Pool,
    done,
    failed,
    identity,
    whole,
)

from kvfabric.engine.transport.address import parse_address
from kvfabric.engine.transport.greeter import MAPS_POOLS
from kvfabric.engine.transport.handshake import Identity, greeting

OTHERS = {
    "different model: m and other": identity(model="other"),
    "different cluster: c and other": identity(cluster="other"),
    "different block size: 16 and 4": identity(layout=replace(LAYOUT, block_size=16)),
    "different layers: 2 and 3": identity(layout=replace(LAYOUT, num_layers=2)),
    "different KV heads: 1 and 2": identity(layout=replace(LAYOUT, num_kv_heads=1)),
    "different head size: 16 and 8": identity(layout=replace(LAYOUT, head_dim=16)),
    "different KV dtype: bfloat16 and float32": identity(
        layout=replace(LAYOUT, kv_dtype="bfloat16")
    ),
    "different wire order: layer, block and layer, k/v, block, token, head, dim": replace(
        identity(), wire_order="layer, block"
    ),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_both_sides_give_the_same_reason(make_worker: MakeWorker, reason: str) -> None:
    other = OTHERS[reason]
    receiver = make_worker()
    sender = make_worker(who=other, pool=Pool(1, other.layout))
    sender.transport.send(1, receiver.address, whole(1, 2))
    assert failed(sender.event_of(1)).startswith(reason)
    assert receiver.refusal().reason == reason


def test_every_field_is_compared() -> None:
    base = identity()
    changed = [
        Identity(model="x", layout=LAYOUT, cluster="c"),
        replace(base, layout=replace(LAYOUT, num_layers=9)),
    ]
    assert len({base.digest, *(other.digest for other in changed)}) == 3


def greet_raw(address: str, data: bytes) -> bytes:
    """Send bytes to a worker and return what it sends until it closes."""
    where = parse_address(address)
    with socket.socket(where.family, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(where.for_socket)
        answer = b""
        try:
            sock.sendall(data)
            while part := sock.recv(4096):
                answer += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answer


def test_another_protocol_version_is_named(make_worker: MakeWorker) -> None:
    worker = make_worker()
    answer = greet_raw(worker.address, greeting(identity(), version=7))
    says = {} if worker.pool.shared is None else {MAPS_POOLS: 1}
    assert answer == greeting(identity(), says=says), "the other side can compare too"
    assert worker.refusal().reason == "protocol versions 1 and 7 do not fit together"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "protocol error: the peer sent something else than a greeting"),
        (b"kvHI\x01\x00\xff\xff", "protocol error: the peer sent something else than a greeting"),
        (b"kvHI\x01\x00\x02\x00[]", "protocol error: the peer's greeting is not JSON"),
        (b"kvHI\x01\x00\x02\x00\xff\xfe", "protocol error: the peer's greeting is not JSON"),
        (b"kvHI\x01\x00\x02\x00{}", "different model: None and m"),
    ],
)
def test_what_is_no_greeting_is_refused(make_worker: MakeWorker, data: bytes, reason: str) -> None:
    worker = make_worker()
    greet_raw(worker.address, data)
    assert worker.refusal().reason == reason


def test_a_greeting_that_stops_is_refused_in_time(make_worker: MakeWorker) -> None:
    worker = make_worker(deadlines=replace(PATIENT, handshake_ns=SECOND // 5))
    greet_raw(worker.address, b"kvHI")
    assert worker.refusal().reason == "the peer did not greet in time"


def test_others_are_served_after_a_refusal(make_worker: MakeWorker) -> None:
    receiver, sender = make_worker(), make_worker(seed=1)
    greet_raw(receiver.address, b"garbage " * 100)
    receiver.transport.expect(1, whole(3))
    sender.transport.send(1, receiver.address, whole(4))
    done(receiver.event_of(1))
