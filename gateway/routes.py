"""What is served where: inference as bare ASGI, the rest through Starlette; everything else is 404.

Touches the ASGI channels. This is one of the two outermost shells: what nobody expected is caught here, logged
with its request id, and answered with 500.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from gateway import problem as problems
from gateway.actions import Actions
from gateway.bodies import Receive
from gateway.control_actions import action_routes
from gateway.core import Core
from gateway.count_route import COUNT_ROUTES, CountRoute
from gateway.count_route import serve as serve_count
from gateway.dialects import Dialect
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import RESPONSES
from gateway.exchange import Exchange
from gateway.ledger.view import keep as keep_row
from gateway.listing import is_anthropic, listed, one
from gateway.metrics import render as render_metrics
from gateway.observe import snapshot
from gateway.outcome import request_id_of
from gateway.problem import Problem
from gateway.responses import Headers, Scope, Send, problem_headers, respond
from gateway.seats import Denied
from gateway.status.compose import view
from gateway.unixserver import caller

_OF_PROXIES = ("x-forwarded-for", "x-forwarded-host", "forwarded", "x-real-ip", "via")
DIALECTS: dict[str, Dialect] = {dialect.path: dialect for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}
_INTERNAL = Problem(500, "internal_error", "The gateway failed on this request; it was logged.")
_SERVED = (*DIALECTS, *COUNT_ROUTES, "/v1/models")


class Application:
    """The ASGI app of the public socket."""

    def __init__(self, core: Core, admin: list[BaseRoute]) -> None:
        self._core = core
        self._rest = Starlette(routes=[*_routes(core), *admin], exception_handlers={HTTPException: _http_error})
        self._rest.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        dialect, count = DIALECTS.get(path), COUNT_ROUTES.get(path)
        if dialect is None and count is None:
            await self._rest(scope, receive, _with_request_id(scope, send))
        elif scope["method"] != "POST":
            problem = problems.method_not_allowed(path, "POST")
            headers = [(b"allow", b"POST"), *_headers(scope, problem)]
            await respond(send, 405, _shape(path).error(problem), headers)
        elif dialect is not None:
            await self._infer(dialect, scope, receive, send)
        elif count is not None:
            await self._count(count, scope, receive, send)

    async def _count(self, route: CountRoute, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await serve_count(self._core, route, scope, receive, send)
        except Exception as error:
            self._core.log.error("request.failed", request_id=request_id_of(scope), exc_info=error)
            await respond(send, 500, route.dialect.error(_INTERNAL), _headers(scope, _INTERNAL))

    async def _infer(self, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        core = self._core
        exchange = Exchange(core, dialect, scope, receive, send)
        try:
            await exchange.run()
        except Exception as error:
            core.log.error("request.failed", request_id=exchange.outcome.request_id, exc_info=error)
            if exchange.client.started:
                tap = exchange.reply.tap if exchange.reply is not None else None
                with contextlib.suppress(Exception):  # the second on the same request says nothing new
                    await exchange.client.put(dialect.stream_error(_INTERNAL, tap))
            elif not exchange.outcome.status:
                headers = [(b"x-request-id", exchange.outcome.request_id.encode()), *problem_headers(_INTERNAL)]
                await respond(send, 500, dialect.error(_INTERNAL), headers)
        finally:
            core.log.info("request.done", **exchange.outcome.fields())
            keep_row(core, exchange.outcome)


def _routes(core: Core) -> list[BaseRoute]:
    async def models(request: Request) -> Response:
        found = core.seats.value.authenticate(request.scope["headers"], core.now())
        if isinstance(found, Denied):
            return _problem(request, problems.denied(found.status, found.reason, found.message))
        anthropic, id = is_anthropic(request.headers), request.path_params.get("id")
        if id is None:
            return JSONResponse(listed(core.engine_state, anthropic=anthropic))
        row = one(core.engine_state, id, anthropic=anthropic)
        return (
            _problem(request, problems.unknown_model(id, core.engine_state.models))
            if row is None
            else JSONResponse(row)
        )

    async def hello(request: Request) -> Response:
        """Agents ask with HEAD whether anybody is there; a person with a browser wants the page."""
        return Response(b"") if request.method == "HEAD" else RedirectResponse("/admin")

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "engine": str(core.engine_state.phase)})

    async def ready(request: Request) -> Response:
        problem = core.why_not()
        return _problem(request, problem) if problem is not None else JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        if core.settings.public_url or not _from_loopback(request, core.settings.trusted_proxies):
            found = core.admins.value.authenticate(request.scope["headers"], core.now())
            if isinstance(found, Denied):
                return _problem(request, problems.denied(found.status, found.reason, found.message))
        body, content_type = render_metrics(view(core.box, snapshot(core), core.now()))
        return Response(body, media_type=content_type)

    return [
        Route("/", hello, methods=["GET"]),
        Route("/api/hello", hello, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{id:path}", models, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def control_app(core: Core) -> Starlette:
    """The app of the gateway's own Unix socket: liveness, status, reload, actions. Peers were checked."""

    async def live(request: Request) -> Response:
        places = core.limiter.view()
        now = {"streams": len(places.running), "waiting": len(places.waiting), "mode": core.mode}
        return JSONResponse(now | {"served": core.served})

    async def status(request: Request) -> Response:
        return Response(view(core.box, snapshot(core), core.now()).model_dump_json(), media_type="application/json")

    async def reload(request: Request) -> Response:
        done = await Actions(core).reload(caller(request), edited="edited" in request.query_params)
        errors = core.broken_files()
        if not done.ok:
            return JSONResponse({"reloaded": False, "errors": errors}, status_code=422)
        accounts = core.seats.value.accounts.values()
        off = [account.name for account in accounts if account.off_by]
        return JSONResponse({"reloaded": True, "seats": len(accounts), **({"off": off} if off else {})})

    return Starlette(
        routes=[
            Route("/live", live),
            Route("/status", status),
            Route("/reload", reload, methods=["POST"]),
            *action_routes(Actions(core)),
        ]
    )


