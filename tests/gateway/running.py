"""For tests: the gateway in the test's own loop, behind a free port, in front of a fake engine in the same loop.

Touches sockets, the test's temporary folder and the running loop. Rules: application, protocol and settings are
those of app.py; only uvicorn's own main loop (its ticks and signals) is left out, so that start and stop take no
time; leaving the context cuts every connection.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway import app as composition
from gateway.core import Core
from gateway.keys import digest_of
from gateway.limiter import Limiter, Place
from gateway.pages import site
from gateway.routes import Application
from gateway.settings import AdmissionSettings, GatewaySettings, LimitSettings, StaticEngine
from gateway.state import EngineAbilities, EngineProfile
from gateway.sweep import sweep_all
from gateway.unixserver import Server
from tests.fake_engine.knobs import Knobs, merged
from tests.fake_engine.server import FakeEngine
from tests.fake_engine.serving import serving

SEATS = ("a", "b", "c", "d", "e")
ADMIN_TOKEN = "moe-admin-token-of-root"
ENGINE_KEY = "engine-secret"
ABILITIES = EngineAbilities(
    dialects=("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    counters={
        "/v1/chat/completions": "/v1/chat/completions/input_tokens",
        "/v1/completions": "/tokenize",
        "/v1/responses": "/v1/responses/input_tokens",
        "/v1/messages": "/v1/messages/count_tokens",
    },
    continuation=("/v1/chat/completions", "/v1/messages"),
    images=False,
)
"""What the fake engine can do by its default knobs."""
FAST = {"time_scale": 0.02}
"""Knobs of an engine that needs .16 ms a token."""


def key_of(seat: str) -> str:
    """The key of a seat."""
    return f"moe-key-of-{seat}"


def seats_toml(*, disabled: str = "", expired: str = "") -> str:
    """A seat file with SEATS, of which one may be disabled and one expired."""
    rows = []
    for seat in SEATS:
        rows.append(f'[seats.{seat}]\ndigest = "{digest_of(key_of(seat))}"')
        rows.append("disabled = true" if seat == disabled else "")
        rows.append("expires = 2020-01-31" if seat == expired else "")
    return "\n".join(rows) + "\n"


@dataclass(slots=True)
class Running:
    """A gateway that answers at `host:port`. `log` are its log lines as dicts."""

    core: Core
    host: str
    port: int
    seats_file: Path
    fake: FakeEngine | None
    engine_url: str
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def engine(self) -> FakeEngine:
        """The fake engine; only where there is one in this loop."""
        assert self.fake is not None
        return self.fake

    def set_knobs(self, **knobs: object) -> None:
        """Merge knobs into the running engine."""
        self.engine.apply(merged(self.engine.knobs, knobs))

    def write_seats(self, text: str) -> None:
        """Change the seat file and let the gateway see it now."""
        self.seats_file.write_text(text)
        self.core.look_at_files(force=True)

    def done(self) -> list[dict[str, Any]]:
        """The log lines of requests that are over."""
        return [line for line in self.log if line["event"] == "request.done"]

    async def until(self, true: Callable[[], bool], limit_s: float = 5.0) -> None:
        """Wait until it is so. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while not true():  # nothing tells it when
                await asyncio.sleep(0.001)

    async def idle(self, limit_s: float = 5.0) -> None:
        """Wait until nothing runs, and check that nothing is left."""
        await self.until(lambda: not self.core.live, limit_s)
        view = self.core.limiter.view()
        assert (view.running, view.waiting) == ((), ())
        assert self.core.limiter._places == {}
        assert self.core.bodies.used_bytes == 0


