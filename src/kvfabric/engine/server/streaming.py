"""Answers token by token: server-sent events as the OpenAI API writes them, and a client's leaving.

Source: "Streaming" of the OpenAI API reference; a line ``data: JSON`` and an empty one per event,
``data: [DONE]`` at the end. An error after the first byte is an event with the error's body, as in
vLLM, and nothing follows it but ``[DONE]``.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from kvfabric.engine.server.errors import ApiError

_T = TypeVar("_T")

DONE = "data: [DONE]\n\n"


class ClientLeftError(Exception):
    """The client closed its connection; nobody is left to answer."""


def event(body: Mapping[str, Any]) -> str:
    """Return one event, in ASCII: some clients take U+2028 and its like for the end of a line."""
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"


class EventStream(StreamingResponse):
    """A stream of events that is closed, with all that feeds it, once the client has left."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        """Answer with events; an ``ApiError`` among them ends the stream."""
        self._events = events
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_with_end(events), headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with contextlib.aclosing(self._events):
            await super().__call__(scope, receive, send)


async def _with_end(events: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    try:
        async for text in events:
            yield text
    except ApiError as error:
        yield event(error.body())
    yield DONE


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return what ``work`` gives; cancel it if the client leaves before.

    Raises:
        ClientLeftError: it has left.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeftError
    finally:
        for future in (task, watch):
            future.cancel()
            with contextlib.suppress(asyncio.CancelledError, ApiError):
                await future


async def _left(request: Request) -> None:
    """Return once the client has left; the body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
