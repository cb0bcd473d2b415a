"""Carries one request from its headers to its log line.

Touches the ASGI channels, the limiter and the engine's connection.

Order: seat from the headers; body bytes reserved; body read once; its turn to be parsed; dialect's checks;
engine and model; whether it fits; a place in line; the engine; bytes forwarded as they came; log line.

Rules:
- The watcher on `receive()` starts when the body is read, so that a client that goes away frees its bytes, its
  place or its stream at once, before its turn, in the queue, in a silent prefill and in decode.
- The ticket goes back when the engine has ended the reply, not when the client has read it all.
- A stream that is not whole never ends cleanly: an error event, then the connection is closed without the
  terminating chunk.
- After the 200 only an error event can say no; so a stream gets its 200 no earlier than `early_response_s`.
- A stream is never silent for longer than `heartbeat_s`: a timer tells while nothing has come, the sweep afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gateway import problem as problems
from gateway.admission_types import Granted, Reason, Rejected
from gateway.bodies import ClientGoneError, Receive, Reservation, gone
from gateway.care import Prompt
from gateway.client import Client
from gateway.core import Core, Engine
from gateway.dialects import Dialect, Prepared
from gateway.engine_errors import is_lower_bound, read_error, read_failure, recounted
from gateway.fit import counted, fitted
from gateway.intake import read, seat_of, take
from gateway.learning.clients import client_of
from gateway.ledger.view import over_budget
from gateway.limiter import Place, Request
from gateway.meter import Meter
from gateway.outcome import Outcome, request_id_of
from gateway.problem import Problem
from gateway.responses import Headers, Scope, Send, place_headers, problem_headers
from gateway.runs import Call
from gateway.seats import Seat
from gateway.sse import at_boundary
from gateway.taps import ResponsesTap, Tap
from gateway.upstream import EngineError, EngineReply, is_event_stream
from gateway.upstream import send as send_to_engine
from gateway.waiting import said

T = TypeVar("T")
BODY_KEPT_S = 10.0
"""How long a body is kept after the engine got it: one that is too long for it is refused sooner, and then counted."""


class _RefusedError(Exception):
    """Ends the exchange with a problem; never leaves this module."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True, eq=False, weakref_slot=True)
