"""The page of one seat over TCP: login with its key, own streams, use, settings to copy. Touches ASGI and the clocks.

Rules:
- A seat key or its session opens this page and nothing else; an admin's token opens none of it.
- Nothing of other seats is ever put into the view; see seat_view.py.
- The ledger is asked in a thread, and at most once in USAGE_S for each seat, since every developer may leave the page
  open all day.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from gateway.keys import ADMIN_PREFIX
from gateway.ledger.rows import Usage
from gateway.pages.dispatch import Table, page_routes
from gateway.pages.login import LoginAnswers, Served
from gateway.pages.seat_view import SeatPageView, agent_views, periods, seat_view
from gateway.pages.sessions import issue_seat, read_seat
from gateway.seats import Denied, Headers, Seat, SeatBook, SeatName

COOKIE = "moe_seat"
USAGE_S = 20.0
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatPages(Served):
    """What the page needs of the gateway. `usage`: what a seat used since each of some times (wall clock), None when
    no ledger can be read."""

    seats: Callable[[], SeatBook]
    usage: Callable[[str, tuple[float, ...]], Awaitable[tuple[Usage, ...] | None]]


def seat_routes(pages: SeatPages) -> list[BaseRoute]:
    """The routes of /seat and everything below it."""
    return page_routes("/seat", _SeatAnswers(pages).table, lambda: pages.latest.view().public_url)


class _SeatAnswers(LoginAnswers[SeatName]):
    home, cookie, field = "/seat", COOKIE, "key"

    def __init__(self, pages: SeatPages) -> None:
        super().__init__(pages)
        self._pages = pages
        self._usage: dict[SeatName, tuple[float, asyncio.Future[tuple[Usage, ...] | None]]] = {}
        self.table: Table = {
            **self.login_table(),
            "/seat": {"GET": self._page},
            "/seat/fragment": {"GET": self._fragment},
            "/seat/status.json": {"GET": self._json},
        }

    # Pages

    async def _page(self, request: Request) -> Response:
        seat = self._session(request)
        if seat is None:
            return self._login_page(200, "")
        return self._html(
            200,
            "seat.html",
            view=await self._view(seat),
            agents=agent_views(self._url(request), self._pages.latest.view(), seat),
            logout=self._form_value(request)("logout", ""),
        )

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

    def _asks(self, headers: Headers, now_s: float) -> SeatName | Denied:
        return _name(self._pages.seats().authenticate(headers, now_s))

    def _owner(self, key: str, now_s: float) -> SeatName | Denied:
        return _name(self._pages.seats().check(key, now_s))

    def _issued(self, name: SeatName, now_s: float) -> str:
        return issue_seat(self._pages.secret, name, self._pages.seats(), now_s)

    def _read(self, cookie: str, now_s: float) -> SeatName | None:
        return read_seat(self._pages.secret, cookie, self._pages.seats(), now_s)

    def _logged_in(self, name: SeatName, peer: str) -> None:
        self._pages.log.info("seat.login", seat=name, peer=peer)

    def _refused(self, found: Denied, peer: str) -> None:
        self._pages.log.warning("seat.refused", reason=str(found.reason), seat=found.name, peer=peer)

    def _why_not(self, key: str) -> str:
        if key.startswith(ADMIN_PREFIX):
            return "This is an admin token; its page is /admin."
        return "" if key else "Paste the key of your seat."

    def _login_page(self, status: int, error: str) -> Response:
        return self._html(status, "seat_login.html", error=error)


def _name(found: Seat | Denied) -> SeatName | Denied:
    return found if isinstance(found, Denied) else found.name
