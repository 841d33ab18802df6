"""A connection's patience: a client that begins no request, or does not end its head, is let go."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["patient"]


def patient(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol; a connection without a whole request's head for `seconds` is closed.

    uvicorn itself limits only the wait between two requests of one connection.
    """

    class Patient(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self.transport.abort)

        def _stop(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Patient
