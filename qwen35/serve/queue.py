"""The bounded queue before the model: one request at a time, clients in turns."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from qwen35.serve.errors import ApiError

__all__ = ["FairQueue", "Place"]


class Place:
    """One request's place, from when its body is there until its answer is made."""

    def __init__(self, queue: FairQueue, client: str) -> None:
        self._queue, self.client = queue, client
        self._called: asyncio.Future[None] | None = None
        self.began = monotonic()
        self.inside = True
        self.waited = 0.0
        """Seconds until the model was its own."""

    async def turn(self) -> None:
        """Waits until the model is this request's. Raises what `give_up` was given."""
        self._called = asyncio.get_running_loop().create_future()
        self._queue._join(self)
        await self._called
        self.waited = monotonic() - self.began

    def give_up(self, error: ApiError) -> None:
        """Ends the wait, if it is still going on."""
        if self._called is not None and not self._called.done():
            self._called.set_exception(error)

    def done(self) -> None:
        """Model and place are the next one's; this request's client may still be reading its answer."""
        self._queue._leave(self)

    def _call(self) -> bool:
        if self._called is None or self._called.done():
            return False
        self._called.set_result(None)
        return True


class FairQueue:
    """Of one event loop; no method may be called from another thread.

    `bound` requests may be inside beside the one that is answered. Those whose body is still coming, or whose
    answer is made, are not; bodies have a bound of their own, in bytes. Clients (by address) take turns, so
    that one that asks much does not keep the others waiting.
    """

    def __init__(self, bound: int, most_bytes: int = 1 << 62) -> None:
        self.bound, self.most_bytes = bound, most_bytes
        self.nbytes = 0
        """Of the bodies inside, which may have `most_bytes` together."""
        self.inside = 0
        """Requests inside, the answered one too."""
        self._clients: OrderedDict[str, deque[Place]] = OrderedDict()
        self._running: Place | None = None
        self._closed: ApiError | None = None
        self._usual = 1.0
        """Seconds of an answer, a moving mean."""

    @property
    def running(self) -> int:
        """Requests that are being answered: 0 or 1."""
        return int(self._running is not None)

    @property
    def waiting(self) -> int:
        """Requests that wait for the model."""
        return self.inside - self.running

    @contextmanager
    def enter(self, client: str) -> Iterator[Place]:
        """A place in the line. Raises as `check`."""
        self.check()
        place = Place(self, client)
        self.inside += 1
        try:
            yield place
        finally:
            self._leave(place)

    def check(self) -> None:
        """Raises ApiError 429 when the line is full, and what `close` was given."""
        if self._closed is not None:
            raise self._closed
        if self.inside > self.bound:
            raise self._full(f"{self.inside} requests are under way and no more are taken: try again")

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Counts bytes of a body, as they come, until the block ends.

        The function raises ApiError 429 when those of all bodies are more than `most_bytes`.
        """
        mine = 0

        def take(nbytes: int) -> None:
            nonlocal mine
            mine += nbytes
            self.nbytes += nbytes
            if self.nbytes > self.most_bytes:
                raise self._full("the bodies of the requests under way are too large together: try again")

        try:
            yield take
        finally:
            self.nbytes -= mine

    def _full(self, message: str) -> ApiError:
        seconds = min(max(math.ceil(self._usual * self.inside / 2), 1), 60)
        return ApiError(
            429,
            message,
            code="queue_full",
            headers={"Retry-After": str(seconds)},
        )

    def close(self, error: ApiError) -> None:
        """Ends every wait with `error`, and takes nobody in any more; the answer under way goes on."""
        self._closed = error
        for places in self._clients.values():
            for place in places:
                place.give_up(error)

    def _join(self, place: Place) -> None:
        if self._closed is not None:
            raise self._closed
        self._clients.setdefault(place.client, deque()).append(place)
        self._advance()

    def _end(self, place: Place) -> None:
        if self._running is place:
            self._usual += 0.2 * (monotonic() - place.began - place.waited - self._usual)
            self._running = None
            self._advance()

    def _leave(self, place: Place) -> None:
        if not place.inside:
            return
        place.inside = False
        self.inside -= 1
        self._end(place)
        places = self._clients.get(place.client)
        if places is not None and place in places:
            places.remove(place)
            if not places:
                del self._clients[place.client]

    def _advance(self) -> None:
        while self._running is None and self._clients:
            client, places = next(iter(self._clients.items()))
            place = places.popleft()
            if places:
                self._clients.move_to_end(client)
            else:
                del self._clients[client]
            if place._call():
                self._running = place
