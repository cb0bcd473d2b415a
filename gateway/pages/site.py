"""Composes the pages of one gateway: the operator's and that of each seat. Touches the cookies' secret file and, in a
thread, the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.routing import BaseRoute

from gateway.actions import Actions
from gateway.core import Core
from gateway.errors import MoeError
from gateway.files import replace_file
from gateway.ledger.reading import usage
from gateway.ledger.rows import Usage
from gateway.observe import snapshot
from gateway.pages.admin import AdminPages, admin_routes
from gateway.pages.admin_actions import AdminActions
from gateway.pages.latest import Latest
from gateway.pages.seat import SeatPages, seat_routes
from gateway.status.compose import view


def routes(core: Core) -> list[BaseRoute]:
    """The operator's page and that of each seat."""

    def secure(request: Request) -> bool:
        behind_proxy = request.client is not None and request.client.host in core.settings.trusted_proxies
        return request.url.scheme == "https" or (
            behind_proxy and request.headers.get("x-forwarded-proto", "") == "https"
        )

    secret = cookie_secret(core.settings.state_dir / "cookie.secret")
    latest = Latest(lambda: view(core.box, snapshot(core), core.now()), time.monotonic)
    operator = AdminPages(
        latest=latest,
        admins=lambda: core.admins.value,
        log=core.log,
        events=core.events,
        secret=secret,
        actions=AdminActions(Actions(core), secret),
        secure=secure,
    )
    seat = SeatPages(
        latest=latest,
        seats=lambda: core.seats.value,
        usage=partial(_used, core),
        log=core.log,
        secret=secret,
        secure=secure,
    )
    return [*admin_routes(operator), *seat_routes(seat)]


async def _used(core: Core, seat: str, begins_s: tuple[float, ...]) -> tuple[Usage, ...] | None:
    """What a seat used since each of the times; None when no ledger can be read."""
    if core.ledger is None:
        return None
    try:
        return await asyncio.to_thread(_usages, core.ledger.path, seat, begins_s, core.now())
    except MoeError:
        return None


def _usages(path: Path, seat: str, begins_s: tuple[float, ...], now_s: float) -> tuple[Usage, ...]:
    return tuple(next(iter(usage(path, begin_s, now_s, seat)), Usage(seat)) for begin_s in begins_s)


def cookie_secret(path: Path) -> bytes:
    """32 bytes that outlive a gateway, so that a restart logs nobody out. Made once, 0600."""
    with contextlib.suppress(OSError):
        found = path.read_bytes()
        if len(found) >= 32:
            return found
    made = secrets.token_bytes(32)
    with contextlib.suppress(OSError):  # a full disk: the next gateway makes another, and people log in again
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, made, 0o600)
    return made
