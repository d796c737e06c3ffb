"""Workers started by hand that join over loopback TCP, die, come back, and do not fit.

Laws as in ``control/test_process_cluster``.
"""

import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_clusters import PATIENCE_S, Outputs, let_steps_run_late, request
from joined_clusters import TOKEN, assert_right, remote_cluster, wait

from kvfabric.engine import worker_main
from kvfabric.engine.executor_spec import FAKE, ExecutorSpec, MadeExecutor, make_executor
from kvfabric.engine.hosts.joining import JoinError, Role, join
from kvfabric.engine.hosts.remote_worker import RemoteWorker, RemoteWorkerSettings
from kvfabric.engine.messages import Refused
from kvfabric.engine.wire import MessageSocket, decode_to_worker
from kvfabric.serving.coordinator_config import HandoffMode

Start = Callable[..., subprocess.Popen[str]]


@pytest.mark.parametrize("handoff", HandoffMode)
def test_workers_join_serve_and_end_with_the_cluster(start: Start, handoff: HandoffMode) -> None:
    outputs = Outputs()
    asked = [request(i, range(7 * i, 7 * i + 20 + i), 8) for i in range(12)]
    cluster = remote_cluster(
        outputs, num_prefill=2, num_decode=1, handoff=handoff, num_layer_groups=2
    )
    roles = (Role.DECODE, Role.PREFILL, Role.PREFILL)
    processes = [start(cluster.address, role) for role in roles]
    assert cluster.wait_ready(PATIENCE_S)
    with cluster:
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: cluster.loop.driver.num_held_blocks == 0)
        assert cluster.loop.driver.moved_bytes > 0
    assert_right(outputs, asked)
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]


def test_a_killed_worker_can_be_started_again_and_its_requests_run(start: Start) -> None:
    outputs = Outputs()
    asked = [request(i, range(9 * i, 9 * i + 40), 10) for i in range(12)]
    cluster = remote_cluster(
        outputs, step_ns=3_000_000, num_prefill=2, num_decode=1, max_restarts=9
    )
    prefill = [start(cluster.address, Role.PREFILL) for _ in range(2)]
    decode = start(cluster.address, Role.DECODE)
    assert cluster.wait_ready(PATIENCE_S)
    driver = cluster.loop.driver
    with cluster:
        for one in asked[:6]:
            cluster.loop.submit(one)
        outputs.wait_ended(1)
        for killed, role in ((prefill[0], Role.PREFILL), (decode, Role.DECODE)):
            num_lost = sum(text.endswith("has ended") for text in cluster.loop.failures)
            killed.kill()
            wait(lambda: any(worker.is_lost for worker in driver.workers))
            assert sum(text.endswith("has ended") for text in cluster.loop.failures) > num_lost
            start(cluster.address, role)
            wait(lambda: not any(worker.is_lost for worker in driver.workers))
        for one in asked[6:]:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        outputs.wait(lambda: driver.num_held_blocks == 0)
    finished = [one for one in asked if one.request_id in outputs.tokens]
    assert_right(outputs, [one for one in finished if one.request_id >= 6])
    assert len(finished) >= 6


def test_a_worker_whose_connection_is_cut_joins_again_by_itself(start: Start) -> None:
    outputs = Outputs()
    cluster = remote_cluster(outputs)
    process = start(cluster.address, Role.PREFILL)
    assert cluster.wait_ready(PATIENCE_S)
    with cluster:
        first = cluster._places[0].link
        assert first is not None
        first._socket.shutdown()
        wait(lambda: cluster.loop._links[0] not in {None, first})
        asked = request(0, range(30))
        cluster.loop.submit(asked)
        outputs.wait_ended(1)
    assert_right(outputs, [asked])
    assert process.wait(PATIENCE_S) == 0


def test_a_worker_that_joins_again_does_not_load_its_model_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ExecutorSpec] = []

    def make(spec: ExecutorSpec, *, is_shared: bool = False) -> MadeExecutor:
        made.append(spec)
        return make_executor(spec, is_shared=is_shared)

    monkeypatch.setattr(worker_main, "make_executor", make)
    outputs = Outputs()
    asked = [request(i, range(7 * i, 7 * i + 30), 8) for i in range(8)]
    with ThreadPoolExecutor(1) as pool:
        cluster = remote_cluster(outputs, step_ns=1_000_000)
        settings = RemoteWorkerSettings(
            control=cluster.address, token=TOKEN, role=Role.PREFILL, model=FAKE
        )
        worker = pool.submit(RemoteWorker(settings, lambda _: None).run)
        assert cluster.wait_ready(PATIENCE_S)
        with cluster:
            for one in asked[:4]:
                cluster.loop.submit(one)
            first = cluster._places[0].link
            assert first is not None
            first._socket.shutdown()
            wait(lambda: cluster.loop._links[0] not in {None, first})
            for one in asked[4:]:
                cluster.loop.submit(one)
            outputs.wait_ended(len(asked))
        worker.result(PATIENCE_S)
    assert_right(outputs, asked[4:])
    assert len(made) == 1


