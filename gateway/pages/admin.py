"""The operator's page over TCP: page, its live part, JSON, static files, actions. Touches the ASGI channels and clocks.

Rules:
- Only admins: a session cookie, or an admin token as `Authorization: Bearer`. A seat key opens nothing here.
- Every answer below /admin, refusals too, carries HEADERS; all but static files may not be stored.
- The login page takes a token from the fragment of its address, which no browser sends. The rest of the login, and its
  rules, are in login.py.
- The cookie is read by GET routes that change nothing; what changes something is a POST, in a session with the CSRF
  value of its form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from gateway.events import Events
from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX
from gateway.pages.admin_actions import AdminActions
from gateway.pages.dispatch import Table, page_routes
from gateway.pages.live import LivePart
from gateway.pages.login import LoginAnswers, Served
from gateway.pages.sessions import issue, read
from gateway.seats import Admin, AdminBook, AdminName, Denied, Headers
from gateway.state import Severity

COOKIE = "moe_admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPages(Served):
    """What the page needs of the gateway. `actions`: what its buttons do."""

    admins: Callable[[], AdminBook]
    events: Events
    actions: AdminActions


def admin_routes(pages: AdminPages) -> list[BaseRoute]:
    """The routes of /admin and everything below it."""
    return page_routes("/admin", _AdminAnswers(pages).table, lambda: pages.latest.view().public_url)


class _AdminAnswers(LoginAnswers[AdminName]):
    home, cookie, field = "/admin", COOKIE, "token"

    def __init__(self, pages: AdminPages) -> None:
        super().__init__(pages)
        self._pages = pages
        self._live = LivePart(self._templates)
        self.table: Table = {
            **self.login_table(),
            "/admin": {"GET": self._page},
            "/admin/fragment": {"GET": self._fragment},
            "/admin/status.json": {"GET": self._json},
            **{path: {"POST": self._act} for path in pages.actions.table()},
            **{f"/admin/static/{name}": {"GET": self._static} for name in self._assets},
        }

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
        cookie = self._cookie(request) if self._session(request) is not None else None
        answer = await self._pages.actions.answer(request, who, cookie, self._said_page)
        self._pages.latest.look()
        return answer

    def _said_page(self, status: int, said: str) -> Response:
        return self._html(status, "said.html", error=said)

    # Login

    def _asks(self, headers: Headers, now_s: float) -> AdminName | Denied:
        return _name(self._pages.admins().authenticate(headers, now_s))

    def _owner(self, key: str, now_s: float) -> AdminName | Denied:
        return _name(self._pages.admins().check(key, now_s))

    def _issued(self, name: AdminName, now_s: float) -> str:
        return issue(self._pages.secret, name, self._pages.admins(), now_s)

    def _read(self, cookie: str, now_s: float) -> AdminName | None:
        return read(self._pages.secret, cookie, self._pages.admins(), now_s)

    def _logged_in(self, name: AdminName, peer: str) -> None:
        self._pages.log.info("admin.login", admin=name, peer=peer)
        self._pages.events.note("admin.login", Severity.INFO, f"admin {name} logged in", name)

    def _refused(self, found: Denied, peer: str) -> None:
        self._pages.log.warning("admin.refused", reason=str(found.reason), admin=found.name, peer=peer)

    def _why_not(self, key: str) -> str:
        if key.startswith(SEAT_PREFIX) and not key.startswith(ADMIN_PREFIX):
            return "This is a seat key: it opens the page of its seat, /seat, and nothing here."
        return "" if key else "Paste an admin token."

    def _login_page(self, status: int, error: str) -> Response:
        nobody = not self._pages.admins().accounts
        return self._html(status, "login.html", error=error, nobody=nobody)


def _name(found: Admin | Denied) -> AdminName | Denied:
    return found if isinstance(found, Denied) else found.name


def _denied(found: Denied) -> Response:
    headers = {"www-authenticate": 'Bearer realm="moe-appliance admin"'} if found.status == 401 else None
    return JSONResponse({"error": {"code": str(found.reason), "message": found.message}}, found.status, headers)
