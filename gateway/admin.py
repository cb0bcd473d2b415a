"""The operator's page over TCP: login, page, its live part, JSON, static files. Touches the ASGI channels and clocks.

Rules:
- Only admins: a session cookie, or an admin token as `Authorization: Bearer`. A seat key opens nothing here.
- Every answer below /admin, refusals too, carries HEADERS; all but static files may not be stored.
- A token is never logged and never in an address: the login page takes it from the fragment, which no browser
  sends.
- The cookie is read by GET routes that change nothing; the one change, logging out, is a POST and the cookie is
  SameSite=Strict. A POST that a browser sends for another site is refused. That needs the referrer policy to be
  same-origin: with no-referrer, browsers say `Origin: null` for our own forms too.
- The brake on failed logins never stops the right token: anybody can fail, and would lock everybody out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Message, Receive, Scope, Send

from gateway.admin_assets import static_files, templates
from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX
from gateway.logs import Log
from gateway.seats import Admin, AdminBook, AdminName, Denied
from gateway.sessions import LIFETIME_S, FailureBrake, issue, read
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState
from gateway.status import view
from gateway.status_view import StatusView

COOKIE = "moe_admin"
LOGIN_MAX_BYTES = 8 * 1024
LOGIN_TIMEOUT_S = 10.0
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class AdminPages:
    """What the page needs of the gateway. `secret`: 32 bytes or more that sign the cookies; `secure`: whether a
    request came over https; `now` and `monotonic` are the clocks, seconds."""

    box: Callable[[], BoxState]
    snapshot: Callable[[], GatewaySnapshot]
    admins: Callable[[], AdminBook]
    log: Log
    secret: bytes
    secure: Callable[[Request], bool]
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


def admin_routes(pages: AdminPages) -> list[BaseRoute]:
    """The routes of /admin and everything below it."""
    app = _AdminApp(pages)
    return [Route("/admin", app), Mount("/admin", app)]


_Answer = Callable[[Request], Awaitable[Response]]


class _AdminApp:
    """Dispatches by path and method itself, so that no answer of a router goes out without HEADERS."""

    def __init__(self, pages: AdminPages) -> None:
        self._pages = pages
        self._brake = FailureBrake()
        self._assets = static_files()
        self._templates = templates(self._assets)
        self._table: Mapping[str, Mapping[str, _Answer]] = {
            "/admin": {"GET": self._page},
            "/admin/": {"GET": self._to_page},
            "/admin/fragment": {"GET": self._fragment},
            "/admin/status.json": {"GET": self._json},
            "/admin/login": {"GET": self._to_page, "POST": self._login},
            "/admin/logout": {"POST": self._logout},
            **{f"/admin/static/{name}": {"GET": self._static} for name in self._assets},
        }

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
            return Response("There is no such page. Try /admin\n", 404, media_type="text/plain")
        answer = answers.get("GET" if request.method == "HEAD" else request.method)
        if request.method == "POST" and answer is not None and _from_another_site(request, self._pages.box()):
            text = "Another site sent this form, or a proxy in front changes the Host header. Open /admin itself.\n"
            return Response(text, 403, media_type="text/plain")
        if answer is None:
            allowed = [*answers, "HEAD"] if "GET" in answers else [*answers]
            return Response(f"Use {' or '.join(answers)}.\n", 405, {"allow": ", ".join(allowed)}, "text/plain")
        return await answer(request)

    # Who asks

    def _who(self, request: Request) -> AdminName | Denied:
        book, now_s = self._pages.admins(), self._pages.now()
        found = read(self._pages.secret, request.cookies.get(COOKIE, ""), book, now_s)
        if found is not None:
            return found
        asked = book.authenticate(request.scope["headers"], now_s)
        return asked.name if isinstance(asked, Admin) else asked

    def _view(self) -> StatusView:
        return view(self._pages.box(), self._pages.snapshot(), self._pages.now())

    # Pages

    async def _page(self, request: Request) -> Response:
        who = self._who(request)
        if isinstance(who, Denied):
            if "authorization" in request.headers:
                return _denied(who)
            return self._login_page(200, "")
        return self._html(200, "page.html", view=self._view(), admin=who)

    async def _to_page(self, request: Request) -> Response:
        return RedirectResponse("/admin", 303)

    async def _fragment(self, request: Request) -> Response:
        who = self._who(request)
        return _denied(who) if isinstance(who, Denied) else self._html(200, "fragment.html", view=self._view())

    async def _json(self, request: Request) -> Response:
        who = self._who(request)
        if isinstance(who, Denied):
            return _denied(who)
        return Response(self._view().model_dump_json(), media_type="application/json")

    async def _static(self, request: Request) -> Response:
        asset = self._assets[request.scope["path"].removeprefix("/admin/static/")]
        # without the hash in the address the next version must be seen soon
        kept = "max-age=31536000, immutable" if asset.url.endswith(f"?{request.url.query}") else "max-age=60"
        return Response(asset.body, 200, {"cache-control": f"public, {kept}", "content-type": asset.content_type})

    # Login

    async def _login(self, request: Request) -> Response:
        try:
            body = await _small_body(request)
        except TimeoutError:
            return self._login_page(408, "The form did not arrive in time.")
        if body is None:
            return self._login_page(413, "That is too long for a token.")
        return self._try_token(request, _token_of(body))

    def _try_token(self, request: Request, token: str) -> Response:
        book, now_s = self._pages.admins(), self._pages.now()
        found = book.check(token, now_s)
        if isinstance(found, Denied):
            return self._login_failed(request, token, found)
        self._pages.log.info("admin.login", admin=found.name, peer=_peer(request))
        response: Response = RedirectResponse("/admin", 303)
        cookie = issue(self._pages.secret, found.name, book, now_s)
        self._set_cookie(request, response, cookie, LIFETIME_S)
        return response

    def _login_failed(self, request: Request, token: str, found: Denied) -> Response:
        monotonic_s = self._pages.monotonic()
        wait_s = self._brake.wait_s(monotonic_s)
        if wait_s:
            response = self._login_page(429, f"Too many failed logins. Try again in {wait_s} s.")
            response.headers["retry-after"] = str(wait_s)
            return response
        self._brake.failed(monotonic_s)
        self._pages.log.warning("admin.refused", reason=str(found.reason), admin=found.name, peer=_peer(request))
        return self._login_page(found.status, _why_not(token, found))

    async def _logout(self, request: Request) -> Response:
        response = RedirectResponse("/admin", 303)
        self._set_cookie(request, response, "", 0)
        return response

    def _set_cookie(self, request: Request, response: Response, value: str, max_age: int) -> None:
        secure = self._pages.secure(request)
        response.set_cookie(
            COOKIE, value, max_age=max_age, path="/admin", secure=secure, httponly=True, samesite="strict"
        )

    def _login_page(self, status: int, error: str) -> Response:
        nobody = not self._pages.admins().accounts
        return self._html(status, "login.html", error=error, nobody=nobody)

    def _html(self, status: int, template: str, **values: object) -> Response:
        return Response(self._templates.get_template(template).render(values), status, media_type="text/html")


def _denied(found: Denied) -> Response:
    headers = {"www-authenticate": 'Bearer realm="moe-appliance admin"'} if found.status == 401 else None
    return JSONResponse({"error": {"code": str(found.reason), "message": found.message}}, found.status, headers)


async def _small_body(request: Request) -> bytes | None:
    """The body, None when it is longer than LOGIN_MAX_BYTES. Raises TimeoutError."""
    body = b""
    async with asyncio.timeout(LOGIN_TIMEOUT_S):
        async for part in request.stream():
            body += part
            if len(body) > LOGIN_MAX_BYTES:
                return None
    return body


def _token_of(body: bytes) -> str:
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    except ValueError:
        return ""
    return fields.get("token", [""])[0].strip()


def _why_not(token: str, found: Denied) -> str:
    if not token:
        return "Paste an admin token."
    if token.startswith(SEAT_PREFIX) and not token.startswith(ADMIN_PREFIX):
        return "This is a seat key, which opens no page. On the box, make a token: moe-appliance admins add NAME"
    return found.message[:1].upper() + found.message[1:]


def _from_another_site(request: Request, box: BoxState) -> bool:
    """Whether a browser says that the page of another site made it send this. What sends neither header is no
    browser, and none of another site can name a host of its own in the others."""
    site = request.headers.get("sec-fetch-site", "")
    if site in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if site == "cross-site" or origin is None:
        return site == "cross-site"
    ours = (request.headers.get("host", ""), request.headers.get("x-forwarded-host", ""), _host_of(box.public_url))
    return _host_of(origin) not in {host.strip().lower() for host in ours if host}


def _host_of(url: str) -> str:
    """Host and port of an address; "" when it has none, as `null` has."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _without_body(send: Send) -> Send:
    async def headers_only(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return headers_only
