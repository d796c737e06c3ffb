"""The official ``openai`` client against the server: what it parses is what the API promises."""

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from echo_backend import EOS, EchoBackend
from http_server import Running, serving, wait_until

from kvfabric.protocol.record import Outcome


@pytest.fixture
def backend() -> EchoBackend:
    return EchoBackend()


@pytest.fixture
def server(backend: EchoBackend) -> Iterator[Running]:
    with serving(backend, api_key="secret") as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0) as client:
        yield client


def _complete(client: openai.OpenAI, **options: Any) -> Any:
    return client.completions.create(**({"model": "echo", "prompt": "abc"} | options))


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["echo"]
    assert client.models.retrieve("echo").created == 1_700_000_000
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_completion(client: openai.OpenAI, backend: EchoBackend) -> None:
    answer = _complete(client, max_tokens=7, seed=5, temperature=0.5, top_p=0.9)
    assert (answer.object, answer.model, len(answer.choices)) == ("text_completion", "echo", 1)
    choice = answer.choices[0]
    assert (choice.index, choice.text, choice.finish_reason) == (0, "abcabca", "length")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 7, 10)
    sampling = backend.sampled[0]
    assert (sampling.max_tokens, sampling.seed) == (7, 5)
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)


def test_stop_texts_are_cut_and_end_tokens_have_no_text(client: openai.OpenAI) -> None:
    choice = _complete(client, prompt="abcdef", stop=["de"]).choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "stop")
    choice = _complete(client, prompt=[97, 98, EOS]).choices[0]
    assert (choice.text, choice.finish_reason) == ("ab", "stop")
    extra = {"ignore_eos": True, "stop_token_ids": [98]}
    choice = _complete(client, prompt=[EOS, 97, 98], extra_body=extra).choices[0]
    assert (choice.text, choice.finish_reason) == ("a", "stop")


def test_several_prompts_and_outputs_keep_their_order(
    client: openai.OpenAI, backend: EchoBackend
) -> None:
    answer = _complete(client, prompt=["ab", "cde"], n=2, max_tokens=3, seed=10, echo=True)
    assert [c.text for c in answer.choices] == ["ababa", "ababa", "cdecde", "cdecde"]
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 12)
    assert [sampling.seed for sampling in backend.sampled] == [10, 11, 10, 11]
    answer = _complete(client, prompt=[[97, 98], [99]], max_tokens=2)
    assert [c.text for c in answer.choices] == ["ab", "cc"]


def test_a_streamed_completion_is_the_whole_one(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    prompts = ["a€", "bc"]
    chunks = list(
        _complete(client, prompt=prompts, max_tokens=8, stream=True, stream_options=options)
    )
    texts, reasons = ["", ""], ["", ""]
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        reasons[choice.index] += choice.finish_reason or ""
    assert (texts, reasons) == (["a€a€", "bcbcbcbc"], ["length", "length"])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 4 + 2 + 16
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_can_be_in_every_chunk(client: openai.OpenAI) -> None:
    extra = {"stream_options": {"continuous_usage_stats": True}}
    chunks = list(_complete(client, max_tokens=3, stream=True, extra_body=extra))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 3]


def test_a_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    answer = client.chat.completions.create(model="echo", messages=messages, max_tokens=9)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", "user:hi\nu")
    assert answer.object == "chat.completion"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_a_chat_without_a_limit_may_fill_the_context(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    answer = client.chat.completions.create(model="echo", messages=messages)
    assert answer.usage is not None
    assert answer.usage.total_tokens == 200


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    stream = client.chat.completions.create(
        model="echo", messages=messages, max_tokens=9, n=2, stream=True, stop=["\n"]
    )
    texts = ["", ""]
    reasons = []
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk"
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert (texts, reasons) == (["user:hi"] * 2, ["stop"] * 2)


def test_errors_are_those_of_the_client(client: openai.OpenAI, server: Running) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        _complete(client, model="other")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        _complete(client, prompt="a" * 190, max_tokens=11)
    assert too_long.value.code == "context_length_exceeded"
    assert too_long.value.param == "prompt"
    assert "maximum context length is 200 tokens" in too_long.value.message
    with pytest.raises(openai.BadRequestError, match="logprobs is not supported"):
        _complete(client, logprobs=1)
    messages: Any = [{"role": "assistant", "content": "hi"}]
    with pytest.raises(openai.BadRequestError, match="user first"):
        client.chat.completions.create(model="echo", messages=messages)
    wrong = openai.OpenAI(base_url=server.url + "/v1", api_key="secrex", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.FAILED, "worker_lost"),
        (Outcome.ABORTED, "aborted"),
        (Outcome.REJECTED, "context_length_exceeded"),
    ],
)
def test_a_failure_is_told_before_and_within_a_stream(
    client: openai.OpenAI, backend: EchoBackend, outcome: Outcome, code: str
) -> None:
    backend.failing = outcome
    with pytest.raises(openai.APIStatusError) as failed:
        _complete(client)
    assert failed.value.code == code
    with pytest.raises(openai.APIError) as failed_later:
        list(_complete(client, stream=True))
    assert failed_later.value.code == code


def test_a_client_that_leaves_takes_its_request_with_it(
    client: openai.OpenAI, backend: EchoBackend
) -> None:
    backend.held_after = 1
    stream = _complete(client, prompt=["ab", "cd"], max_tokens=150, stream=True)
    next(iter(stream))
    assert len(backend.running) == 2
    stream.close()
    wait_until(lambda: not backend.running)
    assert sorted(backend.cancelled) == [0, 1]


def test_a_client_that_stops_waiting_takes_its_request_with_it(
    client: openai.OpenAI, backend: EchoBackend
) -> None:
    backend.held_after = 1
    timeout_s = 0.3
    while not backend.sampled:  # a busy machine may not come as far as to begin
        with pytest.raises(openai.APITimeoutError):
            _complete(client, max_tokens=150, timeout=timeout_s)
        timeout_s *= 2
    wait_until(lambda: bool(backend.cancelled) and not backend.running)
    assert sorted(backend.cancelled) == list(range(len(backend.sampled)))


def test_many_clients_at_once(client: openai.OpenAI, backend: EchoBackend) -> None:
    backend.pace_s = 0.001
    prompts = [f"request {i}." for i in range(40)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda prompt: _complete(client, prompt=prompt), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.choices[0].text == (prompt * 2)[:16]
    assert not backend.running
    assert not backend.cancelled
