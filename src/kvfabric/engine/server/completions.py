"""``/v1/completions``: text that goes on from prompts."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvfabric.engine.executor_port import FinishReason
from kvfabric.engine.server.errors import ApiError
from kvfabric.engine.server.generation import Envelope, Service
from kvfabric.engine.server.openai_types import CompletionRequest, read_completion
from kvfabric.engine.server.outputs import RequestOutputs
from kvfabric.engine.server.streaming import EventStream, event, while_connected


async def answer_completion(service: Service, request: Request, body: dict[str, Any]) -> Response:
    """Answer a request whose body has been read."""
    model = service.backend.model
    asked = read_completion(body, model.name, model.vocab_size)
    prompts, echoes = await asyncio.to_thread(_encode, service, asked)
    outputs = service.outputs(prompts, asked.options, "prompt")
    envelope = Envelope("text_completion", model.name, "cmpl")
    if asked.options.is_stream:
        return EventStream(_events(service, asked, outputs, envelope, echoes))
    work = _whole(service, asked, outputs, envelope, echoes)
    return JSONResponse(await while_connected(request, work))


def _encode(service: Service, asked: CompletionRequest) -> tuple[list[list[int]], list[str]]:
    """Return the token ids of the prompts, and what is put before each one's outputs."""
    codec = service.backend.codec
    prompts, echoes = [], []
    for prompt in asked.prompts:
        token_ids = codec.encode(prompt) if isinstance(prompt, str) else prompt
        if not token_ids:
            raise ApiError("prompt has no token.", param="prompt")
        prompts.append(token_ids)
        text = prompt if isinstance(prompt, str) else codec.decode(prompt) if asked.echo else ""
        echoes.append(text if asked.echo else "")
    return prompts, echoes


def _choice(index: int, text: str, finish: FinishReason | None) -> dict[str, Any]:
    reason = finish and finish.value
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


async def _whole(
    service: Service,
    asked: CompletionRequest,
    outputs: RequestOutputs,
    envelope: Envelope,
    echoes: list[str],
) -> dict[str, Any]:
    num_outputs = asked.options.num_outputs
    texts = [[echo] for echo in echoes for _ in range(num_outputs)]
    reasons: list[FinishReason | None] = [None] * len(texts)
    with service.lifecycle.running(outputs):
        async with outputs:
            async for piece in outputs.pieces():
                texts[piece.output_idx].append(piece.text)
                reasons[piece.output_idx] = piece.finish
    choices = [
        _choice(i, "".join(parts), reason)
        for i, (parts, reason) in enumerate(zip(texts, reasons, strict=True))
    ]
    return envelope.body(choices=choices, usage=outputs.usage.body())


async def _events(
    service: Service,
    asked: CompletionRequest,
    outputs: RequestOutputs,
    envelope: Envelope,
    echoes: list[str],
) -> AsyncGenerator[str, None]:
    options = asked.options
    with service.lifecycle.running(outputs):
        async with outputs:
            if asked.echo:
                for i, echo in enumerate(echoes):
                    for j in range(options.num_outputs):
                        choice = _choice(i * options.num_outputs + j, echo, None)
                        usage = outputs.chunk_usage(options)
                        yield event(envelope.body(choices=[choice], **usage))
            async for piece in outputs.pieces():
                if piece.text or piece.finish:
                    choice = _choice(*piece)
                    usage = outputs.chunk_usage(options)
                    yield event(envelope.body(choices=[choice], **usage))
    if options.include_usage:
        yield event(envelope.body(choices=[], usage=outputs.usage.body()))
