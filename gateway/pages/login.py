"""Logging in and out of a page, the operator's and a seat's alike: form, session, brake. Touches the ASGI channels.

Rules:
- Each page has a cookie of its own, SameSite=Strict and for its path alone, and a brake of its own.
- What was typed is never logged, never in an address, and never shown again.
- The brake on failed logins never stops the right key: anybody can fail, and would lock everybody out.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.logs import Log
from gateway.pages.assets import static_files, templates
from gateway.pages.dispatch import Table, peer
from gateway.pages.forms import read_form
from gateway.pages.latest import Latest
from gateway.pages.live import FormValue
from gateway.pages.sessions import LIFETIME_S, STALE, Ended, FailureBrake, csrf, csrf_good
from gateway.seats import Denied, Headers

N = TypeVar("N", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a page needs of the gateway. `latest`: how the box is; `secret`: 32 bytes or more that sign the cookies;
    `secure`: whether a request came over https; `now` and `monotonic` are the clocks, seconds."""

    latest: Latest
    log: Log
    secret: bytes
    secure: Callable[[Request], bool]
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class LoginAnswers(ABC, Generic[N]):
    """The answers of one page that have to do with who asks. `home`: its path; `cookie`: the name of its cookie;
    `field`: the field of its form, and what is typed there is called so too."""

    home: ClassVar[str]
    cookie: ClassVar[str]
    field: ClassVar[str]

    def __init__(self, served: Served) -> None:
        self._served = served
        self._brake = FailureBrake()
        self._ended = Ended()
        self._assets = static_files()
        self._templates = templates(self._assets)

    def login_table(self) -> Table:
        """Path -> method -> answer."""
        return {
            f"{self.home}/": {"GET": self._to_page},
            f"{self.home}/login": {"GET": self._to_page, "POST": self._login},
            f"{self.home}/logout": {"POST": self._logout},
        }

    # What differs between the pages

    @abstractmethod
    def _asks(self, headers: Headers, now_s: float) -> N | Denied:
        """Who sent a request with these headers."""

    @abstractmethod
    def _owner(self, key: str, now_s: float) -> N | Denied:
        """Whose key this is."""

    @abstractmethod
    def _issued(self, name: N, now_s: float) -> str:
        """A cookie for `name`."""

    @abstractmethod
    def _read(self, cookie: str, now_s: float) -> N | None:
        """Whose cookie this is."""

    @abstractmethod
    def _logged_in(self, name: N, peer: str) -> None:
        """Log it."""

    @abstractmethod
    def _refused(self, found: Denied, peer: str) -> None:
        """Log it."""

    @abstractmethod
    def _why_not(self, key: str) -> str:
        """What to say of a key that is none here; "" = what the book says of it."""

    @abstractmethod
    def _login_page(self, status: int, error: str) -> Response:
        """The form."""

    # Who asks

    def _session(self, request: Request) -> N | None:
        cookie = self._cookie(request)
        return None if cookie in self._ended else self._read(cookie, self._served.now())

    def _who(self, request: Request) -> N | Denied:
        """By session or by a key in the headers."""
        found = self._session(request)
        return found if found is not None else self._asks(request.scope["headers"], self._served.now())

    def _cookie(self, request: Request) -> str:
        return request.cookies.get(self.cookie, "")

    def _form_value(self, request: Request) -> FormValue:
        """For the hidden field `csrf` of each form."""
        return partial(csrf, self._served.secret, self._cookie(request))

    # In and out

    async def _to_page(self, request: Request) -> Response:
        return RedirectResponse(self.home, 303)

    async def _login(self, request: Request) -> Response:
        try:
            form = await read_form(request)
        except TimeoutError:
            return self._login_page(408, "The form did not arrive in time.")
        if form is None:
            return self._login_page(413, f"That is too long for a {self.field}.")
        key, now_s = form.get(self.field, ""), self._served.now()
        found = self._owner(key, now_s)
        if isinstance(found, Denied):
            return self._login_failed(request, key, found)
        self._logged_in(found, peer(request))
        cookie = self._issued(found, now_s)
        self._ended.begin(cookie)
        return self._to_page_with(request, cookie, LIFETIME_S)

    def _login_failed(self, request: Request, key: str, found: Denied) -> Response:
        monotonic_s = self._served.monotonic()
        wait_s = self._brake.wait_s(monotonic_s)
        if wait_s:
            response = self._login_page(429, f"Too many failed logins. Try again in {wait_s} s.")
            response.headers["retry-after"] = str(wait_s)
            return response
        self._brake.failed(monotonic_s)
        self._refused(found, peer(request))
        return self._login_page(found.status, self._why_not(key) or found.message[:1].upper() + found.message[1:])

    async def _logout(self, request: Request) -> Response:
        try:
            form = await read_form(request) or {}
        except TimeoutError:
            form = {}
        if self._session(request) is not None:
            cookie = self._cookie(request)
            if not csrf_good(self._served.secret, cookie, "logout", "", form.get("csrf", "")):
                return self._login_page(403, STALE)
            self._ended.end(cookie, self._served.now())
        return self._to_page_with(request, "", 0)

    def _to_page_with(self, request: Request, cookie: str, max_age_s: int) -> Response:
        response = RedirectResponse(self.home, 303)
        secure = self._served.secure(request)
        response.set_cookie(
            self.cookie, cookie, max_age=max_age_s, path=self.home, secure=secure, httponly=True, samesite="strict"
        )
        return response

    def _html(self, status: int, template: str, **values: object) -> Response:
        return Response(self._templates.get_template(template).render(values), status, media_type="text/html")
