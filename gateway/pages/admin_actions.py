"""POST /admin/actions/NAME: an operator's action over TCP, from a form of the page or with a token.

Touches the ASGI receive channel; actions.py does the rest. admin.py found out who asks, and that no other site does.

Rules:
- A session's form carries the CSRF value of session, action and seat; without it nothing is done. A token in a header
  needs none: no other site can send one. A request with both counts as the session's.
- Programs (`Accept: application/json`) get `{"ok", "said"}`; browsers go back to the page, or read why it was not done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from gateway.actions import SEAT_ACTIONS, Act, Actions
from gateway.pages.forms import read_form
from gateway.pages.sessions import STALE, csrf_good
from gateway.seats import AdminName

PREFIX = "/admin/actions/"
PAGE = "/admin#said"

Say = Callable[[int, str], Response]
"""(status, sentence) -> a page that says it, with the way back."""


@dataclass(frozen=True, slots=True)
class AdminActions:
    """One per gateway. `secret` signs the cookies."""

    actions: Actions
    secret: bytes

    def table(self) -> dict[str, Act]:
        """Path -> action."""
        return {PREFIX + name: act for name, act in self.actions.by_name().items()}

    async def answer(self, request: Request, who: AdminName, cookie: str | None, say: Say) -> Response:
        """Act for `who`. `cookie`: the one of the session, None when a token was sent in a header."""
        path = request.scope["path"]
        try:
            form = await read_form(request)
        except TimeoutError:
            return _answer(request, 408, "The form did not arrive in time.", say)
        if form is None:
            return _answer(request, 413, "That is too long for a form.", say)
        name, seat = path.removeprefix(PREFIX), form.get("seat", "")
        if cookie is not None and not csrf_good(self.secret, cookie, name, seat, form.get("csrf", "")):
            return _answer(request, 403, STALE, say)
        if name in SEAT_ACTIONS and not seat:
            return _answer(request, 400, "Name a seat: the field seat is missing.", say)
        done = await self.table()[path](who, seat)
        return _answer(request, 200 if done.ok else 409, done.said, say)


def _answer(request: Request, status: int, said: str, say: Say) -> Response:
    ok = status == 200
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"ok": ok, "said": said}, status)
    return RedirectResponse(PAGE, 303) if ok else say(status, said)
