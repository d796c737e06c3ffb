"""Requests of the OpenAI API, checked and in our terms; what is not supported is refused by name.

Sources: the OpenAI API reference ("Create completion", "Create chat completion"); ``top_k``,
``ignore_eos``, ``stop_token_ids`` and ``continuous_usage_stats`` are vLLM's extensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvfabric.engine.executor_port import Sampling
from kvfabric.engine.server.errors import ApiError, unknown_model
from kvfabric.engine.server.fields import Fields, is_token_list

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1_000
MAX_STOP_TOKENS = 128
MAX_OUTPUTS = 128
"""Most outputs of one HTTP request, prompts times ``n``."""

_MAX_SEED = 2**63 - 1
_MAX_TOKENS = 2**31 - 1
_ROLES = ("system", "developer", "user", "assistant", "tool")

_COMMON = frozenset(
    [
        "model",
        "stream",
        "stream_options",
        "n",
        "seed",
        "stop",
        "temperature",
        "top_p",
        "max_tokens",
        "top_k",
        "ignore_eos",
        "stop_token_ids",
    ]
)
_COMPLETION = _COMMON | {"prompt", "echo"}
_CHAT = _COMMON | {"messages", "max_completion_tokens"}

# no influence on the answer of this server, whatever they are
_WITHOUT_EFFECT = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    ]
)
# accepted as long as they ask for nothing
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What completions and chats have in common.

    Attributes:
        num_outputs: per prompt (``n``).
        max_tokens: None for as many as fit.
        sampling: with ``max_tokens`` still to be filled in.
        is_stream: answer token by token.
        include_usage: end the stream with the token counts.
        continuous_usage: put token counts into every chunk.
    """

    num_outputs: int
    max_tokens: int | None
    sampling: Sampling
    is_stream: bool
    include_usage: bool
    continuous_usage: bool


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Prompts, as texts or as token ids; ``echo`` puts the prompt before each output."""

    prompts: list[str] | list[list[int]]
    echo: bool
    options: OutputOptions


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Messages with ``role`` and ``content``."""

    messages: list[dict[str, str]]
    options: OutputOptions


def read_completion(body: Mapping[str, Any], model: str, vocab_size: int) -> CompletionRequest:
    """Check the body of ``/v1/completions``."""
    fields = Fields(body)
    _check_names(fields, _COMPLETION)
    _check_model(fields, model)
    # the API's own default, and vLLM's
    max_tokens = fields.integer("max_tokens", 1, _MAX_TOKENS) or 16
    options = _options(fields, max_tokens)
    prompts = _prompts(fields, vocab_size)
    _check_num_outputs(len(prompts), options.num_outputs)
    return CompletionRequest(prompts, fields.flag("echo"), options)


def read_chat(body: Mapping[str, Any], model: str) -> ChatRequest:
    """Check the body of ``/v1/chat/completions``."""
    fields = Fields(body)
    _check_names(fields, _CHAT)
    _check_model(fields, model)
    max_tokens = fields.integer("max_completion_tokens", 1, _MAX_TOKENS)
    if max_tokens is None:
        max_tokens = fields.integer("max_tokens", 1, _MAX_TOKENS)
    options = _options(fields, max_tokens)
    _check_num_outputs(1, options.num_outputs)
    return ChatRequest(_messages(fields), options)


def _check_names(fields: Fields, known: frozenset[str]) -> None:
    for name in fields.names():
        if name in known or name in _WITHOUT_EFFECT:
            continue
        if name not in _NEUTRAL:
            raise ApiError(f"Unrecognized request argument supplied: {name[:100]}", param=name)
        value = fields.get(name)
        if not any(type(value) is type(v) and value == v for v in _equivalents(name)):
            raise ApiError(
                f"{name} is not supported by this server; leave it out.",
                param=name,
                code="unsupported_parameter",
            )


def _equivalents(name: str) -> list[Any]:
    """Return the neutral values of a field; of a number also as the other type."""
    values = list(_NEUTRAL[name])
    return values + [float(v) for v in values if type(v) is int]


def _check_model(fields: Fields, model: str) -> None:
    asked = fields.text("model")
    if asked is None:
        raise ApiError(f"model is missing; this server has {model!r}.", param="model")
    if asked != model:
        raise unknown_model(asked, model)