class Exchange:
    """One request. `run()` once; `end()` from outside while it runs; sweep.py looks after it."""

    core: Core
    dialect: Dialect
    scope: Scope
    receive: Receive
    asgi_send: Send
    outcome: Outcome = field(init=False)
    client: Client = field(init=False)
    step: str = "reading"
    arrived_s: float = 0.0
    read_s: float = 0.0
    place: Place | None = None
    reply: EngineReply | None = None
    prepared: Prepared | None = None
    call: Call | None = None
    prompt: Prompt | None = None
    _raw: bytes = b""
    end_with: Problem | None = None
    _loop: asyncio.AbstractEventLoop = field(init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.arrived_s = self._loop.time()
        self.outcome = Outcome(request_id_of(self.scope), self.dialect.path)
        self.client = Client(self.scope, self.asgi_send, self._loop)

    # From outside

    def end(self, problem: Problem) -> None:
        """End the stream with an honest error, at the next event boundary."""
        self.end_with = problem
        if self.reply is not None:
            self.reply.fail(problem)

    @property
    def meter(self) -> Meter | None:
        """Figures so far, once the engine answers."""
        tap = self._tap()
        return tap.meter if tap is not None else None

    def _tap(self) -> Tap | None:
        return self.reply.tap if self.reply is not None else None

    # The run

    async def run(self) -> None:
        """Serve the request. Raises only what nobody expected; routes.py logs that."""
        self.core.enter(self)
        try:
            seat = _or_refuse(seat_of(self.core, self.scope))
            self.outcome.seat = seat.name
            with self.core.bodies.reserve(seat.name) as reservation:
                self._raw = _or_refuse(await read(self.core, self.scope, self.receive, reservation))
                self.read_s = self._loop.time()
                self.outcome.body_bytes = len(self._raw)
                await self._watched(seat, reservation)
        except _RefusedError as refusal:
            await self._tell(refusal.problem)
        except ClientGoneError:
            self.word("client_gone")
        finally:
            self._close_books()
            self.core.leave(self, self.outcome)

    async def _watched(self, seat: Seat, reservation: Reservation) -> None:
        """Everything behind the body's last byte, ended at once when the client goes away."""
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(gone(self.receive))
                try:
                    engine = await self._checked(seat)
                    if self._loop.time() > self.arrived_s:  # it may be gone since its headers came
                        seat = _or_refuse(seat_of(self.core, self.scope))
                    await self._in_line(seat, engine, reservation)
                except EngineError as error:
                    await self._engine_failed(error.problem)
                except _RefusedError as refusal:
                    await self._tell(refusal.problem)
                watcher.cancel()
        except* ClientGoneError:
            self.word("client_gone")

    async def _engine_failed(self, problem: Problem) -> None:
        failed = self.meter is not None and self.meter.failed and self.end_with is None
        if self.meter is not None and failed:  # it has said so itself
            problem = read_failure(self.meter.error, self.dialect.path)
        self.word("engine_error" if failed else "ended" if self.end_with else "engine_lost")
        await self._tell(problem)

    # Before the line

    async def _checked(self, seat: Seat) -> Engine:
        """Check the body; sets `prepared`. Returns the engine that will serve it."""
        raw, self._raw = self._raw, b""  # up to 64 MiB: no frame holds it while the reply runs
        taken = _or_refuse(await take(raw, self.dialect, self.core, seat.name))
        prepared = taken.prepared
        self.outcome.stream = prepared.stream
        now_s, headers = self._loop.time(), self.scope["headers"]
        call = self.call = self.core.runs.begin(seat.name, headers, prepared.traits, len(raw), now_s)
        self.prompt = Prompt(self.core.care, taken.print_, seat.name, self.dialect.path, prepared.stream, self._tap)
        if not call.helper:
            client, canonical = client_of(headers), taken.canonical
            self.prompt.turn = self.core.care.watch.came(call.run.key, seat.name, client, canonical, now_s)
        engine = self._engine()
        self.core.prewarm.arrival()
        self.prepared = _or_refuse(await fitted(self.core, engine, self.dialect, prepared, self.prompt))
        return engine

    def _engine(self) -> Engine:
        if (problem := self.core.why_not()) is not None:
            raise _RefusedError(problem)
        assert self.core.engine is not None
        return self.core.engine

    # In line

    async def _in_line(self, seat: Seat, engine: Engine, reservation: Reservation) -> None:
        assert self.prepared is not None and self.prompt is not None  # noqa: PT018
        assert self.call is not None
        request = Request(
            seat.name,
            seat.max_streams,
            len(self.prepared.body),
            self._ended_by_policy,
            self.call.helper,
            over_budget(self.core, seat.name, seat.tokens_per_month),
            self.call.run.started_s,
            self.prepared.stream,
            self.prompt.price,
            self.prompt.granted,
        )
        with self.core.limiter.enter(request) as place:
            self.place = self.prompt.place = place
            try:
                await self._served(place, engine, reservation)
            finally:
                self.prompt.over()

    async def _served(self, place: Place, engine: Engine, reservation: Reservation) -> None:
        await self._ticket(place)
        self.outcome.queue_s = self._loop.time() - self.read_s
        self.step = "prefill"
        reply = self.reply = await self._send_to(engine)
        forget = self._loop.call_later(BODY_KEPT_S, self._forget_body, reservation)
        try:
            if self.end_with is not None:
                reply.fail(self.end_with)
            while not await reply.wait_headers(self._patience_s()):
                await self._keep_open()
            if reply.status == 200:
                self._forget_body(reservation)
            await self._relay(reply, engine)
        finally:
            forget.cancel()
            reply.abort()

    def _forget_body(self, reservation: Reservation) -> None:
        """The engine has it. A turn is kept to be read again after a restart; nothing else is asked about a prompt."""
        assert self.prepared is not None
        if self.call is not None and not self.call.helper and self.prepared.body:
            self.core.prewarm.keep(self.call.run.key, self.outcome.seat, self.dialect.path, self.prepared.body)
        self.prepared = replace(self.prepared, body=b"")
        reservation.release()

    async def _ticket(self, place: Place) -> None:
        """Wait for the ticket, with heartbeats; raises when there will be none."""
        self.step = "queued"
        while True:
            answer = await place.wait(self._patience_s())
            match answer:
                case Granted():
                    return
                case Rejected():
                    self.word("refused")
                    raise _RefusedError(problems.refused(answer, self.core.limiter.policy.limits.streams))
                case None if self.end_with is not None:
                    raise EngineError(self.end_with)
                case None:
                    wait = place.why()
                    await self._keep_open(*place.position(), said(wait) if wait is not None else "")

    def _ended_by_policy(self, reason: Reason) -> None:
        self.end(problems.ended(reason, self.core.limiter.policy.limits.max_stream_s))

    async def _send_to(self, engine: Engine) -> EngineReply:
        prepared, prompt = self.prepared, self.prompt
        assert prepared is not None and prompt is not None  # noqa: PT018
        await prompt.in_turn()
        headers = {"x-request-id": self.outcome.request_id, "accept": "*/*"}
        if engine.key is not None:
            headers["authorization"] = f"Bearer {engine.key}"

        def make_tap(status: int, content_type: str) -> Tap:
            assert self.prepared is not None  # not the one above, whose body would live as long as the reply
            tap = self.dialect.tap(self.prepared, status, is_event_stream(content_type))
            if isinstance(tap, ResponsesTap):
                tap.opened = self.client.started
            return tap

        try:
            return await send_to_engine(
                engine.address, self.dialect.path, headers, prepared.body, make_tap, prompt.over, prompt.first_token
            )
        except EngineError:
            self.core.engine_suspect(engine)
            raise

    # The reply

    async def _relay(self, reply: EngineReply, engine: Engine) -> None:
        assert self.prepared is not None and reply.tap is not None  # noqa: PT018
        if reply.status != 200:
            await self._relay_refusal(reply, engine)
            return
        if reply.tap.streamed != self.prepared.stream:
            raise EngineError(problems.engine_lost("it did not answer in the form that was asked for"))
        await (self._relay_stream(reply) if reply.tap.streamed else self._relay_whole(reply))
        self.core.served = engine.start_id

    async def _relay_stream(self, reply: EngineReply) -> None:
        """Forward events as they come; heartbeats fill the silence between two."""
        while (data := await reply.read(self._patience_s())) == b"":
            await self._keep_open()
        await self._start_stream()
        self.step = "decode"
        put = self.client.put
        last = data
        while data is not None:
            if data:
                await put(data)
                last = data
            elif last is None or at_boundary(last):
                await put(self.dialect.heartbeat(0, 0))
            data = await reply.read()
        self.word("ok")
        self.outcome.status = 200
        await put(b"", more=False)

    async def _relay_whole(self, reply: EngineReply) -> None:
        """A reply that is not a stream is sent on once it is whole, so that a lost one can still be a 502."""
        body = await reply.read_all()
        if self.meter is not None and self.meter.failed:
            self.word("engine_error")
            raise _RefusedError(read_error(500, body, self.dialect.path))
        self.word("ok")
        self.outcome.status = 200
        content_type = reply.headers.get("content-type", "application/json").encode("latin-1")
        await self.client.answer(200, body, self._common_headers(), content_type)

    async def _relay_refusal(self, reply: EngineReply, engine: Engine) -> None:
        """The engine refused: in the dialect's own shape, and with the prompt's true length if that is the matter."""
        assert self.prepared is not None
        if not 400 <= reply.status < 600:
            raise EngineError(problems.engine_lost(f"it answered with status {reply.status}"))
        body = await reply.read_all()
        problem = read_error(reply.status, body, self.dialect.path)
        if problem.tokens is not None and is_lower_bound(body):
            prepared, seat = self.prepared, self.outcome.seat
            tokens = await counted(self.core, engine, self.dialect, prepared, seat) if prepared.body else None
            problem = recounted(problem, tokens if isinstance(tokens, int) else None)
        if problem.reason is Reason.ENGINE_LOST:
            self.core.engine_suspect(engine)
        self.word("refused" if problem.code in ("engine_key", "engine_busy") else "engine_error")
        raise _RefusedError(problem)

    # What the client is sent

    def _patience_s(self) -> float | None:
        """How long to wait before the client must hear something: first until `early_response_s` after its
        body was read, then from heartbeat to heartbeat. None = a client that does not stream hears nothing."""
        assert self.prepared is not None
        limits = self.core.settings.limits
        if not self.prepared.stream:
            return None
        if self.client.started:
            return limits.heartbeat_s
        return max(0.0, limits.early_response_s - (self._loop.time() - self.read_s))

    async def _keep_open(self, position: int = 0, depth: int = 0, why: str = "") -> None:
        if not self.client.started:
            if isinstance(tap := self._tap(), ResponsesTap):  # before any await: the engine's own may come meanwhile
                tap.opened = True
            await self._start_stream()
            if opening := self.dialect.opening(self.outcome.request_id):
                await self.client.put(opening)
        await self.client.put(self.dialect.heartbeat(position, depth, why))

    async def _start_stream(self) -> None:
        if not self.client.started:
            await self.client.start(self._common_headers())

    def _common_headers(self) -> Headers:
        headers: Headers = [(b"x-request-id", self.outcome.request_id.encode())]
        queued = self.place.queued if self.place is not None else None
        if self.place is not None and (wait := self.place.why()) is not None:
            headers.append((b"x-moe-queue-reason", wait.kind.encode()))
        return headers + (place_headers(queued.position, queued.depth) if queued else place_headers(0, 0))

    async def _tell(self, problem: Problem) -> None:
        """Say what went wrong: as a response, or inside the stream, which then stays without an end."""
        self.word("refused")
        self.outcome.code = self.outcome.code or problem.code
        if self.client.started:
            self.outcome.status = 200
            await self.client.put(self.dialect.stream_error(problem, self._tap()))
            return
        self.outcome.status = problem.status
        headers = [(b"x-request-id", self.outcome.request_id.encode()), *problem_headers(problem)]
        await self.client.answer(problem.status, self.dialect.error(problem), headers)

    # The end

    def word(self, word: str) -> None:
        """The first word stands: what follows it is its consequence."""
        if not self.outcome.word:
            self.outcome.word = word

    def _close_books(self) -> None:
        outcome, meter, core = self.outcome, self.meter, self.core
        self.word("failed")
        outcome.duration_s = self._loop.time() - self.arrived_s
        if self.call is not None and self.prompt is not None:
            outcome.run, outcome.turn, outcome.helper = self.call.run.key, self.call.turn, self.call.helper
            outcome.uncached_tokens = self.prompt.uncached_tokens
            core.runs.end(self.call, self.arrived_s + outcome.duration_s)
        if meter is None:
            return
        outcome.measured(meter, self.arrived_s)
        if meter.usage is not None and self.prepared is not None and self.prepared.traits.image_at is None:
            core.estimate.learn(meter.usage.prompt_tokens, outcome.body_bytes)


def _or_refuse(value: T | Problem) -> T:
    if isinstance(value, Problem):
        raise _RefusedError(value)
    return value
