"""The operator's page over TCP: login, page, its live part, JSON, static files. Touches the ASGI channels and clocks.

Rules:
- Only admins: a session cookie, or an admin token as `Authorization: Bearer`. A seat key opens nothing here.
- Every answer below /admin, refusals too, carries HEADERS; all but static files may not be stored.
- A token is never logged and never in an address: the login page takes it from the fragment, which no browser
  sends.
- The cookie is read by GET routes that change nothing; what changes something is a POST, in a session with the CSRF
  value of its form, and the cookie is SameSite=Strict. A POST that a browser sends for another site is refused. That
  needs the referrer policy to be same-origin: with no-referrer, browsers say `Origin: null` for our own forms too.
- The brake on failed logins never stops the right token: anybody can fail, and would lock everybody out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from gateway.events import Events
from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX
from gateway.logs import Log
from gateway.pages.admin_actions import STALE, AdminActions
from gateway.pages.assets import static_files, templates
from gateway.pages.dispatch import Table, page_routes, peer
from gateway.pages.forms import read_form
from gateway.pages.latest import Latest
from gateway.pages.live import FormValue, LivePart
from gateway.pages.sessions import LIFETIME_S, Ended, FailureBrake, csrf, csrf_good, issue, read
from gateway.seats import Admin, AdminBook, AdminName, Denied
from gateway.state import Severity

COOKIE = "moe_admin"


@dataclass(frozen=True, slots=True)
class AdminPages:
    """What the page needs of the gateway. `latest`: how the box is; `secret`: 32 bytes or more that sign the cookies;
    `actions`: what its buttons do; `secure`: whether a request came over https; `now` and `monotonic` are the clocks,
    seconds."""

    latest: Latest
    admins: Callable[[], AdminBook]
    log: Log
    events: Events
    secret: bytes
    actions: AdminActions
    secure: Callable[[Request], bool]
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


def admin_routes(pages: AdminPages) -> list[BaseRoute]:
    """The routes of /admin and everything below it."""
    return page_routes("/admin", _AdminAnswers(pages).table, lambda: pages.latest.view().public_url)


class _AdminAnswers:
    def __init__(self, pages: AdminPages) -> None:
        self._pages = pages
        self._brake = FailureBrake()
        self._ended = Ended()
        self._assets = static_files()
        self._templates = templates(self._assets)
        self._live = LivePart(self._templates)
        self.table: Table = {
            "/admin": {"GET": self._page},
            "/admin/": {"GET": self._to_page},
            "/admin/fragment": {"GET": self._fragment},
            "/admin/status.json": {"GET": self._json},
            "/admin/login": {"GET": self._to_page, "POST": self._login},
            "/admin/logout": {"POST": self._logout},
            **{path: {"POST": self._act} for path in pages.actions.table()},
            **{f"/admin/static/{name}": {"GET": self._static} for name in self._assets},
        }

    # Who asks

    def _who(self, request: Request) -> AdminName | Denied:
        found = self._session(request)
        if found is not None:
            return found
        asked = self._pages.admins().authenticate(request.scope["headers"], self._pages.now())
        return asked.name if isinstance(asked, Admin) else asked

    def _session(self, request: Request) -> AdminName | None:
        cookie = request.cookies.get(COOKIE, "")
        if cookie in self._ended:
            return None
        return read(self._pages.secret, cookie, self._pages.admins(), self._pages.now())

    # Pages

    async def _page(self, request: Request) -> Response:
        who = self._who(request)
        if isinstance(who, Denied):
            if "authorization" in request.headers:
                return _denied(who)
            return self._login_page(200, "")
        now, value = self._pages.latest.view(), self._form_value(request)
        live, logout = self._live.html(now, value), value("logout", "")
        return self._html(200, "page.html", view=now, live=live, admin=who, logout=logout)

    async def _to_page(self, request: Request) -> Response:
        return RedirectResponse("/admin", 303)

    async def _fragment(self, request: Request) -> Response:
        who = self._who(request)
        if isinstance(who, Denied):
            return _denied(who)
        live = self._live.html(self._pages.latest.view(), self._form_value(request))
        return Response(live, media_type="text/html")

    async def _json(self, request: Request) -> Response:
        who = self._who(request)
        if isinstance(who, Denied):
            return _denied(who)
        return Response(self._pages.latest.look().model_dump_json(), media_type="application/json")

    async def _static(self, request: Request) -> Response:
        asset = self._assets[request.scope["path"].removeprefix("/admin/static/")]
        # without the hash in the address the next version must be seen soon
        kept = "max-age=31536000, immutable" if asset.url.endswith(f"?{request.url.query}") else "max-age=60"
        return Response(asset.body, 200, {"cache-control": f"public, {kept}", "content-type": asset.content_type})

    # Actions

    async def _act(self, request: Request) -> Response:
        who = self._who(request)
        if isinstance(who, Denied):
            return _denied(who)
        cookie = request.cookies.get(COOKIE, "") if self._session(request) is not None else None
        answer = await self._pages.actions.answer(request, who, cookie, self._said_page)
        self._pages.latest.look()
        return answer

    def _said_page(self, status: int, said: str) -> Response:
        return self._html(status, "said.html", said=said)

    def _is_ours(self, request: Request, form: Mapping[str, str], action: str) -> bool:
        return csrf_good(self._pages.secret, request.cookies.get(COOKIE, ""), action, "", form.get("csrf", ""))

    def _form_value(self, request: Request) -> FormValue:
        """For the hidden field `csrf` of each form."""
        return partial(csrf, self._pages.secret, request.cookies.get(COOKIE, ""))

    # Login

    async def _login(self, request: Request) -> Response:
        try:
            form = await read_form(request)
        except TimeoutError:
            return self._login_page(408, "The form did not arrive in time.")
        if form is None:
            return self._login_page(413, "That is too long for a token.")
        return self._try_token(request, form.get("token", ""))

    def _try_token(self, request: Request, token: str) -> Response:
        book, now_s = self._pages.admins(), self._pages.now()
        found = book.check(token, now_s)
        if isinstance(found, Denied):
            return self._login_failed(request, token, found)
        self._pages.log.info("admin.login", admin=found.name, peer=peer(request))
        self._pages.events.note("admin.login", Severity.INFO, f"admin {found.name} logged in", found.name)
        response: Response = RedirectResponse("/admin", 303)
        cookie = issue(self._pages.secret, found.name, book, now_s)
        self._ended.begin(cookie)
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
        self._pages.log.warning("admin.refused", reason=str(found.reason), admin=found.name, peer=peer(request))
        return self._login_page(found.status, _why_not(token, found))

    async def _logout(self, request: Request) -> Response:
        form = await _form(request)
        if self._session(request) is not None:
            if not self._is_ours(request, form, "logout"):
                return self._said_page(403, STALE)
            self._ended.end(request.cookies[COOKIE], self._pages.now())
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


async def _form(request: Request) -> Mapping[str, str]:
    """The fields; none when they are too many or too late."""
    try:
        return await read_form(request) or {}
    except TimeoutError:
        return {}


def _denied(found: Denied) -> Response:
    headers = {"www-authenticate": 'Bearer realm="moe-appliance admin"'} if found.status == 401 else None
    return JSONResponse({"error": {"code": str(found.reason), "message": found.message}}, found.status, headers)


def _why_not(token: str, found: Denied) -> str:
    if not token:
        return "Paste an admin token."
    if token.startswith(SEAT_PREFIX) and not token.startswith(ADMIN_PREFIX):
        return "This is a seat key: it opens the page of its seat, /seat, and nothing here."
    return found.message[:1].upper() + found.message[1:]
