"""What is read of a request, and what is refused with the name of its field.

Source: OpenAI API reference, "Create completion" and "Create chat completion".
"""

from typing import Any

import pytest

from kvfabric.engine.server.errors import ApiError
from kvfabric.engine.server.fields import parse_object
from kvfabric.engine.server.openai_types import read_chat, read_completion

_USER = {"role": "user", "content": "hi"}


def _completion(**body: Any) -> Any:
    return read_completion({"model": "m", "prompt": "hi", **body}, "m", 100)


def _chat(**body: Any) -> Any:
    return read_chat({"model": "m", "messages": [_USER], **body}, "m")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ["hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: Any) -> None:
    assert _completion(prompt=prompt).prompts == prompts


def test_defaults_are_those_of_the_api() -> None:
    options = _completion().options
    assert (options.max_tokens, options.num_outputs, options.is_stream) == (16, 1, False)
    assert (options.sampling.temperature, options.sampling.top_p) == (1.0, 1.0)
    assert _chat().options.max_tokens is None


def test_every_option_arrives() -> None:
    sampling = _chat(
        temperature=0,
        top_p=0.5,
        top_k=3,
        seed=7,
        stop="x",
        stop_token_ids=[2],
        ignore_eos=True,
        user="u",
        logprobs=False,
        presence_penalty=0.0,
        tools=[],
    ).options.sampling
    assert sampling[1:] == (0.0, 3, 0.5, 7, (2,), ("x",), True)
    assert _chat(max_tokens=5).options.max_tokens == 5
    assert _chat(max_tokens=5, max_completion_tokens=6).options.max_tokens == 6
    assert _chat(max_tokens=None, stop=None, n=None).options.max_tokens is None


def test_content_may_come_in_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _chat(messages=[{"role": "user", "content": parts}]).messages[0]["content"] == "ab"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [100]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"model": "other"}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 65, "prompt": ["a", "b"]}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"nonsense": 1}, "nonsense"),
        ({"messages": [_USER]}, "messages"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(body: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        _completion(**body)
    assert refused.value.param == param
    assert refused.value.status == (404 if body == {"model": "other"} else 400)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [_USER, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]},
            "messages[0].tool_calls",
        ),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"prompt": "hi"}, "prompt"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_wrong_chats_are_refused_by_the_name_of_their_field(body: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        _chat(**body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        b'{"a": NaN}',
        b"\xff",
        b"[" * 200_000,
        b'{"a":1e',
        b'{"a": "\\ud800"}',
    ],
)
def test_a_broken_body_is_one_message(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_object(body)
    assert refused.value.status == 400
    assert len(refused.value.message) < 300
