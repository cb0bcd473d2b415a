"""How pages are served: dispatch by path and method, the headers of each answer, forms of our own site only.

Touches the ASGI channels.

Rules:
- It dispatches itself, so that no answer of a router goes out without HEADERS; all but static files may not be stored.
- A POST that a browser sends for another site is refused. That needs the referrer policy to be same-origin: with
  no-referrer, browsers say `Origin: null` for our own forms too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}

Answer: TypeAlias = Callable[[Request], Awaitable[Response]]
Table: TypeAlias = Mapping[str, Mapping[str, Answer]]
"""Path -> method -> who answers; GET answers HEAD too."""


def page_routes(home: str, table: Table, public_url: Callable[[], str]) -> list[BaseRoute]:
    """The routes of `home` (`/admin`) and everything below it."""
    app = _PageApp(home, table, public_url)
    return [Route(home, app), Mount(home, app)]


class _PageApp:
    def __init__(self, home: str, table: Table, public_url: Callable[[], str]) -> None:
        self._home = home
        self._table = table
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, _without_body(send) if request.method == "HEAD" else send)

    async def _answer(self, request: Request) -> Response:
        answers = self._table.get(request.scope["path"])
        if answers is None:
            return Response(f"There is no such page. Try {self._home}\n", 404, media_type="text/plain")
        answer = answers.get("GET" if request.method == "HEAD" else request.method)
        if request.method == "POST" and answer is not None and _from_another_site(request, self._public_url()):
            why = "Another site sent this form, or a proxy in front changes the Host header."
            return Response(f"{why} Open {self._home} itself.\n", 403, media_type="text/plain")
        if answer is None:
            allowed = [*answers, "HEAD"] if "GET" in answers else [*answers]
            return Response(f"Use {' or '.join(answers)}.\n", 405, {"allow": ", ".join(allowed)}, "text/plain")
        return await answer(request)


def peer(request: Request) -> str:
    """Who is at the other end of the connection, for the log."""
    return request.client.host if request.client else ""


def _from_another_site(request: Request, public_url: str) -> bool:
    """Whether a browser says that the page of another site made it send this. What sends neither header is no
    browser, and none of another site can name a host of its own in the others."""
    site = request.headers.get("sec-fetch-site", "")
    if site in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if site == "cross-site" or origin is None:
        return site == "cross-site"
    ours = (request.headers.get("host", ""), request.headers.get("x-forwarded-host", ""), _host_of(public_url))
    return _host_of(origin) not in {host.strip().lower() for host in ours if host}


def _host_of(url: str) -> str:
    """Host and port of an address; "" when it has none, as `null` has."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _without_body(send: Send) -> Send:
    async def headers_only(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return headers_only
