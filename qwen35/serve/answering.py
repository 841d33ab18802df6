"""One request: admitted, read, queued, answered in the model's thread, sent whole or streamed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from qwen35.serve.errors import ApiError, api_error
from qwen35.serve.fields import Fields, parse_json
from qwen35.serve.job import Job, Piece
from qwen35.serve.metrics import Metrics
from qwen35.serve.options import Served
from qwen35.serve.queue import FairQueue
from qwen35.serve.store import Store
from qwen35.threads import Threads

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from qwen35.conversation import Reply

__all__ = ["Answering", "Event", "Form", "Limits", "Service", "error_response", "to_json"]

Event = tuple[str, dict[str, Any]]
"""A server-sent event: its name (empty for none) and its data."""

_BODIES = 4
"""Largest bodies that may be inside at once: what is read of one takes several times its size."""
_TELLING = 1.0
"""Seconds that a client may take to read that its time is over."""
_ENDING = ApiError(503, "the server is ending", code="shutdown")
_GONE = ApiError(499, "the client went away", code="cancelled")


def to_json(value: Any) -> bytes:
    """JSON as UTF-8; half characters, which UTF-8 has not, become question marks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error_response(error: ApiError) -> Response:
    """An error as a whole response."""
    return JSONResponse(error.body(), error.status, error.headers)


class Form(Protocol):
    """One answer in the form of one endpoint. Made of the body, whose faults raise ApiError."""

    stream: bool

    def begin(self, cancelled: Callable[[], bool]) -> Reply:
        """The reply, made in the model's thread."""

    def opening(self) -> list[Event]:
        """What a stream begins with."""

    def piece(self, piece: Piece, reply: Reply) -> list[Event]:
        """What a stream says of a piece."""

    def enough(self, reply: Reply) -> bool:
        """Whether the answer needs no further token; asked in the model's thread."""

    def closing(self, reply: Reply, timings: dict[str, Any]) -> list[Event]:
        """What a stream ends with."""

    def failing(self, error: ApiError) -> Event:
        """What a stream ends with that was cut."""

    def whole(self, reply: Reply, timings: dict[str, Any]) -> dict[str, Any]:
        """The answer that is not streamed."""

    last: bytes
    """What follows a stream's last event."""


@dataclass
class Limits:
    """`timeout` seconds of a request with its wait, `body` bytes, `grace` seconds that a running answer has
    once the server is told to end, `queue` requests that may wait, `reading` seconds that a request's head or
    body may take."""

    timeout: float
    body: int
    grace: float
    queue: int
    reading: float = 60.0
    stored: int = 64 << 20
    """Bytes of responses that are kept for requests which go on from them."""


@dataclass
class Service:
    """What the requests of one server share. Belongs to one event loop."""

    served: Served
    limits: Limits
    log: Callable[[str], None] | None = None
    queue: FairQueue = field(init=False)
    store: Store = field(init=False)
    metrics: Metrics = field(init=False)
    thread: Threads = field(init=False)

    def __post_init__(self) -> None:
        self.queue = FairQueue(self.limits.queue, _BODIES * self.limits.body)
        self.store = Store(self.limits.stored)
        self.metrics = Metrics(self.served.model, self.queue)
        self.thread = Threads(1, "answers")
        self.jobs: set[Job] = set()
        self.device = self.served.model.device
        self.began = int(time())

    def drain(self) -> None:
        """Takes no more requests, ends the waiting ones now and the running one after `grace` seconds."""
        self.queue.close(_ENDING)
        asyncio.get_running_loop().call_later(self.limits.grace, self.cut)

    def cut(self) -> None:
        """Ends the running answers and the waiting ones now."""
        for job in list(self.jobs):
            job.cancel(_ENDING)

    def close(self) -> None:
        """Waits for the model's thread."""
        self.thread.shutdown()


