"""Takes a request in: its bytes within the budget, its seat, and what a dialect makes of it.

Touches the ASGI receive channel and the loop's clock (the turn of a large body).

Rules:
- A body is parsed once, on the loop; a large one waits for its turn first, see `bodies.LargeBodies`.
- Nothing of a body is in what is said about it, but the names and small values of fields.
- Writing a prompt in canonical form and naming its blocks takes milliseconds: above IN_THREAD_BYTES off the loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from gateway import problem as problems
from gateway.bodies import Receive, Reservation, read_body
from gateway.core import Core
from gateway.dialects import Dialect, Prepared
from gateway.learning.prompt import CanonicalPrompt
from gateway.parsing import parse, takes_long, too_intricate
from gateway.prefix.fingerprint import Fingerprint, fingerprint_of
from gateway.problem import Problem
from gateway.responses import Scope
from gateway.seats import Denied, Seat

IN_THREAD_BYTES = 64 * 1024


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


@dataclass(frozen=True, slots=True)
class Taken:
    """A request that passed the checks, and its prompt: the names of its blocks and its canonical text."""

    prepared: Prepared
    print_: Fingerprint
    canonical: CanonicalPrompt


async def take(raw: bytes, dialect: Dialect, core: Core, seat: str) -> Taken | Problem:
    """The request of a body under the engine's own name of its model, or why there is none."""
    found = await _in_turn(raw, dialect, core, seat)
    if isinstance(found, Problem):
        return found
    checked_, body = found
    prepared = core.named(checked_)
    if isinstance(prepared, Problem):
        return prepared
    in_thread = len(raw) > IN_THREAD_BYTES
    canonical, print_ = await asyncio.to_thread(_described, body) if in_thread else _described(body)
    return Taken(prepared, print_, canonical)


async def prepare(raw: bytes, dialect: Dialect, core: Core, seat: str) -> Prepared | Problem:
    """The same without its prompt."""
    found = await _in_turn(raw, dialect, core, seat)
    return found if isinstance(found, Problem) else core.named(found[0])


async def _in_turn(raw: bytes, dialect: Dialect, core: Core, seat: str) -> tuple[Prepared, dict[str, Any]] | Problem:
    """A large body waits for its turn."""
    if not takes_long(raw):
        return _parsed(raw, dialect)
    if core.large_bodies.crowded(seat):
        return problems.bodies_full()
    async with core.large_bodies.turn(seat):
        return _parsed(raw, dialect)


def _described(body: dict[str, Any]) -> tuple[CanonicalPrompt, Fingerprint]:
    canonical = CanonicalPrompt.of(body)
    return canonical, fingerprint_of(canonical.segments())


def checked(raw: bytes, dialect: Dialect) -> Prepared | Problem:
    """What a dialect makes of a body, at once, whatever its size."""
    found = _parsed(raw, dialect)
    return found if isinstance(found, Problem) else found[0]


def _parsed(raw: bytes, dialect: Dialect) -> tuple[Prepared, dict[str, Any]] | Problem:
    if too_intricate(raw):
        return problems.bad_request("The body has too many values.", code="too_intricate")
    try:
        body = parse(raw)
    except ValueError as error:
        return problems.bad_request(f"The body is not JSON: {error}.", code="not_json")
    if not isinstance(body, dict):
        return problems.bad_request("The body must be a JSON object.", code="not_json")
    prepared = dialect.prepare(raw, body)
    return prepared if isinstance(prepared, Problem) else (prepared, body)
