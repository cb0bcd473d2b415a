"""The page of one seat over TCP: login with its key, own streams, use, settings to copy. Touches ASGI and the clocks.

Rules:
- A seat key or its session opens this page and nothing else; an admin's token opens none of it. The session's cookie
  has a path, a label and a brake of its own.
- Nothing of other seats is ever put into the view; see seat_view.py.
- The ledger is asked in a thread, and at most once in USAGE_S for each seat, since every developer may leave the page
  open all day.
- A key is never logged, never in an address, and never shown again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from gateway.keys import ADMIN_PREFIX
from gateway.ledger.rows import Usage
from gateway.logs import Log
from gateway.pages.assets import static_files, templates
from gateway.pages.dispatch import Table, page_routes, peer
from gateway.pages.forms import read_form
from gateway.pages.latest import Latest
from gateway.pages.seat_view import SeatPageView, agent_views, periods, seat_view
from gateway.pages.sessions import LIFETIME_S, Ended, FailureBrake, csrf, csrf_good, issue_seat, read_seat
from gateway.seats import Denied, Seat, SeatBook, SeatName

COOKIE = "moe_seat"
USAGE_S = 20.0
_LOGOUT = "seat-logout"
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class SeatPages:
    """What the page needs of the gateway. `latest`: how the box is; `usage`: what a seat used since each of some times
    (wall clock), None when no ledger can be read. `secret` and `secure` as for AdminPages; `now` and `monotonic` are
    the clocks, seconds."""

    latest: Latest
    seats: Callable[[], SeatBook]
    usage: Callable[[str, tuple[float, ...]], Awaitable[tuple[Usage, ...] | None]]
    log: Log
    secret: bytes
    secure: Callable[[Request], bool]
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


def seat_routes(pages: SeatPages) -> list[BaseRoute]:
    """The routes of /seat and everything below it."""
    answers = _SeatAnswers(pages)
    return page_routes("/seat", answers.table, answers.public_url)


class _SeatAnswers:
    def __init__(self, pages: SeatPages) -> None:
        self._pages = pages
        self._brake = FailureBrake()
        self._ended = Ended()
        self._templates = templates(static_files())
        self._usage: dict[SeatName, tuple[float, asyncio.Future[tuple[Usage, ...] | None]]] = {}
        self.table: Table = {
            "/seat": {"GET": self._page},
            "/seat/": {"GET": self._to_page},
            "/seat/fragment": {"GET": self._fragment},
            "/seat/status.json": {"GET": self._json},
            "/seat/login": {"GET": self._to_page, "POST": self._login},
            "/seat/logout": {"POST": self._logout},
        }

    def public_url(self) -> str:
        """The box's address, as it is configured."""
        return self._pages.latest.view().public_url

    # Who asks

    def _session(self, request: Request) -> SeatName | None:
        cookie = request.cookies.get(COOKIE, "")
        if cookie in self._ended:
            return None
        return read_seat(self._pages.secret, cookie, self._pages.seats(), self._pages.now())

    def _who(self, request: Request) -> SeatName | Denied:
        found = self._session(request)
        if found is not None:
            return found
        asked = self._pages.seats().authenticate(request.scope["headers"], self._pages.now())
        return asked.name if isinstance(asked, Seat) else asked

    # Pages

    async def _page(self, request: Request) -> Response:
        seat = self._session(request)
        if seat is None:
            return self._login_page(200, "")
        cookie = request.cookies.get(COOKIE, "")
        return self._html(
            200,
            "seat.html",
            view=await self._view(seat),
            agents=agent_views(self._url(request), self._pages.latest.view(), seat),
            logout=csrf(self._pages.secret, cookie, _LOGOUT),
        )

    async def _to_page(self, request: Request) -> Response:
        return RedirectResponse("/seat", 303)

    async def _fragment(self, request: Request) -> Response:
        seat = self._session(request)
        if seat is None:
            return Response("Log in again.\n", 401, media_type="text/plain")
        return self._html(200, "seat_live.html", view=await self._view(seat))

    async def _json(self, request: Request) -> Response:
        seat = self._who(request)
        if isinstance(seat, Denied):
            return JSONResponse({"error": {"code": str(seat.reason), "message": seat.message}}, seat.status)
        return Response((await self._view(seat)).model_dump_json(), media_type="application/json")

    async def _view(self, seat: SeatName) -> SeatPageView:
        usage = await self._used(seat)
        return seat_view(self._pages.latest.view(), seat, usage)

    async def _used(self, seat: SeatName) -> tuple[Usage, ...] | None:
        """Whoever asks while the ledger is being read waits for the same answer."""
        now_s, asked = self._pages.monotonic(), self._usage.get(seat)
        if asked is None or now_s - asked[0] >= USAGE_S:
            begins_s = tuple(begin for _, begin in periods(self._pages.now()))
            asked = now_s, asyncio.ensure_future(self._pages.usage(seat, begins_s))
            self._usage[seat] = asked
        return await asyncio.shield(asked[1])  # who leaves does not end it for the others

    def _url(self, request: Request) -> str:
        """The address by which this browser reached the box: agents on the same machine reach it there too."""
        host = request.headers.get("host", "")
        if _HOST.fullmatch(host) is None:
            return self._pages.latest.view().public_url.rstrip("/")
        return f"{'https' if self._pages.secure(request) else 'http'}://{host}"

    # Login

    async def _login(self, request: Request) -> Response:
        try:
            form = await read_form(request)
        except TimeoutError:
            return self._login_page(408, "The form did not arrive in time.")
        if form is None:
            return self._login_page(413, "That is too long for a key.")
        key, book, now_s = form.get("key", ""), self._pages.seats(), self._pages.now()
        found = book.authenticate([(b"x-api-key", key.encode())], now_s)
        if isinstance(found, Denied):
            return self._login_failed(request, key, found)
        self._pages.log.info("seat.login", seat=found.name, peer=peer(request))
        response: Response = RedirectResponse("/seat", 303)
        cookie = issue_seat(self._pages.secret, found.name, book, now_s)
        self._ended.begin(cookie)
        self._set_cookie(request, response, cookie, LIFETIME_S)
        return response

    def _login_failed(self, request: Request, key: str, found: Denied) -> Response:
        monotonic_s = self._pages.monotonic()
        wait_s = self._brake.wait_s(monotonic_s)
        if wait_s:
            response = self._login_page(429, f"Too many failed logins. Try again in {wait_s} s.")
            response.headers["retry-after"] = str(wait_s)
            return response
        self._brake.failed(monotonic_s)
        self._pages.log.warning("seat.refused", reason=str(found.reason), seat=found.name, peer=peer(request))
        return self._login_page(found.status, _why_not(key, found))

    async def _logout(self, request: Request) -> Response:
        try:
            form = await read_form(request) or {}
        except TimeoutError:
            form = {}
        cookie = request.cookies.get(COOKIE, "")
        good = csrf_good(self._pages.secret, cookie, _LOGOUT, "", form.get("csrf", ""))
        if self._session(request) is not None:
            if not good:
                return self._login_page(403, "This form is not of your session. Open /seat again and log out there.")
            self._ended.end(cookie, self._pages.now())
        response = RedirectResponse("/seat", 303)
        self._set_cookie(request, response, "", 0)
        return response

    def _set_cookie(self, request: Request, response: Response, value: str, max_age: int) -> None:
        secure = self._pages.secure(request)
        response.set_cookie(
            COOKIE, value, max_age=max_age, path="/seat", secure=secure, httponly=True, samesite="strict"
        )

    def _login_page(self, status: int, error: str) -> Response:
        return self._html(status, "seat_login.html", error=error)

    def _html(self, status: int, template: str, **values: object) -> Response:
        return Response(self._templates.get_template(template).render(values), status, media_type="text/html")


def _why_not(key: str, found: Denied) -> str:
    if not key:
        return "Paste the key of your seat."
    if key.startswith(ADMIN_PREFIX):
        return "This is an admin token; its page is /admin."
    return found.message[:1].upper() + found.message[1:]
