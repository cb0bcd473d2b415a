"""Answers a client that wants to know how many tokens a request has. Touches the ASGI channels and the engine.

Rules:
- Not behind admission: an agent asks for this to decide whether it compacts, also when the box is full.
- Counted is what the engine would get, by the engine itself. Where it cannot, the answer says so; never a guess,
  and never a 404.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson

from gateway import problem as problems
from gateway.bodies import ClientGoneError, Receive, gone
from gateway.core import Core
from gateway.counting import body_for, is_exact
from gateway.dialects import Dialect
from gateway.dialects.messages import MESSAGES
from gateway.dialects.responses import RESPONSES
from gateway.intake import prepare, read, seat_of
from gateway.outcome import request_id_of
from gateway.problem import Problem
from gateway.responses import Scope, Send, problem_headers, respond


@dataclass(frozen=True, slots=True)
class CountRoute:
    """One path; `answer` is what stands beside the number."""

    path: str
    dialect: Dialect
    answer: dict[str, str]


COUNT_ROUTES = {
    route.path: route
    for route in (
        CountRoute("/v1/messages/count_tokens", MESSAGES, {}),
        CountRoute("/v1/responses/input_tokens", RESPONSES, {"object": "response.input_tokens"}),
    )
}


async def serve(core: Core, route: CountRoute, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request, unless the client goes away."""
    answer: int | Problem | None = None
    try:
        answer = await _answer(core, route, scope, receive)
    except* ClientGoneError:
        pass
    if answer is None:
        return
    headers = [(b"x-request-id", request_id_of(scope).encode())]
    if isinstance(answer, Problem):
        headers += problem_headers(answer)
        await respond(send, answer.status, route.dialect.error(answer), headers)
    else:
        await respond(send, 200, orjson.dumps({"input_tokens": answer} | route.answer), headers)


async def _answer(core: Core, route: CountRoute, scope: Scope, receive: Receive) -> int | Problem:
    seat = seat_of(core, scope)
    if isinstance(seat, Problem):
        return seat
    with core.bodies.reserve(seat.name) as reservation:
        raw = await read(core, scope, receive, reservation)
        if isinstance(raw, Problem):
            return raw
        prepared = await prepare(raw, route.dialect, core, seat.name)
        if isinstance(prepared, Problem):
            return prepared
        closed = core.why_not()
        if closed is not None:
            return closed
        engine, path = core.engine, route.dialect.path
        assert engine is not None
        counter = core.engine_state.abilities.counters.get(path)
        if counter is None or not is_exact(path, counter):
            return problems.dialect_not_served(route.path, ())
        body = body_for(path, counter, prepared.body)
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(gone(receive))
            tokens = await core.counting.asked(seat.name, engine.address, engine.key, counter, body)
            watcher.cancel()
        return problems.count_failed() if tokens is None else tokens
