"""Takes a request in: its bytes within the budget, its seat, and what a dialect makes of it.

Touches the ASGI receive channel and the loop's clock (the turn of a large body).

Rules:
- A body is parsed once, on the loop; a large one waits for its turn first, see `bodies.LargeBodies`.
- Nothing of a body is in what is said about it, but the names and small values of fields.
"""

from __future__ import annotations

import time

from gateway import problem as problems
from gateway.bodies import Receive, Reservation, read_body
from gateway.core import Core
from gateway.dialects import Dialect, Prepared
from gateway.parsing import parse, takes_long, too_intricate
from gateway.problem import Problem
from gateway.responses import Scope
from gateway.seats import Denied, Seat


def seat_of(core: Core, scope: Scope) -> Seat | Problem:
    """Whose request it is, by its headers."""
    found = core.seats.value.authenticate(scope["headers"], time.time())
    return problems.denied(found.status, found.reason, found.message) if isinstance(found, Denied) else found


async def read(core: Core, scope: Scope, receive: Receive, reservation: Reservation) -> bytes | Problem:
    """The whole body, or why not. Raises ClientGoneError when the client goes away before its end."""
    limits = core.settings.limits
    headers = dict(scope["headers"])
    declared = headers.get(b"content-length")
    return await read_body(
        receive,
        int(declared) if declared is not None else None,
        headers.get(b"content-encoding"),
        reservation,
        limits.body_max_bytes,
        limits.body_timeout_s,
    )


async def prepare(raw: bytes, dialect: Dialect, core: Core, seat: str) -> Prepared | Problem:
    """The request of a body under the engine's own name of its model, or why there is none."""
    if not takes_long(raw):
        return _named(core, checked(raw, dialect))
    if core.large_bodies.crowded(seat):
        return problems.bodies_full()
    async with core.large_bodies.turn(seat):
        return _named(core, checked(raw, dialect))


def _named(core: Core, prepared: Prepared | Problem) -> Prepared | Problem:
    return prepared if isinstance(prepared, Problem) else core.named(prepared)


def checked(raw: bytes, dialect: Dialect) -> Prepared | Problem:
    """The same at once, whatever the size."""
    if too_intricate(raw):
        return problems.bad_request("The body has too many values.", code="too_intricate")
    try:
        body = parse(raw)
    except ValueError as error:
        return problems.bad_request(f"The body is not JSON: {error}.", code="not_json")
    if not isinstance(body, dict):
        return problems.bad_request("The body must be a JSON object.", code="not_json")
    return dialect.prepare(raw, body)
