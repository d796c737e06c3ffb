"""The ASGI application: routes, the key, bounds of what is read, and errors in the API's shape."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvfabric.engine.server.backend import Backend
from kvfabric.engine.server.chat import answer_chat
from kvfabric.engine.server.completions import answer_completion
from kvfabric.engine.server.errors import ApiError, server_error, unknown_model
from kvfabric.engine.server.fields import parse_object
from kvfabric.engine.server.generation import Service
from kvfabric.engine.server.lifecycle import Lifecycle
from kvfabric.engine.server.metrics import CONTENT_TYPE, ServerMetrics
from kvfabric.engine.server.streaming import ClientLeftError

_Handler = Callable[[Request], Awaitable[Response]]
_Answer = Callable[[Service, Request, dict[str, Any]], Awaitable[Response]]

MAX_BODY_BYTES = 4 * 2**20
_CLIENT_LEFT = 499  # nginx's number; nobody reads it


def build_app(
    backend: Backend,
    lifecycle: Lifecycle,
    *,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Starlette:
    """Return the application of a running cluster.

    Args:
        backend: the cluster.
        lifecycle: knows when to take no more requests.
        api_key: asked for on every path below ``/v1``; None asks for none.
        max_body_bytes: most bytes of a request's body.
    """
    metrics = ServerMetrics(backend.model.name, backend.stats)
    service = Service(backend, metrics, lifecycle)

    def route(path: str, handler: _Handler, method: str) -> Route:
        return Route(f"/v1{path}", _with_key(handler, api_key), methods=[method])

    def generation(answer: _Answer) -> _Handler:
        async def handle(request: Request) -> Response:
            lifecycle.admit()
            body = parse_object(await _read(request, max_body_bytes))
            return await answer(service, request, body)

        return handle

    async def metrics_page(_: Request) -> Response:
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    routes = [
        route("/completions", generation(answer_completion), "POST"),
        route("/chat/completions", generation(answer_chat), "POST"),
        route("/models", _models(backend), "GET"),
        route("/models/{name:path}", _model(backend), "GET"),
        Route("/health", _health(service), methods=["GET"]),
        Route("/metrics", metrics_page, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {
        ApiError: _api_error,
        HTTPException: _http_error,
        ClientLeftError: _client_left,
        ClientDisconnect: _client_left,
        Exception: _internal_error,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _with_key(handler: _Handler, api_key: str | None) -> _Handler:
    if api_key is None:
        return handler
    expected = f"Bearer {api_key}".encode()

    async def checked(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, expected):
            raise ApiError("Incorrect API key provided.", status=401, code="invalid_api_key")
        return await handler(request)

    return checked


async def _read(request: Request, max_bytes: int) -> bytes:
    """Return the body. Only JSON is taken: a web page cannot send that to a local server unasked.

    Raises:
        ApiError: it is of another type or too large.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError("The body must have Content-Type: application/json.", status=415)
    parts, num_bytes = [], 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise ApiError(f"The body has more than {max_bytes} bytes.", status=413)
        parts.append(part)
    return b"".join(parts)


def _model_body(backend: Backend) -> dict[str, Any]:
    model = backend.model
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "kvfabric",
        "max_model_len": model.max_model_len,  # as vLLM adds it
    }


def _models(backend: Backend) -> _Handler:
    async def handle(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model_body(backend)]})

    return handle


def _model(backend: Backend) -> _Handler:
    async def handle(request: Request) -> Response:
        name = request.path_params["name"]
        if name != backend.model.name:
            raise unknown_model(name, backend.model.name)
        return JSONResponse(_model_body(backend))

    return handle


def _health(service: Service) -> _Handler:
    async def handle(_: Request) -> Response:
        num_workers = service.backend.stats().num_workers
        is_well = num_workers > 0 and not service.lifecycle.is_draining
        status = "ok" if is_well else "draining" if num_workers else "no worker"
        return JSONResponse({"status": status, "workers": num_workers}, 200 if is_well else 503)

    return handle


async def _api_error(_: Request, error: ApiError) -> Response:
    return error.response()


async def _http_error(request: Request, error: HTTPException) -> Response:
    message = f"{error.detail}: {request.method} {request.url.path}"
    answer = ApiError(message, status=error.status_code).response()
    answer.headers.update(error.headers or {})
    return answer


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_LEFT)


async def _internal_error(_: Request, __: Exception) -> Response:
    return server_error("The server failed to answer; its log says why.").response()
