"""A connection's patience: a client that begins no request, or does not end one, is let go."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from qwen35.serve.errors import ApiError

__all__ = ["patient"]

_OWN = 128
"""Descriptors that are left for the device, files and pipes."""


def patient(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol; a connection without a whole request's head for `seconds` is closed.

    So is one whose client has its answer and goes on sending that request's body. uvicorn itself limits only
    the wait between two requests of one connection. Connections beyond the process's limit of descriptors are
    closed at once: with none left nobody could be let in, and asyncio would say so a thousand times a second.

    A client that ends its half of the connection (shutdown(SHUT_WR)) behind its request has gone away, as
    uvicorn has it: HTTP would let it wait, but one that closes the connection sends the same.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(limit - _OWN, 16) if limit != resource.RLIM_INFINITY else 1 << 20

    class Patient(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app_state = {**self.app_state, "abort": transport.abort}  # of every request's scope
            if len(self.connections) > most:
                transport.abort()
            else:
                self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait()

        def send_400_response(self, msg: str) -> None:
            """What is no HTTP; behind an answer that is already given, only its connection ends."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                body = json.dumps(
                    ApiError(400, "this is no HTTP request", code="invalid_http").body()
                ).encode()
                headers = [
                    ("Content-Type", "application/json"),
                    ("Content-Length", str(len(body))),
                    ("Connection", "close"),
                ]
                for event in (
                    h11.Response(status_code=400, headers=headers, reason="Bad Request"),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _wait(self) -> None:
            theirs, ours = self.conn.their_state, self.conn.our_state
            answered = theirs is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE)
            if not (theirs is h11.IDLE or answered) or self.transport.is_closing():
                self._stop()
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self._end)

        def _end(self) -> None:
            """Who still reads an answer has its time afterwards; TCP ends one that reads nothing."""
            if self.transport.get_write_buffer_size():
                self._late = self.loop.call_later(seconds, self._end)
            else:
                self._late = None
                self.transport.abort()

        def _stop(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Patient
