"""``/v1/chat/completions``: the next message of a conversation."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvfabric.engine.executor_port import FinishReason
from kvfabric.engine.server.errors import ApiError
from kvfabric.engine.server.generation import Envelope, Service
from kvfabric.engine.server.openai_types import ChatRequest, OutputOptions, read_chat
from kvfabric.engine.server.outputs import RequestOutputs
from kvfabric.engine.server.streaming import EventStream, event, while_connected
from kvfabric.errors import ConfigError


async def answer_chat(service: Service, request: Request, body: dict[str, Any]) -> Response:
    """Answer a request whose body has been read."""
    model = service.backend.model
    asked = read_chat(body, model.name)
    prompt = await asyncio.to_thread(_encode, service, asked)
    outputs = service.outputs([prompt], asked.options, "messages")
    if asked.options.is_stream:
        envelope = Envelope("chat.completion.chunk", model.name, "chatcmpl")
        return EventStream(_events(service, asked.options, outputs, envelope))
    envelope = Envelope("chat.completion", model.name, "chatcmpl")
    work = _whole(service, asked.options, outputs, envelope)
    return JSONResponse(await while_connected(request, work))


def _encode(service: Service, asked: ChatRequest) -> list[int]:
    try:
        return service.backend.codec.encode_chat(asked.messages)
    except ConfigError as error:
        raise ApiError(str(error), param="messages") from None


async def _whole(
    service: Service, options: OutputOptions, outputs: RequestOutputs, envelope: Envelope
) -> dict[str, Any]:
    texts: list[list[str]] = [[] for _ in range(options.num_outputs)]
    reasons: list[FinishReason | None] = [None] * len(texts)
    with service.lifecycle.running(outputs):
        async with outputs:
            async for piece in outputs.pieces():
                texts[piece.output_idx].append(piece.text)
                reasons[piece.output_idx] = piece.finish
    choices = [
        {
            "index": i,
            "message": {"role": "assistant", "content": "".join(parts), "refusal": None},
            "logprobs": None,
            "finish_reason": reason and reason.value,
        }
        for i, (parts, reason) in enumerate(zip(texts, reasons, strict=True))
    ]
    return envelope.body(choices=choices, usage=outputs.usage.body())


def _choice(index: int, delta: dict[str, str], finish: FinishReason | None) -> dict[str, Any]:
    reason = finish and finish.value
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


async def _events(
    service: Service, options: OutputOptions, outputs: RequestOutputs, envelope: Envelope
) -> AsyncGenerator[str, None]:
    with service.lifecycle.running(outputs):
        async with outputs:
            for index in range(options.num_outputs):
                choice = _choice(index, {"role": "assistant", "content": ""}, None)
                yield event(envelope.body(choices=[choice], **outputs.chunk_usage(options)))
            async for piece in outputs.pieces():
                if piece.text or piece.finish:
                    delta = {"content": piece.text} if piece.text else {}
                    choice = _choice(piece.output_idx, delta, piece.finish)
                    yield event(envelope.body(choices=[choice], **outputs.chunk_usage(options)))
    if options.include_usage:
        yield event(envelope.body(choices=[], usage=outputs.usage.body()))
