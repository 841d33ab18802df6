"""An answer that is made in the model's thread and read on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from qwen35.serve.errors import ApiError, api_error

if TYPE_CHECKING:
    from qwen35.conversation import Reply

__all__ = ["Job", "Piece"]

Piece = tuple[str, str, int]
"""reasoning or text, what was said, and how many tokens the answer has so far."""


class Job:
    """Belongs to one event loop; only `_run` is the other thread's.

    `make(cancelled)` gives the reply, and asks `cancelled()` between tokens and passes of the prompt. The
    answer ends at the first piece after which `enough(reply)` holds. The model's thread calls both.
    `on_cancel(why)` is called when it is cancelled.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], bool]], Reply],
        enough: Callable[[Reply], bool],
        on_cancel: Callable[[ApiError], None],
    ) -> None:
        self._make, self._enough, self._on_cancel = make, enough, on_cancel
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._thread: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.why: ApiError | None = None
        """Why it was cancelled."""
        self.reply: Reply | None = None

    def start(self, executor: Executor, over: Callable[[], None]) -> None:
        """Begins, unless it was cancelled before: then there are no pieces.

        `over()` follows when the model's thread has left it.
        """
        if self.why is None:
            self._thread = self._loop.run_in_executor(executor, self._run)
            self._thread.add_done_callback(lambda _: over())
        else:
            self._pieces.put_nowait(None)

    def cancel(self, why: ApiError) -> None:
        """Ends it before its next token or pass; the first reason counts."""
        if self.why is None:
            self.why = why
            self._on_cancel(why)

    async def pieces(self) -> AsyncIterator[Piece]:
        """What is said, as it comes. Raises ApiError when it failed or was cancelled."""
        while (piece := await self._pieces.get()) is not None:
            yield piece
        await self.over()
        if self._error is not None:
            raise api_error(self._error) from self._error
        if self.why is not None:
            raise self.why

    async def over(self) -> None:
        """Waits until the model's thread has left it, whatever happens to the waiting task."""
        if self._thread is None:
            return
        interrupted: asyncio.CancelledError | None = None
        while not self._thread.done():
            try:
                await asyncio.wait([self._thread])
            except asyncio.CancelledError as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def _run(self) -> None:
        try:
            reply = self.reply = self._make(lambda: self.why is not None)
            for kind, piece in reply.events():
                self._tell((kind, piece, len(reply.tokens)))
                if self._enough(reply):
                    reply.close()
                    break
        except BaseException as error:
            self._error = error
        finally:
            self._tell(None)

    def _tell(self, piece: Piece | None) -> None:
        # The loop waits in `over` for this thread before it closes.
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
