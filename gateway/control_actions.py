"""The operator's actions and the events on the gateway's own Unix socket; its peers were checked. Touches nothing else.

Who acts: see unixserver.caller.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.actions import SEAT_ACTIONS, Act, Actions
from gateway.unixserver import caller


def action_routes(actions: Actions) -> list[Route]:
    """POST /NAME for each action, with ?seat= where it needs one, and GET /events."""

    def route(name: str, act: Act) -> Route:
        async def call(request: Request) -> Response:
            seat = request.query_params.get("seat", "")
            if name in SEAT_ACTIONS and not seat:
                return JSONResponse({"ok": False, "said": "name a seat: ?seat=NAME"}, 400)
            done = await act(caller(request), seat)
            return JSONResponse({"ok": done.ok, "said": done.said}, 200 if done.ok else 409)

        return Route(f"/{name}", call, methods=["POST"])

    async def events(request: Request) -> Response:
        recent = actions.core.events.recent()
        return JSONResponse({"events": [event.model_dump(mode="json") for event in recent]})

    acts = {name: act for name, act in actions.by_name().items() if name != "reload"}  # that one has a form of its own
    return [Route("/events", events), *(route(name, act) for name, act in acts.items())]
