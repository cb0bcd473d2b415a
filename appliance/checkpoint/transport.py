"""Reads parts of files over HTTP. Touches sockets and the clock.

Rules:
- The token goes to the origin (scheme, host, port) of the URL that was asked for; a redirect elsewhere gets none.
- What a message shows of a URL is scheme, host, port and path: queries are signatures, user names are secrets.
- `get` and `span` try again after connection errors, cut bodies, 429 and 5xx; `stream` leaves that to its caller, who
  knows how far it came.
- From a request to the end of its response headers no more than ANSWER_S pass, whatever the server sends meanwhile.
- A server that ignores a range is an error before its body is read: the body may be 300 GiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TypeVar

import httpx

from appliance import __version__
from appliance.checkpoint.answers import (
    AGAIN,
    LONGEST_PAUSE_S,
    MISSING,
    MOVED,
    NotThereError,
    TransportError,
    body_length,
    extent,
    past_the_end,
    pause_s,
    refusal,
    strong_etag,
)
from appliance.checkpoint.faults import shown_url
from appliance.errors import CheckpointError

__all__ = ["Body", "NotThereError", "Span", "Transport", "TransportError"]

CONCURRENCY = 8
RETRIES = 5
REDIRECTS = 10
SLOW_S = 60.0
SLOWEST_BYTES_S = 1000.0
"""A body that after SLOW_S came no faster than this is given up: a server that sends a byte now and then is no faster
than one that hangs, and keeps its reader for ever."""
ANSWER_S = 60.0
"""Over what `_TIMEOUT` allows a slow server for one read: many short ones (1xx answers, headers that drip) would each
begin it again."""
_TIMEOUT = httpx.Timeout(30.0, connect=10.0, pool=None)
_T = TypeVar("_T")


class _Pace:
    """Says when a body comes too slowly."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()

    def check(self, read: int) -> None:
        """`read`: how many bytes came so far. Raises _BrokenError."""
        passed_s = self._clock() - self._began_s
        if passed_s > SLOW_S and read < passed_s * SLOWEST_BYTES_S:
            raise _BrokenError(f"the server sent {read:,} bytes in {passed_s:.0f} s")


