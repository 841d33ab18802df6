"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}` and a status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amdxdna.errors import DeviceLost, XdnaError
from qwen35.errors import (
    Closed,
    ImageError,
    PromptTooLong,
    TemplateError,
    TokenizerError,
    UsageError,
    explain,
    one_line,
)

__all__ = ["ApiError", "api_error"]

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """What a client is told instead of an answer, or in the middle of a streamed one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.message, self.param, self.code = status, one_line(message), param, code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's `type` of an error with this status."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def __str__(self) -> str:
        return self.message


def api_error(error: BaseException) -> ApiError:
    """What a client is told of any exception of the engine or the binding."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLong):
        return ApiError(400, str(error), param="messages", code="context_length_exceeded")
    if isinstance(error, Closed):
        return ApiError(503, "the model is closed", code="closed")
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, ImageError):
        return ApiError(400, str(error), code="invalid_image")
    if isinstance(error, (TemplateError, TokenizerError)):
        return ApiError(400, str(error), param="messages")
    if isinstance(error, DeviceLost):
        return ApiError(
            503,
            f"the device was lost; the next request opens it again: {explain(error)}",
            code="device_lost",
            headers={"Retry-After": "1"},
        )
    if isinstance(error, XdnaError):
        return ApiError(503, explain(error), code="device_error")
    if isinstance(error, MemoryError):
        return ApiError(503, explain(error), code="out_of_memory")
    return ApiError(500, explain(error))


def _usage(error: UsageError) -> ApiError:
    """The engine names command-line options; a client knows them as fields."""
    param = error.where[2:].replace("-", "_") if error.where.startswith("--") else None
    where = f" ({error.where})" if error.where and param is None else ""
    remedy = f": {error.remedy}" if error.remedy else ""
    return ApiError(400, f"{error.what}{where}{remedy}", param=param)