def test_strangers_and_misfits_are_refused_and_told_why(start: Start) -> None:
    outputs = Outputs()
    cluster = remote_cluster(outputs, num_decode=1)
    stranger = start(cluster.address, Role.PREFILL, token=b"not the token, but long")
    assert "another token" in stranger.communicate(timeout=PATIENCE_S)[1]
    assert stranger.returncode == 1
    start(cluster.address, Role.PREFILL)
    wait(lambda: cluster.missing()[Role.PREFILL] == 0)
    one_more = start(cluster.address, Role.PREFILL, attempts=1)
    assert "all 1 prefill workers are there" in one_more.communicate(timeout=PATIENCE_S)[1]
    no_model = start(cluster.address, Role.DECODE, model="no-such-model")
    assert "no-such-model" in no_model.communicate(timeout=PATIENCE_S)[1]
    pytest.importorskip("torch")
    other = start(cluster.address, Role.DECODE, model="random:llama")
    assert "another model, dtype or KV layout" in other.communicate(timeout=PATIENCE_S)[1]
    start(cluster.address, Role.DECODE)  # the place is free again
    assert cluster.wait_ready(PATIENCE_S)
    with cluster:
        asked = request(0, range(30))
        cluster.loop.submit(asked)
        outputs.wait_ended(1)
    assert_right(outputs, [asked])


def test_garbage_from_a_member_costs_its_place_only(start: Start) -> None:
    outputs = Outputs()
    cluster = remote_cluster(outputs)
    sock = socket.create_connection(cluster.address)
    with sock:
        welcome = join(sock, TOKEN, Role.PREFILL)
        assert welcome.executor["block_size"] == 4
        sock.sendall(struct.pack("<I", 1 << 31))  # a message larger than any
        assert sock.recv(100) == b""
    wait(lambda: not cluster._places[0].is_taken)
    start(cluster.address, Role.PREFILL)
    assert cluster.wait_ready(PATIENCE_S)
    with cluster:
        asked = request(0, range(30))
        cluster.loop.submit(asked)
        outputs.wait_ended(1)
    assert_right(outputs, [asked])


def test_a_stopped_worker_process_is_given_up_by_its_step_deadline(start: Start) -> None:
    outputs = Outputs()
    cluster = remote_cluster(outputs, num_prefill=2, max_restarts=3)
    first = start(cluster.address, Role.PREFILL)
    wait(lambda: cluster._places[0].link is not None)
    start(cluster.address, Role.PREFILL)
    assert cluster.wait_ready(PATIENCE_S)
    link = cluster._places[0].link
    assert link is not None
    let_steps_run_late(cluster.loop, 0, link)
    asked = [request(i, range(i, i + 30), 4) for i in range(6)]
    with cluster:
        first.send_signal(signal.SIGSTOP)
        for one in asked:
            cluster.loop.submit(one)
        outputs.wait_ended(len(asked))
        first.send_signal(signal.SIGCONT)
    assert_right(outputs, asked)
    assert any("takes too long" in text for text in cluster.loop.failures)


def test_a_cluster_that_nobody_joins_can_be_given_up() -> None:
    cluster = remote_cluster(Outputs())
    with socket.create_connection(cluster.address) as silent:
        assert not cluster.wait_ready(0.05)
        cluster.close()
        silent.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(cluster.address)


def test_a_worker_gives_up_after_its_attempts(start: Start) -> None:
    with socket.socket() as nobody:  # bound, not listening
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()
        process = start(address, Role.DECODE, attempts=2)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert f"{JoinError.__name__}: cannot join 127.0.0.1:{address[1]}" in said
    assert said.count("cannot join") == 2


def test_what_control_and_worker_say_is_of_the_same_words() -> None:
    ours, theirs = socket.socketpair()
    one, other = MessageSocket(ours), MessageSocket(theirs)
    one.send(Refused("why"))
    body = other.read()
    assert body is not None
    assert decode_to_worker(body) == Refused("why")
    for end in (one, other):
        end.shutdown()
        end.close()