def settings_of(folder: Path, engine_url: str, overrides: Mapping[str, Any]) -> GatewaySettings:
    """Settings in front of `engine_url`; `overrides` may hold admission, limits, models, abilities, context_tokens
    and plain fields."""
    given = dict(overrides)
    seats, admins, key = folder / "seats.toml", folder / "admins.toml", folder / "engine.key"
    seats.write_text(given.pop("seats", seats_toml()))
    admins.write_text(f'[admins.root]\ndigest = "{digest_of(ADMIN_TOKEN)}"\n')
    key.write_text(ENGINE_KEY + "\n")
    floor, streams = given.pop("floor_tok_per_s", 10.0), given.pop("streams", 4)
    kv_tokens = given.pop("kv_tokens", None)
    profile = EngineProfile(
        name="fake", floor_tok_per_s=floor, cold_tokens=12_000, streams=streams, kv_tokens=kv_tokens
    )
    models = given.pop("models", ("fake-model",))
    return GatewaySettings(
        seats_file=seats,
        admins_file=admins,
        state_dir=folder,
        engine=StaticEngine(
            url=engine_url,
            key_file=key,
            models=models,
            context_tokens=given.pop("context_tokens", 262_144),
            profile=profile,
            abilities=given.pop("abilities", ABILITIES),
        ),
        admission=AdmissionSettings(**given.pop("admission", {})),
        limits=LimitSettings(**given.pop("limits", {})),
        **given,
    )


@asynccontextmanager
async def running(
    knobs: Mapping[str, object] | None = None,
    *,
    engine_url: str | None = None,
    host: str = "127.0.0.1",
    sweep_s: float = 0.1,
    kernel_stall_s: float | None = None,
    **overrides: Any,
) -> AsyncIterator[Running]:
    """Start a gateway. `engine_url` puts it in front of another engine than one made of `knobs`;
    `kernel_stall_s` 0 leaves clients that stall to the gateway alone."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fake: FakeEngine | None = None
        if engine_url is None:
            served = await stack.enter_async_context(serving(merged(Knobs(), FAST | dict(knobs or {})), key=ENGINE_KEY))
            fake, engine_url = served.engine, served.url
        settings = settings_of(folder, engine_url, overrides)
        log: list[dict[str, Any]] = []
        core = composition._core(settings, _log_into(log), asyncio.get_running_loop())
        assert (core.seats.broken, core.admins.broken) == (None, None)
        port = await stack.enter_async_context(_served(core, host, kernel_stall_s))
        sweeper = asyncio.create_task(_sweep(core, sweep_s))
        stack.callback(sweeper.cancel)
        yield Running(core, host, port, settings.seats_file, fake, engine_url, log)


@asynccontextmanager
async def _served(core: Core, host: str, kernel_stall_s: float | None) -> AsyncIterator[int]:
    application = Application(core, site.routes(core))
    stall_s = core.settings.limits.client_stall_s if kernel_stall_s is None else kernel_stall_s
    config = composition._config(application, stall_s, core.connections)
    server = Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    sock = socket.create_server((host, 0), backlog=1024)
    sock.setblocking(False)
    await server.startup(sockets=[sock])
    try:
        yield sock.getsockname()[1]
    finally:
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        for exchange in list(core.live):
            if exchange.reply is not None:
                exchange.reply.abort()
        async with asyncio.timeout(5):
            while server.server_state.tasks:
                await asyncio.wait(list(server.server_state.tasks))
        sock.close()
        await asyncio.sleep(0)


async def _sweep(core: Core, sweep_s: float) -> None:
    while True:
        await asyncio.sleep(sweep_s)
        sweep_all(core, core.limiter.loop.time())


def _log_into(lines: list[dict[str, Any]]) -> Any:
    def keep(_: Any, __: str, fields: Any) -> Any:
        lines.append(dict(fields))
        raise structlog.DropEvent

    return structlog.wrap_logger(
        structlog.PrintLogger(), processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(20)
    )


def times_left(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When places are left from now on, monotonic seconds."""
    times: list[float] = []
    leave = Limiter._leave

    def noted(self: Limiter, place: Place, tokens: float) -> None:
        leave(self, place, tokens)
        times.append(time.monotonic())

    monkeypatch.setattr(Limiter, "_leave", noted)
    return times
