"""``kvfabric serve`` as a user starts it: worker processes, the official client, a signal."""

import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import run

from kvfabric.app.step_times_file import read_step_times

PATIENCE_S = 240.0  # only against waiting for ever: a machine may be slow
_MAIN = "from kvfabric.app.main import main; main()"
_needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs the extra 'engine'"
)


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server of one prefill and one decode worker; give its process and address."""
    options = ["--model", "random:llama", "--prefill", "1", "--decode", "1", "--dtype", "float32"]
    options += ["--handoff", "layer-wise"]
    more = ["--port", "0", "--threads", "1", "--kv-blocks", "40", "--shutdown-timeout", "20"]
    command = [sys.executable, "-c", _MAIN, "serve", *options, *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line)
                found = re.search(r"on (http://127\.0\.0\.1:\d+/v1)", line)
                if found:
                    yield process, found[1]
                    break
            else:
                raise AssertionError("".join(lines))
        finally:
            process.kill()


@_needs_engine
def test_the_official_client_and_an_end_in_good_order(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    openai = pytest.importorskip("openai")
    process, url = server
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        (model,) = client.models.list().data
        assert (model.id, model.max_model_len) == ("random:llama", 39 * 16)
        options = {"model": model.id, "temperature": 0, "max_tokens": 12}
        whole = client.completions.create(prompt="a network " * 10, **options)
        chunks = list(client.completions.create(prompt="a network " * 10, stream=True, **options))
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        messages = [{"role": "user", "content": "What is a network switch?"}]
        chat = client.chat.completions.create(messages=messages, **options)
        assert chat.usage.completion_tokens == 12
        with pytest.raises(openai.BadRequestError, match="maximum context length is 624"):
            client.completions.create(prompt="a" * 700, **options)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0


@_needs_engine
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "nowhere"], "model 'nowhere' not found"),
        (
            ["--model", "random:llama", "--max-model-len", "100", "--kv-blocks", "5"],
            "--max-model-len 100: the model takes 2048 tokens, 5 KV blocks of 16 take 64",
        ),
        (["--model", "random:llama", "--kv-memory-gib", "1e-9"], "0 KV blocks"),
        (["--model", "random:llama", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["--model", "random:llama", "--api-key", ""], "--api-key is empty"),
        (["--model", "random:llama", "--device", "cuda:99"], "device 'cuda:99' is not here"),
    ],
)
def test_what_cannot_be_served_is_one_message(
    capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    ran = run(capfd, "serve", *options)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_missing_packages_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvfabric.engine.requirements.find_spec", lambda _: None)
    ran = run(capsys, "serve", "--model", "smollm2")
    assert ran.code == 2
    assert "pip install 'kvfabric[engine]'" in ran.err


@_needs_engine
def test_workers_of_other_hosts_join_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFABRIC_WORKER_TOKEN", "of sixteen letters")
    served = ["serve", "--model", "random:llama", "--decode", "1", "--dtype", "float32"]
    served += ["--port", "0", "--kv-blocks", "40", "--workers-on", "127.0.0.1:0"]
    with _command(*served) as control:
        workers: list[subprocess.Popen[str]] = []
        try:
            address = _said(control, r"to join (127\.0\.0\.1:\d+): 1 prefill, 1 decode")
            for role in ("prefill", "decode"):
                joined = ["worker", "--join", address, "--role", role, "--model", "random:llama"]
                workers.append(_command(*joined, "--threads", "1"))
            url = _said(control, r"on (http://127\.0\.0\.1:\d+/v1)")
            body = {"model": "random:llama", "prompt": "a network", "max_tokens": 5}
            answer = urllib.request.urlopen(  # noqa: S310 - ours
                urllib.request.Request(  # noqa: S310
                    f"{url}/completions",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json"},
                )
            )
            assert json.load(answer)["usage"]["completion_tokens"] == 5
            control.send_signal(signal.SIGTERM)
            assert control.wait(PATIENCE_S) == 0
            assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0]
        finally:
            for process in (control, *workers):
                process.kill()
                process.communicate()


@_needs_engine
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--workers-on", "127.0.0.1:0"], "--worker-token: workers join from other"),
        (
            [
                *("serve", "--workers-on", "127.0.0.1:0", "--worker-token", "x" * 16),
                *("--prefill", "1", "--decode", "1", "--kv-transport", "shared"),
            ],
            "--kv-transport shared: workers on other hosts cannot map",
        ),
        (["worker", "--join", "here:1", "--role", "decode"], "--worker-token: no token"),
        (
            ["worker", "--join", "here", "--role", "decode", "--worker-token", "x" * 16],
            "--join: 'here'. Write HOST:PORT",
        ),
        (
            ["worker", "--join", "here:1", "--role", "decode", "--worker-token", "x"],
            "--worker-token: a token of 1 characters",
        ),
    ],
)
def test_refused_workers(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run(capsys, *arguments, "--model", "random:llama")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@_needs_engine
def test_a_worker_that_finds_no_control_says_so() -> None:
    with socket.socket() as nobody:  # bound, not listening
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        joined = ["worker", "--join", address, "--role", "decode", "--model", "random:llama"]
        with _command(*joined, "--worker-token", "x" * 16, "--attempts", "1") as process:
            _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert said == f"kvfabric: cannot join {address}: [Errno 111] Connection refused\n"


@_needs_engine
def test_a_worker_can_be_interrupted() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        joined = ["worker", "--join", address, "--role", "decode", "--model", "random:llama"]
        command = _command(*joined, "--worker-token", "x" * 16)
        with command as process, silent.accept()[0]:  # closed, it would end the worker by itself
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert said.endswith("kvfabric: interrupted\n")


def _command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN, *arguments], stderr=subprocess.PIPE, text=True
    )


def _said(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise AssertionError("".join(lines))


_BROKEN = """
from kvfabric.engine.driver import LiveDriver