class _BrokenError(Exception):
    """An exchange that is worth another try, and what came of it."""

    def __init__(self, reason: str, retry_after: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Span:
    """Some bytes of a file. `first`: where they begin; `total_bytes`: of the file; `etag`: a strong one or None."""

    body: bytes
    first: int
    total_bytes: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class Body:
    """The rest of a file while it arrives, read once. `first`: where it begins, which is 0 when the server ignored the
    range or the file changed; `total_bytes`: of the file, None when the server does not say."""

    first: int
    total_bytes: int | None
    etag: str | None
    _pieces: Callable[[], AsyncIterator[bytes]]

    def aiter(self) -> AsyncIterator[bytes]:
        """Its pieces as they come. Raises TransportError when the connection breaks or the body is cut."""
        return self._pieces()


class Transport:
    """A bounded pool of HTTP/1.1 connections to the servers of one checkpoint.

    `token`: a bearer token, or None; `token_variable`: the environment variable it comes from, for remedies.
    `requests`, `received_bytes`: what was asked (redirects counted) and the bytes of bodies that came.
    """

    def __init__(
        self,
        token: str | None = None,
        token_variable: str = "HF_TOKEN",  # noqa: S107
        *,
        concurrency: int = CONCURRENCY,
        retries: int = RETRIES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._token = token
        self._token_variable = token_variable
        self._retries = retries
        self._sleep = sleep
        self._places = asyncio.Semaphore(concurrency)
        self._client = httpx.AsyncClient(
            http2=False,
            follow_redirects=False,
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            headers={"User-Agent": f"moe-appliance/{__version__}"},
        )
        self.requests = 0
        self.received_bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, url: str, limit_bytes: int, *, refused_is_absent: bool = False) -> bytes | None:
        """A whole small file; None when there is none. Raises CheckpointError, also over `limit_bytes`.

        `refused_is_absent`: 403 is None as well. Object stores answer so when a folder may be read but not listed.
        """
        absent = MISSING | {403} if refused_is_absent else MISSING

        async def once() -> bytes | None:
            async with self._open(url, {"Accept-Encoding": "gzip"}) as answer:
                if answer.status_code in absent:
                    return None
                self._refuse(answer, url)
                whole = bytearray()
                before, pace = answer.num_bytes_downloaded, _Pace()
                async for piece in answer.aiter_bytes():
                    whole += piece
                    pace.check(len(whole))
                    self.received_bytes += answer.num_bytes_downloaded - before
                    before = answer.num_bytes_downloaded
                    if len(whole) > limit_bytes:
                        raise CheckpointError(
                            f"{shown_url(url)} is longer than {limit_bytes:,} bytes", "check that it is the right file"
                        )
                return bytes(whole)

        return await self._again(url, once)

    async def span(
        self, url: str, first: int, last: int, unless: str | None = None, *, refused_is_absent: bool = False
    ) -> Span | None:
        """The bytes `first` to `last`, both included, fewer where the file ends; None when its ETag is still `unless`.

        A file that ends before `first` gives no bytes and its length. `refused_is_absent`: as in `get`.
        Raises NotThereError, TransportError.
        """
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        if unless is not None:
            headers["If-None-Match"] = unless

        async def once() -> Span | None:
            async with self._open(url, headers) as answer:
                if answer.status_code == 304 and unless is not None:
                    return None
                if refused_is_absent and answer.status_code == 403:
                    raise NotThereError(f"{shown_url(url)}: the server refuses it (403)", "check the URL")
                if (past := past_the_end(answer.status_code, answer.headers)) is not None:
                    return Span(b"", first, past, strong_etag(answer.headers))
                self._refuse(answer, url)
                begin, end, total = extent(url, answer.status_code, answer.headers, first, last)
                return Span(await self._exactly(answer, end - begin + 1), begin, total, strong_etag(answer.headers))

        return await self._again(url, once)

    @contextlib.asynccontextmanager
    async def stream(self, url: str, first: int, unchanged: str | None = None) -> AsyncIterator[Body]:
        """A file from `first` on, or from 0 when `unchanged` is its ETag no longer. One try.

        Raises NotThereError, or TransportError whose `pause_s` says whether another try makes sense.
        """
        headers = {"Accept-Encoding": "identity"}
        if first:
            headers["Range"] = f"bytes={first}-"
            if unchanged is not None:
                headers["If-Range"] = unchanged
        async with contextlib.AsyncExitStack() as held:
            try:
                answer = await held.enter_async_context(self._open(url, headers))
                past = past_the_end(answer.status_code, answer.headers)
                if past is None:
                    self._refuse(answer, url)
            except _BrokenError as error:
                raise self._given_up(url, error, 1) from error
            yield self._body(url, answer, first, past)

    def _body(self, url: str, answer: httpx.Response, first: int, past: int | None) -> Body:
        total: int | None
        length: int | None
        if past is not None:
            begin, length, total = first, 0, past
        elif answer.status_code == 206:
            begin, end, total = extent(url, 206, answer.headers, first, None)
            length = end - begin + 1
        else:
            begin, length = 0, body_length(answer.headers)
            total = length
        return Body(begin, total, strong_etag(answer.headers), lambda: self._told(url, answer, length))

    async def _told(self, url: str, answer: httpx.Response, length: int | None) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces(answer, length):
                yield piece
        except _BrokenError as error:
            raise self._given_up(url, error, 1) from error

    async def _again(self, url: str, once: Callable[[], Awaitable[_T]]) -> _T:
        attempt = 0
        while True:
            try:
                return await once()
            except _BrokenError as error:
                pause = self._pause_s(attempt, error.retry_after)
                if attempt >= self._retries or pause > LONGEST_PAUSE_S:
                    raise self._given_up(url, error, attempt + 1) from error
            attempt += 1
            await self._sleep(pause)

    def _pause_s(self, attempt: int, retry_after: str | None) -> float:
        return pause_s(attempt, retry_after, datetime.now(UTC), random.random())  # noqa: S311

    def _given_up(self, url: str, error: _BrokenError, tries: int) -> TransportError:
        often = "" if tries == 1 else f", {tries} times"
        pause = self._pause_s(0, error.retry_after)
        later = f"try again in {pause:,.0f} s" if error.retry_after else "try again; curl -I the URL shows what answers"
        return TransportError(f"{shown_url(url)}: {error.reason}{often}", later, pause)

    @contextlib.asynccontextmanager
    async def _open(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """The answer to a GET after its redirects, its body unread. Raises _BrokenError, TransportError."""
        try:
            here = httpx.URL(url)
            home = _origin(here)
            for _ in range(REDIRECTS + 1):
                sent = dict(headers)
                if self._token is not None and _origin(here) == home:
                    sent["Authorization"] = f"Bearer {self._token}"
                self.requests += 1
                async with self._answer(here, sent) as answer:
                    if answer.status_code not in MOVED:
                        yield answer
                        return
                    here = _target(answer, url, here)
                    await self._drain(answer)
            raise TransportError(
                f"{shown_url(url)}: more than {REDIRECTS} redirects", "check the URL with: curl -IL URL"
            )
        except httpx.InvalidURL as error:
            raise TransportError(f"{shown_url(url)}: no URL that can be asked", "check the URL") from error
        except httpx.UnsupportedProtocol as error:
            raise TransportError(f"{shown_url(url)}: neither http nor https", "check the URL") from error
        except httpx.TimeoutException as error:
            raise _BrokenError("the server did not answer in time") from error
        except httpx.TransportError as error:
            raise _BrokenError(f"the connection failed ({type(error).__name__})") from error
        except httpx.DecodingError as error:
            raise _BrokenError("the body is damaged (compression)") from error

    @contextlib.asynccontextmanager
    async def _answer(self, url: httpx.URL, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """The answer to one GET. The wait for a connection is not the server's, and not timed.

        Raises TransportError at once, not _BrokenError: a server that sends so long without an answer is no busy one.
        """
        async with self._places, contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await held.enter_async_context(self._client.stream("GET", url, headers=headers))
            except TimeoutError as error:
                raise TransportError(
                    f"{shown_url(str(url))}: the server did not finish its response headers within {ANSWER_S:g} s",
                    "try again; curl -I the URL shows what answers",
                    self._pause_s(0, None),
                ) from error
            yield answer

    async def _drain(self, answer: httpx.Response) -> None:
        """Read a redirect's small body, so that its connection is used again; a long one costs the connection."""
        read = 0
        async for piece in answer.aiter_raw():
            read += len(piece)
            if read > 65_536:
                break

    def _refuse(self, answer: httpx.Response, url: str) -> None:
        """Raise for every status that brings no data."""
        if answer.status_code in AGAIN:
            raise _BrokenError(f"the server answered {answer.status_code}", answer.headers.get("Retry-After"))
        error = refusal(url, answer.status_code, self._token_variable, self._token is not None)
        if error is not None:
            raise error

    async def _exactly(self, answer: httpx.Response, length: int) -> bytes:
        return b"".join([piece async for piece in self._pieces(answer, length)])

    async def _pieces(self, answer: httpx.Response, length: int | None) -> AsyncIterator[bytes]:
        """A body's pieces. Raises _BrokenError unless it has `length` bytes, where that is known."""
        read, pace = 0, _Pace()
        try:
            async for piece in answer.aiter_raw():
                read += len(piece)
                pace.check(read)
                self.received_bytes += len(piece)
                if length is not None and read > length:
                    raise _BrokenError(f"the body is longer than its {length:,} bytes")
                yield piece
        except httpx.TimeoutException as error:
            raise _BrokenError("the server stopped sending") from error
        except httpx.TransportError as error:
            raise _BrokenError(f"the connection broke in the body ({type(error).__name__})") from error
        if length is not None and read < length:
            raise _BrokenError(f"the body ended after {read:,} of {length:,} bytes")


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _target(answer: httpx.Response, url: str, here: httpx.URL) -> httpx.URL:
    said = answer.headers.get("Location")
    if not said:
        raise TransportError(f"{shown_url(url)}: a redirect without a target", "check the URL with: curl -IL URL")
    there = here.join(said).copy_with(fragment=None)
    if there.scheme not in ("http", "https") or (here.scheme == "https" and there.scheme == "http"):
        raise TransportError(
            f"{shown_url(url)}: a redirect from {here.scheme} to {there.scheme} is not followed",
            "give the URL of a server that keeps to https",
        )
    return there
