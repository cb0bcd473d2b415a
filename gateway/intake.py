"""Turns the bytes of a body into a request that passed the checks. Touches the loop's clock (the turn).

Rules:
- A body is parsed once, on the loop; a large one waits for its turn first, see `bodies.LargeBodies`.
- Nothing of a body is in what is said about it, but the names and small values of fields.
"""

from __future__ import annotations

from gateway import problem as problems
from gateway.bodies import INTRICATE_FROM_BYTES, LargeBodies, parse, too_intricate
from gateway.dialects import Dialect, Prepared
from gateway.problem import Problem


async def prepare(raw: bytes, dialect: Dialect, large_bodies: LargeBodies) -> Prepared | Problem:
    """The request of a body, or why there is none."""
    if len(raw) < INTRICATE_FROM_BYTES:
        return checked(raw, dialect)
    async with large_bodies.turn():
        return checked(raw, dialect)


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
