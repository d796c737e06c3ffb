"""The server below the client: bodies, bounds, health, metrics, and a graceful end."""

import json
import threading
from typing import Any

import httpx
import pytest
from echo_backend import ByteCodec, EchoBackend
from http_server import PATIENCE_S, Running, serving, wait_until
from prometheus_client.parser import text_string_to_metric_families

from kvfabric.engine.server import lifecycle

_BODY = {"model": "echo", "prompt": "abc"}


def _post(server: Running, content: bytes, content_type: str = "application/json") -> Any:
    headers = {"Content-Type": content_type}
    url = f"{server.url}/v1/completions"
    return httpx.post(url, content=content, headers=headers, timeout=PATIENCE_S)


def test_refusals_have_the_error_body_of_the_api() -> None:
    with serving(EchoBackend(), max_body_bytes=1000) as server:
        for answer, status in (
            (_post(server, b"{"), 400),
            (_post(server, b"[1]"), 400),
            (_post(server, b'{"model": "echo", "prompt": "' + b"a" * 1000 + b'"}'), 413),
            (_post(server, json.dumps(_BODY).encode(), "text/plain"), 415),
            (server.get("/v1/completions"), 405),
            (server.get("/v2"), 404),
            (server.get("/v1/models/other"), 404),
        ):
            assert answer.status_code == status
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"


class ForeignCodec(ByteCodec):
    """A tokenizer of another model, with more tokens."""

    def encode(self, text: str) -> list[int]:
        return [300] * len(text)


def test_a_token_that_the_model_does_not_have_reaches_no_worker() -> None:
    backend = EchoBackend(codec=ForeignCodec())
    with serving(backend) as server:
        answer = _post(server, json.dumps(_BODY).encode())
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert message == "prompt has token id 300; those of this model lie in [0, 257)."
        assert backend.sampled == []


def test_only_the_api_asks_for_the_key() -> None:
    with serving(EchoBackend(), api_key="schlüssel") as server:
        refused = server.get("/v1/models")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.json()["error"]["code"] == "invalid_api_key"
        headers = {b"Authorization": "Bearer schlüssel".encode()}
        url = server.url + "/v1/models"
        assert httpx.get(url, headers=headers, timeout=PATIENCE_S).status_code == 200
        assert server.get("/health").status_code == 200
        assert server.get("/metrics").status_code == 200


def test_a_stream_is_events_and_ends_with_done() -> None:
    with serving(EchoBackend()) as server:
        answer = _post(server, json.dumps(_BODY | {"stream": True, "max_tokens": 2}).encode())
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, done, empty = answer.text.split("\n\n")
        assert (done, empty) == ("data: [DONE]", "")
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
        assert [choice["text"] for choice in choices] == ["a", "b", ""]
        assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]


def test_no_text_of_a_model_can_break_a_line_of_a_stream() -> None:
    body = _BODY | {"prompt": "\u2028\x85\r\n\x0b\x1e", "stream": True, "max_tokens": 9}
    with serving(EchoBackend()) as server:
        events = _post(server, json.dumps(body).encode()).text.splitlines()
    choices = [json.loads(line[6:])["choices"][0] for line in events if line.startswith("data: {")]
    assert "".join(choice["text"] for choice in choices) == body["prompt"]


def test_metrics_count_what_happened() -> None:
    with serving(EchoBackend()) as server:
        for _ in range(3):
            _post(server, json.dumps(_BODY | {"max_tokens": 5}).encode())
        text = server.get("/metrics").text
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["model_name"] == "echo"
    }
    expected = {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0,
        "num_workers": 1,
        "prompt_tokens_total": 9,
        "generation_tokens_total": 15,
        "prefix_cache_queries_total": 9,
        "prefix_cache_hits_total": 0,
        "kv_transfer_bytes_total": 3000,
        "kv_transfer_time_seconds_count": 3,
        "request_success_total": 3,
        "time_to_first_token_seconds_count": 3,
        "inter_token_latency_seconds_count": 12,
        "request_time_per_output_token_seconds_count": 3,
        "e2e_request_latency_seconds_count": 3,
    }
    assert {name: samples[f"kvfabric:{name}"] for name in expected} == expected
    assert samples["kvfabric:kv_transfer_time_seconds_sum"] == pytest.approx(3 * 0.002)


def _in_background(server: Running, body: dict[str, Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    content = json.dumps(_BODY | body).encode()
    thread = threading.Thread(target=lambda: answers.append(_post(server, content)))
    thread.start()
    return thread, answers


def test_a_graceful_end_finishes_what_runs_and_takes_no_more() -> None:
    backend = EchoBackend(held_after=1)
    with serving(backend, deadline_s=60) as server:
        thread, answers = _in_background(server, {"max_tokens": 20})
        wait_until(lambda: bool(backend.running))
        server.stop()
        wait_until(lambda: server.server._lifecycle.is_draining)
        backend.released.set()
        thread.join()
        assert answers[0].json()["usage"]["completion_tokens"] == 20
        server.thread.join(PATIENCE_S)
        with pytest.raises(httpx.ConnectError):
            server.get("/health")


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_does_not_finish_in_time_is_told_so(
    is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # for error bodies to reach a client; the server's own two seconds are few on a busy machine
    monkeypatch.setattr(lifecycle, "_LAST_WORDS_S", 60)
    backend = EchoBackend(held_after=1)
    with serving(backend, deadline_s=0.2) as server:
        thread, answers = _in_background(server, {"max_tokens": 190, "stream": is_stream})
        wait_until(lambda: bool(backend.running))
        server.stop()
        thread.join()
        assert '"code":"shutting_down"' in answers[0].text
        assert answers[0].status_code == (200 if is_stream else 503)
        server.thread.join(PATIENCE_S)
    assert backend.cancelled == [0]


def test_more_than_may_wait_are_sent_away_until_there_is_room() -> None:
    backend = EchoBackend(held_after=1)
    body = _BODY | {"max_tokens": 150, "n": 3}
    large = json.dumps(_BODY | {"max_tokens": 1, "n": 9}).encode()
    with serving(backend, max_open=4) as server:
        slow = threading.Thread(target=_post, args=(server, json.dumps(body).encode()))
        slow.start()
        wait_until(lambda: len(backend.running) == 3)
        refused = _post(server, json.dumps(_BODY | {"n": 2}).encode())
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "overloaded"
        assert _post(server, large).status_code == 503
        assert _post(server, json.dumps(_BODY | {"max_tokens": 1}).encode()).status_code == 200
        backend.released.set()
        slow.join()
        assert _post(server, large).status_code == 200  # more than may wait, but alone