def _check_num_outputs(num_prompts: int, num_outputs: int) -> None:
    if num_prompts * num_outputs > MAX_OUTPUTS:
        raise ApiError(
            f"{num_prompts} prompts with n = {num_outputs} are "
            f"{num_prompts * num_outputs} outputs; at most {MAX_OUTPUTS} fit into one request.",
            param="n",
        )


def _options(fields: Fields, max_tokens: int | None) -> OutputOptions:
    stream_options = fields.object("stream_options")
    for name in stream_options.names():
        if name not in {"include_usage", "continuous_usage_stats", "include_obfuscation"}:
            raise ApiError(
                f"Unrecognized request argument supplied: stream_options.{name[:100]}",
                param=f"stream_options.{name}",
            )
    is_stream = fields.flag("stream")
    if stream_options.names() and not is_stream:
        raise ApiError("stream_options needs stream: true.", param="stream_options")
    return OutputOptions(
        num_outputs=fields.integer("n", 1, MAX_OUTPUTS) or 1,
        max_tokens=max_tokens,
        sampling=_sampling(fields),
        is_stream=is_stream,
        include_usage=stream_options.flag("include_usage"),
        continuous_usage=stream_options.flag("continuous_usage_stats"),
    )


def _sampling(fields: Fields) -> Sampling:
    temperature = fields.number("temperature", 0, 2)
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise fields.error("top_p", "above 0; for the likeliest token set temperature to 0")
    stop_token_ids = fields.get("stop_token_ids") or []
    if stop_token_ids != [] and not is_token_list(stop_token_ids):
        raise fields.error("stop_token_ids", "a list of token ids")
    if len(stop_token_ids) > MAX_STOP_TOKENS:
        raise fields.error("stop_token_ids", f"a list of at most {MAX_STOP_TOKENS} token ids")
    return Sampling(
        max_tokens=1,
        temperature=1.0 if temperature is None else temperature,
        top_k=max(0, fields.integer("top_k", -1, _MAX_TOKENS) or 0),  # -1 is vLLM's "all"
        top_p=1.0 if top_p is None else top_p,
        seed=fields.integer("seed", -_MAX_SEED - 1, _MAX_SEED),
        stop_token_ids=tuple(stop_token_ids),
        stop=_stops(fields),
        ignore_eos=fields.flag("ignore_eos"),
    )


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    is_fine = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not is_fine or not all(
        isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops
    ):
        raise fields.error(
            "stop",
            f"a string or a list of at most {MAX_STOPS} strings, "
            f"each of 1 to {MAX_STOP_CHARACTERS} characters",
        )
    return tuple(stops)


def _prompts(fields: Fields, vocab_size: int) -> list[str] | list[list[int]]:
    """Return the prompts: one text, texts, token ids, or lists of token ids."""
    value = fields.get("prompt")
    must_be = "a string, a list of strings, a list of token ids or a list of such lists, none empty"
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) and item for item in value):
            return list[str](value)
        lists = [value] if is_token_list(value) else value
        if all(is_token_list(item) for item in lists):
            if any(not 0 <= token < vocab_size for item in lists for token in item):
                raise ApiError(f"token ids of prompt lie in [0, {vocab_size}).", param="prompt")
            return list[list[int]](lists)
    raise fields.error("prompt", must_be)


def _messages(fields: Fields) -> list[dict[str, str]]:
    value = fields.get("messages")
    if not isinstance(value, list) or not value:
        raise fields.error("messages", "a list of messages, not empty")
    return [_message(item, f"messages[{i}]") for i, item in enumerate(value)]


def _message(item: Any, where: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise ApiError(f'{where} must be an object with "role" and "content".', param=where)
    fields = Fields(item, f"{where}.")
    role = fields.text("role")
    if role not in _ROLES:
        raise fields.error("role", "one of " + ", ".join(_ROLES))
    for name in fields.names():
        if name not in {"role", "content", "name", "refusal"}:
            raise ApiError(f"{where}.{name[:100]} is not supported.", param=f"{where}.{name[:100]}")
    return {"role": role, "content": _content(fields)}


def _content(fields: Fields) -> str:
    """Return the text of a message, whole or in parts."""
    value = fields.get("content")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.error("content", "a string or a list of text parts")
    texts = []
    for part in value:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise fields.error("content", 'a list of parts {"type": "text", "text": ...} only')
        texts.append(part["text"])
    return "".join(texts)
