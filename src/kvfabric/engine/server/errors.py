"""Errors as the OpenAI API writes them.

Source: "Error codes" of the OpenAI API reference; the body is ``{"error": {"message", "type",
"param", "code"}}``, which is what the official client turns into its exceptions.
"""

from typing import Any

from starlette.responses import JSONResponse


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Describe the error.

        Args:
            message: what was read, and what to write instead.
            status: of HTTP.
            kind: the API's ``type``.
            param: field of the request it is about.
            code: for programs, such as ``context_length_exceeded``.
            retry_after_s: when the same request may be taken.
        """
        super().__init__(message)
        self.message, self.status = message, status
        self.kind, self.param, self.code = kind, param, code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """Return the body."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Return the answer."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        return JSONResponse(self.body(), self.status, headers)


def context_too_long(
    num_prompt_tokens: int, max_tokens: int | None, max_model_len: int, param: str
) -> ApiError:
    """Return the error of a request that does not fit into the model's context."""
    asked = f"{num_prompt_tokens} in the prompt"
    if max_tokens is not None:
        asked = f"{num_prompt_tokens + max_tokens} ({asked}, {max_tokens} in the completion)"
    return ApiError(
        f"This model's maximum context length is {max_model_len} tokens, prompt and completion "
        f"together; you asked for {asked}. Shorten the prompt or lower max_tokens.",
        param=param,
        code="context_length_exceeded",
    )


def token_outside(token_id: int, vocab_size: int, param: str) -> ApiError:
    """Return the error of a prompt with a token that the model does not have."""
    return ApiError(
        f"{param} has token id {token_id}; those of this model lie in [0, {vocab_size}).",
        param=param,
    )


def unknown_model(asked: str, served: str) -> ApiError:
    """Return the error of a request for another model."""
    return ApiError(
        f"The model {asked[:100]!r} does not exist; this server has {served!r}.",
        status=404,
        param="model",
        code="model_not_found",
    )


def server_error(message: str, *, status: int = 500, code: str | None = None) -> ApiError:
    """Return an error that is not the client's fault."""
    return ApiError(message, status=status, kind="server_error", code=code)


def too_many(num_open: int) -> ApiError:
    """Return the error of a request that would wait behind too many others."""
    return ApiError(
        f"{num_open} outputs run or wait already; try again later.",
        status=503,
        kind="server_error",
        code="overloaded",
        retry_after_s=1,
    )