def fail(self, request):
    raise AssertionError("the loop is broken")

LiveDriver._arrive = fail
"""


@_needs_engine
def test_a_dead_control_loop_fails_requests_and_ends_without_a_traceback() -> None:
    options = ["serve", "--model", "random:llama", "--dtype", "float32", "--port", "0"]
    command = [sys.executable, "-c", _BROKEN + _MAIN, *options, "--kv-blocks", "40"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = _said(process, r"on (http://127\.0\.0\.1:\d+/v1)")
            body = json.dumps({"model": "random:llama", "prompt": "a", "max_tokens": 5}).encode()
            asked = urllib.request.Request(  # noqa: S310 - ours
                f"{url}/completions", body, {"Content-Type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError, match="503") as refused:
                urllib.request.urlopen(asked)  # noqa: S310
            refused.value.close()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 3
    assert "the loop is broken" in said
    assert "Traceback" not in said


@_needs_engine
def test_step_times_of_the_traffic_are_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    served = ["serve", "--model", "random:llama", "--decode", "1", "--dtype", "float32"]
    served += ["--port", "0", "--kv-blocks", "60", "--threads", "1", "--record", str(path)]
    with _command(*served) as process:
        url = _said(process, r"on (http://127\.0\.0\.1:\d+/v1)")
        for i in range(9):
            body = {"model": "random:llama", "prompt": "a network " * (i + 1), "max_tokens": 5}
            request = urllib.request.Request(  # noqa: S310 - ours
                f"{url}/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            urllib.request.urlopen(request).read()  # noqa: S310 - ours
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert f"steps are in {path}" in said
    times = read_step_times(path)
    assert times.source.text.startswith("kvfabric serve --record: random:llama, float32, 1 + 1")
    assert times.transfers is not None


@_needs_engine
def test_a_record_that_cannot_be_written_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "none" / "steps.json"
    ran = run(capsys, "serve", "--model", "random:llama", "--record", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"kvfabric: --record: cannot write {path}: No such file or directory. Name another file\n"
    )