class Answering:
    """The endpoint (ASGI) of one form: `read(body, service)` makes it."""

    def __init__(self, service: Service, read: Callable[[Fields, Served], Form]) -> None:
        self.service, self.read = service, read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request; never raises for what a client or the engine did."""
        request, began = Request(scope, receive), monotonic()
        status, sent = 200, _Sent(send)
        try:
            queue = self.service.queue
            queue.check()
            with contextlib.ExitStack() as held:
                data = await _body(request, self.service.limits, held.enter_context(queue.body()))
                place = held.enter_context(queue.enter(request.client.host if request.client else ""))
                form = self.read(parse_json(data), self.service.served)
                job = Job(form.begin, form.enough, place.give_up)
                with self._watched(job, request, began, sent):
                    try:
                        await place.turn()
                        job.start(self.service.thread, place.done)
                        await self._send(form, job, place.waited, scope, sent)
                    finally:
                        if job.why is not None:
                            self.service.metrics.cancelled.labels(job.why.code).inc()
                        job.cancel(_GONE)
                        await job.over()
                        self._count(job, place.waited)
        except asyncio.CancelledError:  # by the server that ends, whose loop waits for this
            status = _ENDING.status
            with contextlib.suppress(asyncio.TimeoutError):
                if not sent.begun:
                    await asyncio.wait_for(error_response(_ENDING)(scope, receive, sent), _TELLING)
                    return
            _abort(scope)
            await asyncio.sleep(0)  # in which the protocol hears of it
        except Exception as caught:
            error = api_error(caught)
            status = error.status
            if status == 500 and self.service.log is not None:
                fault = type(caught.__cause__ or caught).__name__  # Job raises an ApiError from it
                self.service.log(f"{scope['path']}: {fault}, a fault of this program")
            if not sent.begun:
                await error_response(error)(scope, receive, sent)
        finally:
            self._told(scope["path"], status, monotonic() - began)

    async def _send(self, form: Form, job: Job, waited: float, scope: Scope, send: Send) -> None:
        pieces = job.pieces()
        first = await anext(pieces, None)  # until here a failure is a status of its own
        if form.stream:
            failed: list[ApiError] = []
            events = self._events(form, job, first, pieces, waited, failed)
            stream = StreamingResponse(events, media_type="text/event-stream", headers=_STREAM)
            try:
                await stream(scope, _never, send)
            finally:
                await events.aclose()
            if failed:
                raise failed[0]
            return
        reply = job.reply
        assert reply is not None
        async for _ in pieces:
            pass
        await Response(to_json(form.whole(reply, _timings(reply, waited))), media_type="application/json")(
            scope, _never, send
        )

    async def _events(
        self,
        form: Form,
        job: Job,
        first: Piece | None,
        pieces: AsyncIterator[Piece],
        waited: float,
        failed: list[ApiError],
    ) -> AsyncGenerator[bytes, None]:
        reply = job.reply
        assert reply is not None
        for event in form.opening():
            yield _event(event)
        try:
            if first is not None:
                for event in form.piece(first, reply):
                    yield _event(event)
            async for piece in pieces:
                for event in form.piece(piece, reply):
                    yield _event(event)
            for event in form.closing(reply, _timings(reply, waited)):
                yield _event(event)
        except ApiError as error:
            failed.append(error)
            yield _event(form.failing(error))
            return
        if form.last:
            yield form.last

    @contextlib.contextmanager
    def _watched(self, job: Job, request: Request, began: float, sent: _Sent) -> Iterator[None]:
        """Cancels the job when its client goes away or its time is over."""
        loop, limit = asyncio.get_running_loop(), self.service.limits.timeout
        timer = loop.create_task(late(job, max(began + limit - monotonic(), 0), limit, request.scope))
        watching = loop.create_task(_gone(request, job, sent))
        self.service.jobs.add(job)
        try:
            yield
        finally:
            self.service.jobs.discard(job)
            timer.cancel()
            watching.cancel()

    def _count(self, job: Job, waited: float) -> None:
        metrics = self.service.metrics
        if job.reply is not None:
            metrics.answered(job.reply.stats, waited)
        device = self.service.served.model.device
        if device is not self.service.device:  # the engine opened a lost one again
            self.service.device = device
            metrics.recoveries.inc()

    def _told(self, path: str, status: int, seconds: float) -> None:
        metrics = self.service.metrics
        metrics.requests.labels(path, str(status)).inc()
        metrics.took.observe(seconds)
        if self.service.log is not None:
            self.service.log(f"{path} {status} {seconds:.2f} s")


class _Sent:
    """Passes on what is sent, and knows whether anything was, and whether all."""

    def __init__(self, send: Send) -> None:
        self._send, self.begun, self.whole = send, False, False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.whole = True
        await self._send(message)


_STREAM = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def _never() -> Message:
    """In place of `receive`: a task of the request's own waits for the client's end."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future nobody sets")


async def _gone(request: Request, job: Job, sent: _Sent) -> None:
    while (await request.receive())["type"] != "http.disconnect":  # it follows a whole answer, too
        pass
    if not sent.whole:
        job.cancel(_GONE)


async def _body(request: Request, limits: Limits, take: Callable[[int], None]) -> bytes:
    """The body. Raises ApiError: 413 beyond the limit, 408 when it does not come, 415 for another type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body must be sent as Content-Type: application/json")
    too_large = ApiError(413, f"the body is larger than {limits.body:,} bytes", code="body_too_large")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body:
        raise too_large

    async def read() -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limits.body:
                raise too_large
            take(len(part))
            parts.append(part)
        return b"".join(parts)

    try:
        return await asyncio.wait_for(read(), limits.reading)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body did not come within {limits.reading:g} seconds") from None
    except ClientDisconnect:
        raise _GONE from None


async def late(job: Job, seconds: float, limit: float, scope: Scope) -> None:
    """Ends the job in `seconds`, and soon after it the connection of a client that reads too slowly."""
    await asyncio.sleep(seconds)
    job.cancel(ApiError(504, f"the answer took longer than {limit:g} seconds", code="timeout"))
    await job.over()
    await asyncio.sleep(_TELLING)
    _abort(scope)


def _abort(scope: Scope) -> None:
    """Ends a request's connection, what its client did not read yet dropped (connection.patient)."""
    if (abort := scope.get("state", {}).get("abort")) is not None:
        abort()


def _event(event: Event) -> bytes:
    name, data = event
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + to_json(data) + b"\n\n"


def _timings(reply: Reply, waited: float) -> dict[str, Any]:
    """The engine's times by the names that llama.cpp's server gives them (`timings` in its README)."""
    stats, drafted = reply.stats, reply.stats.draft_passes > 0
    return {
        "prompt_n": stats.prompt_tokens - stats.cached_tokens,
        "cache_n": stats.cached_tokens,
        "prompt_ms": round(stats.prefill_s * 1e3, 3),
        "prompt_per_second": round(stats.prompt_tokens_per_s, 3),
        "predicted_n": stats.new_tokens,
        "predicted_ms": round(stats.decode_s * 1e3, 3),
        "predicted_per_second": round(stats.tokens_per_s, 3),
        "first_token_ms": round(stats.first_token_s * 1e3, 3),
        "vision_ms": round(stats.vision_s * 1e3, 3),
        "queue_ms": round(waited * 1e3, 3),
        "finish": stats.finish,
        **({"draft_n": stats.drafted_tokens, "draft_n_accepted": stats.accepted_tokens} if drafted else {}),
    }


def new_id(kind: str) -> str:
    """An identifier in OpenAI's form."""
    return f"{kind}{uuid.uuid4().hex}"
