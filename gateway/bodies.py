"""Reads request bodies within a global budget of bytes and a deadline.

Touches the ASGI receive channel and the loop's clock.

Rules:
- Bytes are reserved before they are read: by the declared length, or as they come when none is declared.
- A seat may hold at most a quarter of the budget, so that one slow seat cannot shut the others out.
- The reservation is given back when the block ends, or earlier by `Reservation.release()`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from gateway.problem import Problem, bad_request, bodies_full, body_too_large, body_too_slow

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SEAT_SHARE = 4
LINE_PER_SEAT = 4


class ClientGoneError(Exception):
    """The client closed its connection."""


class BodyBudget:
    """Bytes of request bodies held now, in all and by seat."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._by_seat: Counter[str] = Counter()

    def reserve(self, seat: str) -> Reservation:
        """An empty reservation of `seat`; use it as a context manager."""
        return Reservation(self, seat)

    def _take(self, seat: str, count: int, own: int) -> bool:
        if self.used_bytes + count > self.total_bytes:
            return False
        if self._by_seat[seat] > own and self._by_seat[seat] + count > self.total_bytes // SEAT_SHARE:
            return False
        self.used_bytes += count
        self._by_seat[seat] += count
        return True

    def _give(self, seat: str, count: int) -> None:
        self.used_bytes -= count
        self._by_seat[seat] -= count
        if not self._by_seat[seat]:
            del self._by_seat[seat]


class Reservation:
    """The bytes that one request holds of the budget."""

    __slots__ = ("_budget", "_seat", "held_bytes")

    def __init__(self, budget: BodyBudget, seat: str) -> None:
        self._budget = budget
        self._seat = seat
        self.held_bytes = 0

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def grow_to(self, count: int) -> bool:
        """Hold at least `count` bytes; False when the budget does not allow it."""
        more = count - self.held_bytes
        if more > 0:
            if not self._budget._take(self._seat, more, self.held_bytes):
                return False
            self.held_bytes = count
        return True

    def release(self) -> None:
        """Give the bytes back; idempotent."""
        if self.held_bytes:
            self._budget._give(self._seat, self.held_bytes)
            self.held_bytes = 0


class LargeBodies:
    """Large bodies are parsed one at a time, and between two the loop has as long for everything else as the last
    one took: several at once would stop every stream for the sum of their times. Seats take turns."""

    def __init__(self) -> None:
        self._busy = False
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._free_at_s = 0.0

    def crowded(self, seat: str) -> bool:
        """True when `seat` has as many bodies in line as it may."""
        return len(self._lines.get(seat, ())) >= LINE_PER_SEAT

    @asynccontextmanager
    async def turn(self, seat: str) -> AsyncIterator[None]:
        """Wait for the turn; parse inside the block."""
        if self._busy:
            await self._wait(seat)
        self._busy = True
        now_s = asyncio.get_running_loop().time
        try:
            await asyncio.sleep(max(0.0, self._free_at_s - now_s()))
            began_s = now_s()
            try:
                yield
            finally:
                self._free_at_s = 2 * now_s() - began_s
        finally:
            self._next()

    async def _wait(self, seat: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._lines.setdefault(seat, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was our turn already
                self._next()
            elif place in (line := self._lines.get(seat, deque())):
                line.remove(place)
                if not line:
                    del self._lines[seat]
            raise

    def _next(self) -> None:
        """Hand the turn to the next seat; one that has more in line stands behind the others again."""
        while self._lines:
            seat, line = next(iter(self._lines.items()))
            place = line.popleft()
            del self._lines[seat]
            if line:
                self._lines[seat] = line  # behind the others
            if not place.done():
                place.set_result(None)
                return
        self._busy = False


async def gone(receive: Receive) -> NoReturn:
    """Raise ClientGoneError as soon as the client is gone. What else it sends is not for us."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGoneError


async def read_body(
    receive: Receive,
    declared_bytes: int | None,
    encoding: bytes | None,
    reservation: Reservation,
    max_bytes: int,
    timeout_s: float,
) -> bytes | Problem:
    """The whole body, or why not. Raises ClientGoneError when the client goes away before its end."""
    if encoding not in (None, b"", b"identity"):
        return Problem(415, "content_encoding", "Send the request body without Content-Encoding.", heals=False)
    if declared_bytes is not None and declared_bytes > max_bytes:
        return body_too_large(max_bytes)
    if not reservation.grow_to(declared_bytes or 0):
        return bodies_full()
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, reservation, max_bytes)
    except TimeoutError:
        return body_too_slow(timeout_s)


async def _read(receive: Receive, reservation: Reservation, max_bytes: int) -> bytes | Problem:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            return body_too_large(max_bytes)
        if not reservation.grow_to(size):
            return bodies_full()
        if part:
            parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts) if parts else bad_request("The request has no body.")
