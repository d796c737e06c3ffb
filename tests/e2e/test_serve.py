"""``kvfabric serve`` as a user starts it: worker processes, the official client, a signal."""

import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from command import run

_MAIN = "from kvfabric.app.main import main; main()"
_needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs the extra 'engine'"
)


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server of one prefill and one decode worker; give its process and address."""
    options = ["--model", "random:llama", "--prefill", "1", "--decode", "1", "--dtype", "float32"]
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
    assert process.wait(60) == 0


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