def _headers(scope: Scope, problem: Problem) -> Headers:
    return [(b"x-request-id", request_id_of(scope).encode()), *problem_headers(problem)]


def _with_request_id(scope: Scope, send: Send) -> Send:
    """`send` that puts the request's id on the answer."""
    header = (b"x-request-id", request_id_of(scope).encode())

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), header]
        await send(message)

    return sending


def _problem(request: Request, problem: Problem) -> Response:
    headers = {name.decode(): value.decode() for name, value in problem_headers(problem)}
    shape = MESSAGES if is_anthropic(request.headers) else _shape(request.scope["path"])
    return Response(shape.error(problem), problem.status, headers, "application/json")


def _shape(path: str) -> Dialect:
    """The dialect in which an error on `path` is told, when no request on it is served."""
    return MESSAGES if path.startswith(MESSAGES.path) else CHAT


async def _http_error(request: Request, error: Exception) -> Response:
    """What Starlette's router refuses."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 404:
        return _problem(request, problems.unknown_path(path, _SERVED))
    headers = dict(error.headers or {})
    response = _problem(request, problems.method_not_allowed(path, headers.get("Allow", "GET")))
    response.headers.update(headers)
    return response


def _from_loopback(request: Request, trusted: tuple[str, ...]) -> bool:
    """Whether the request comes from this machine: the peer, or behind a trusted proxy the address it names
    last, in whichever of several headers. A proxy that is not trusted, or that names nobody, is taken for the
    outside; so is who asks for another host than this one, as the page of a stranger does whose name was made to
    mean 127.0.0.1."""
    host = request.headers.get("host", "")
    if not _is_loopback(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]):
        return False
    peer = request.client.host if request.client else ""
    if peer in trusted:
        peer = ",".join(request.headers.getlist("x-forwarded-for")).split(",")[-1].strip()
    elif any(name in request.headers for name in _OF_PROXIES):
        return False
    return _is_loopback(peer)


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
