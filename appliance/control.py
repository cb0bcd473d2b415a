"""The app of the daemon's Unix socket: state with long poll, and the operator's verbs. Peers were checked.

Touches nothing itself; the daemon passes in what each verb does, and who notes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from appliance.board import Board
from gateway.unixserver import caller

WAIT_MAX_S = 60.0

Verb = Callable[[Mapping[str, str]], Awaitable[tuple[int, Mapping[str, object]]]]
"""Does something, by the query of the request, and says (HTTP status, what happened)."""
Note = Callable[[str, str, bool], None]
"""Keeps (who, verb, whether it was done)."""


def control_app(board: Board, verbs: Mapping[str, Verb], note: Note) -> Starlette:
    """GET /state?after=REVISION&wait_s=SECONDS, and POST /VERB for each verb. `note` is told of it, but with ?noted=1:
    then whoever asks has noted it."""

    async def state(request: Request) -> Response:
        try:
            after = int(request.query_params.get("after", "-1"))
            wait_s = min(WAIT_MAX_S, max(0.0, float(request.query_params.get("wait_s", "0"))))
        except ValueError:
            return JSONResponse({"error": "after and wait_s must be numbers"}, status_code=400)
        shown = await board.newer_than(after, wait_s)
        return Response(shown.model_dump_json(), media_type="application/json")

    def route(name: str, verb: Verb) -> Route:
        async def call(request: Request) -> Response:
            status, said = await verb(request.query_params)
            if "noted" not in request.query_params:
                note(caller(request), name, status < 400)
            return JSONResponse(dict(said), status_code=status)

        return Route(f"/{name}", call, methods=["POST"])

    return Starlette(routes=[Route("/state", state), *(route(name, verb) for name, verb in verbs.items())])
