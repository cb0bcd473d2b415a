"""A box for clients: gateway and fake engine in the test's loop, one seat for each client, streams that hold it full.

Touches sockets and the running loop. Rules: the log tells clients apart by their seat, which has the client's name.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.agents.settings import Target
from gateway.exchange import Exchange
from gateway.keys import digest_of
from tests.agents.clients import Client, Seat, Task
from tests.agents.processes import Desk, Run, started
from tests.fake_engine.stats import RequestRecord
from tests.fake_engine.tools import tool_names
from tests.gateway.forms import is_beat
from tests.gateway.running import Running, key_of, running
from tests.gateway.wire import chat, connect, post

ANSWER = "The pear is in the second drawer, next to the blue cup and three spoons."
"""What the fake engine says; more than one token, so that it can be cut."""
MODEL = "fake-model"
CONTEXT_TOKENS = 262_144
HOLDER = "holder"
STANDING_MS = 1e9
"""A pace at which no second token comes."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as the engine got it."""

    path: str
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.raw)
        return fields

    @property
    def text(self) -> str:
        """The body as text, for looking whether something is in it."""
        return self.raw.decode()

    @property
    def tools(self) -> set[str]:
        """The names of the tools that it offers."""
        return set(tool_names(self.body))


class Heard:
    """What one stream's client is sent from now on, and when (monotonic clock)."""

    def __init__(self, exchange: Exchange) -> None:
        self.path = exchange.dialect.path
        self.sent: list[tuple[float, bytes]] = []
        self._send = exchange.client.asgi_send
        exchange.client.asgi_send = self._record

    async def _record(self, message: MutableMapping[str, Any]) -> None:
        await self._send(message)
        if message.get("body"):
            self.sent.append((time.monotonic(), message["body"]))

    @property
    def beats_s(self) -> list[float]:
        """When it was sent a heartbeat in the form of its dialect, and nothing else with it."""
        return [at_s for at_s, data in self.sent if data.endswith(b"\n\n") and is_beat(self.path, data[:-2])]


@dataclass(frozen=True, slots=True)
class Box:
    """A gateway with a fake engine, and desks for people in front of it."""

    gateway: Running
    folder: Path
    context_tokens: int = CONTEXT_TOKENS

    def seat(self, client: Client) -> Seat:
        """What this client is told."""
        return Seat(Target(self.gateway.base_url, MODEL, self.context_tokens), key_of(client.name))

    def desk(self, client: Client, name: str = "desk") -> Desk:
        """A place of this client's own; the same name is the same place."""
        return Desk.at(self.folder / client.name / name)

    @asynccontextmanager
    async def run(self, client: Client, task: Task | str, desk: Desk | None = None) -> AsyncIterator[Run]:
        """Start a client; it is killed when the block ends."""
        desk = desk or self.desk(client)
        task = Task(task) if isinstance(task, str) else task
        async with started(client.launch(desk, self.seat(client), task), desk) as run:
            yield run

    @asynccontextmanager
    async def runs(self, clients: Sequence[Client], task: str) -> AsyncIterator[dict[Client, Run]]:
        """Start several, all at once."""
        async with AsyncExitStack() as stack:
            yield {client: await stack.enter_async_context(self.run(client, task)) for client in clients}

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        """Every ticket is held by a stream that has begun. They go on to their end when the block ends."""
        streams = self.gateway.core.limiter.policy.limits.streams
        pace = self.gateway.engine.knobs.ms_per_token
        self.gateway.set_knobs(ms_per_token=[STANDING_MS])
        async with AsyncExitStack() as stack:
            wires = []
            for number in range(streams):
                request = post(chat(f"hold {number}", stream=True), seat=HOLDER)
                wires.append(await stack.enter_async_context(connect(self.gateway, request)))
            for wire in wires:
                assert (await wire.head())[0] == 200
                assert await wire.chunk()
            assert self.gateway.core.limiter.running == streams
            yield
            self.gateway.set_knobs(ms_per_token=list(pace))
            for wire in wires:
                while await wire.chunk():
                    pass

    def live(self, client: Client) -> list[Exchange]:
        """Its requests that are not over."""
        return [item for item in self.gateway.core.live if item.outcome.seat == client.name]

    def tickets(self, client: Client) -> int:
        """How many tickets its seat holds or waits for."""
        view = self.gateway.core.limiter.view()
        return sum(seat == client.name for _, seat, *_ in (*view.running, *view.waiting))

    def done(self, client: Client) -> list[dict[str, Any]]:
        """The log lines of its requests that are over."""
        return [line for line in self.gateway.done() if line.get("seat") == client.name]

    async def over(self, client: Client) -> list[dict[str, Any]]:
        """The log lines of all its requests, once none runs: a client may have ended before its last line is there."""
        await self.gateway.until(lambda: not self.live(client))
        await asyncio.sleep(0)
        return self.done(client)

    def asked(self, client: Client) -> int:
        """Requests of it that the engine has now."""
        return len(self._at_engine(client))

    def tokens(self, client: Client) -> int:
        """Tokens that the engine has sent in its running requests."""
        return sum(record.tokens for record in self._at_engine(client))

    def arrived_s(self, request_id: str) -> float:
        """When the engine got this request, on the monotonic clock."""
        return next(record.arrived_s for record in self.gateway.engine.stats.log if record.id == request_id)

    def _at_engine(self, client: Client) -> list[RequestRecord]:
        ids = {exchange.outcome.request_id for exchange in self.live(client)}
        return [record for record in self.gateway.engine.stats.log if record.id in ids]

    def sent(self) -> list[Sent]:
        """What the engine was sent, in the order of arrival."""
        return [Sent(echo["path"], b64decode(echo["body_b64"])) for echo in self.gateway.engine.stats.echoes]


def _seats(clients: Sequence[Client]) -> str:
    names = [HOLDER, *(client.name for client in clients)]
    return "\n".join(f'[seats.{name}]\ndigest = "{digest_of(key_of(name))}"' for name in names) + "\n"


@asynccontextmanager
async def box(
    folder: Path,
    clients: Sequence[Client],
    knobs: Mapping[str, object] | None = None,
    **overrides: Any,
) -> AsyncIterator[Box]:
    """A box whose engine answers ANSWER unless `knobs` say otherwise; `overrides` are those of `running`."""
    script = {"reply_text": ANSWER, "echo_body": 100, **(knobs or {})}
    # who holds a ticket here stands still, far below any pace: the last one would be kept from the others for that
    admission = {"last_wait_s": 0.0} | overrides.pop("admission", {})
    async with running(script, seats=_seats(clients), admission=admission, **overrides) as gateway:
        yield Box(gateway, folder)
        await gateway.until(lambda: not gateway.core.live)
        await asyncio.sleep(0)
