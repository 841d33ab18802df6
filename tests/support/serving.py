"""A server in a thread of the test's process, on a free port, over any model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from qwen35.api import Qwen35

WAIT = 120


def called(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def scripted(script: Mapping[str, str]) -> Callable[[str], str]:
    """What a mock model answers: by `script`, else an echo; results of tools in one line."""

    def answer(question: str) -> str:
        if "tool_response" in question:
            return "The tools say: " + question.replace("\n", " ").replace("<", "[").replace(">", "]")
        return script.get(question, f"You said: {question}")

    return answer


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def head(length: int, *lines: str, path: str = "/v1/chat/completions") -> bytes:
    """The head of a request whose body of JSON has that length; `lines` are more of it."""
    host = ["Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([f"POST {path} HTTP/1.1", *host, *lines, f"Content-Length: {length}", "", ""]).encode()


def content(answer: Any) -> str:
    """The text of a whole answer or of a stream."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    return "".join(chunk.get("content") or "" for chunk in chunks)


def ended(raw: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    got = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while part := raw.recv(65536):
            got += part
    return got


@dataclass
class Running:
    """`url` is the API's base, `root` the server's; `service` belongs to the server's thread."""

    url: str
    root: str
    service: Any
    server: Any
    port: int
    listening: socket.socket

    @contextmanager
    def resting(self) -> Iterator[None]:
        """The server's thread does nothing meanwhile; what the block sends is there when it looks next."""
        resting, go = threading.Event(), threading.Event()

        def rest() -> None:
            resting.set()
            go.wait(WAIT)

        self.server.loop.call_soon_threadsafe(rest)
        assert resting.wait(WAIT)
        try:
            yield
        finally:
            go.set()


def late_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of every request is over once its answer has begun, on a machine however slow."""
    from qwen35.serve import answering

    late = answering.late

    async def begun(job: Any, seconds: float, limit: float, scope: Any) -> None:
        while job.reply is None or len(job.reply.tokens) < 20:
            await asyncio.sleep(0.01)
        await late(job, 0, limit, scope)

    monkeypatch.setattr(answering, "late", begun)


@contextmanager
def serving(
    model: Qwen35,
    *,
    api_key: str = "",
    origins: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    limits: dict[str, Any] | None = None,
    stalled: float = 60,
    **served: Any,
) -> Iterator[Running]:
    """Serves `model` until the block ends; the model stays open."""
    import uvicorn

    from qwen35.serve.answering import Limits, Service
    from qwen35.serve.app import make_app
    from qwen35.serve.cli import bind
    from qwen35.serve.connection import patient
    from qwen35.serve.options import Served

    bounds = Limits(**{"timeout": 600.0, "body": 32 << 20, "grace": 10.0, "queue": 64} | (limits or {}))
    service = Service(Served(model, (model.info.name, *served.pop("names", ())), **served), bounds)
    app = make_app(service, api_key=api_key, origins=origins, hosts=hosts)
    config = uvicorn.Config(
        app,
        http=patient(service.limits.reading),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=20,
    )

    class Server(uvicorn.Server):
        loop: asyncio.AbstractEventLoop

        async def startup(self, sockets: Any = None) -> None:
            self.loop = asyncio.get_running_loop()
            await super().startup(sockets)

        async def shutdown(self, sockets: Any = None) -> None:
            service.drain()
            await super().shutdown(sockets)

    server = Server(config)
    with bind("127.0.0.1", 0, stalled) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        end = time.monotonic() + WAIT
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end
            time.sleep(0.005)
        root = f"http://127.0.0.1:{port}"
        try:
            yield Running(f"{root}/v1", root, service, server, port, listening)
        finally:
            server.should_exit = True
            thread.join(WAIT)
            assert not thread.is_alive(), "the server did not end"
            service.close()
