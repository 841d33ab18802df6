"""Routes, who may ask, and errors in OpenAI's form."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qwen35.serve.answering import Answering, Service, error_response
from qwen35.serve.chat import Chat
from qwen35.serve.completions import Completion
from qwen35.serve.errors import ApiError
from qwen35.serve.hosts import Hosts
from qwen35.serve.metrics import CONTENT_TYPE
from qwen35.serve.responses import Answer, stored_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["make_app"]


def make_app(
    service: Service, *, api_key: str = "", origins: Sequence[str] = (), hosts: Sequence[str] = ()
) -> Starlette:
    """The ASGI application.

    With `api_key` all but /health asks for it (`Authorization: Bearer KEY`). Pages of `origins` may ask from
    a browser (* for all); a request that names another origin is refused, so that no web page can use a
    server on its visitor's machine. So is one that calls the server by another name than an address,
    localhost or one of `hosts` (* for all).
    """
    middleware = [Middleware(Guard, api_key=api_key, origins=origins, hosts=Hosts(hosts))]
    if origins:
        middleware.insert(
            0,
            Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]),
        )
    store = service.store
    routes = [
        Route("/v1/chat/completions", Answering(service, Chat), methods=["POST"]),
        Route("/v1/completions", Answering(service, Completion), methods=["POST"]),
        Route("/v1/responses", Answering(service, partial(Answer, store=store)), methods=["POST"]),
        Route("/v1/responses/{name}", stored_response(store), methods=["GET", "DELETE"]),
        Route("/v1/models", _models),
        Route("/v1/models/{name:path}", _model),
        Route("/health", _health),
        Route("/metrics", _metrics),
    ]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _http_error})
    app.state.service = service
    return app


class Guard:
    """Refuses requests without the key, and those that a page of another origin sends.

    Looks at headers and at the path as it came: of a URL that is put together from both, a Host header could
    choose the path.
    """

    def __init__(self, app: ASGIApp, api_key: str, origins: Sequence[str], hosts: Hosts) -> None:
        self.app, self.origins, self.hosts = app, frozenset(origins), hosts
        self.digest = _digest(api_key.encode()) if api_key else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it with 401 or 403."""
        if scope["type"] == "http" and (error := self._error(Request(scope))) is not None:
            await error_response(error)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _error(self, request: Request) -> ApiError | None:
        host = request.headers.get("host")
        if not self.hosts.allow(host):
            return ApiError(
                403,
                f"this server is not known as {host!r:.200}: start it with --allow-host NAME",
                code="host_not_allowed",
            )
        origin = request.headers.get("origin")
        if origin is not None and not {"*", origin} & self.origins:
            return ApiError(
                403,
                f"pages of {origin!r:.200} may not use this server: start it with --cors",
                code="origin_not_allowed",
            )
        if self.digest and request.scope["path"] != "/health":
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            # Both sides have the same length, and the time does not tell how much of a key was right.
            right = hmac.compare_digest(_digest(key.strip().encode()), self.digest)
            if scheme.lower() != "bearer" or not right:
                return ApiError(
                    401,
                    "give the server's key: Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router says: no such path, no such method."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    what = {404: f"there is nothing at {path!r:.200}", 405: f"{request.method} is not for {path!r:.200}"}
    text = what.get(error.status_code, error.detail)
    return error_response(ApiError(error.status_code, text, headers=error.headers))


def _card(service: Service, name: str) -> dict[str, Any]:
    info, model = service.served.model.info, service.served.model.model
    return {
        "id": name,
        "object": "model",
        "created": service.began,
        "owned_by": "qwen35",
        "max_model_len": model.max_ctx,
        "vision": info.vision,
        "device": info.device,
        "emulated": info.emulated,
    }


async def _models(request: Request) -> Response:
    service: Service = request.app.state.service
    cards = [_card(service, name) for name in service.served.names]
    return JSONResponse({"object": "list", "data": cards})


async def _model(request: Request) -> Response:
    service: Service = request.app.state.service
    name = request.path_params["name"]
    if name not in service.served.names:
        error = ApiError(404, f"there is no model {name!r:.100}", param="model", code="model_not_found")
        return error_response(error)
    return JSONResponse(_card(service, name))


async def _health(request: Request) -> Response:
    service: Service = request.app.state.service
    queue = service.queue
    return JSONResponse(
        {"status": "ok", "model": service.served.names[0], "running": queue.running, "waiting": queue.waiting}
    )


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})
