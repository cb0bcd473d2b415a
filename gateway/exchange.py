"""Carries one request from its headers to its log line.

Touches the ASGI channels, the limiter and the engine's connection.

Order: seat from the headers; body bytes reserved; body read once; its turn to be parsed; dialect's checks;
engine and model; a place in line; the engine; bytes forwarded as they came; log line.

Rules:
- The watcher on `receive()` starts when the body is read, so that a client that goes away frees its bytes, its
  place or its stream at once, before its turn, in the queue, in a silent prefill and in decode.
- The ticket goes back when the engine has ended the reply, not when the client has read it all.
- A stream that is not whole never ends cleanly: an error event, then the connection is closed without the
  terminating chunk.
- After the 200 only an error event can say no; so a stream gets its 200 no earlier than `early_response_s`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gateway import problem as problems
from gateway.admission_types import Granted, Reason, Rejected
from gateway.bodies import ClientGoneError, Receive, Reservation, read_body
from gateway.core import Core, Engine
from gateway.dialects import Dialect, Prepared
from gateway.intake import prepare
from gateway.limiter import Place
from gateway.meter import ChatTap, Meter, Tap
from gateway.outcome import Outcome, request_id_of
from gateway.problem import Problem
from gateway.responses import Headers, Scope, Send, place_headers, problem_headers, respond, stream_headers
from gateway.seats import Denied, Seat
from gateway.upstream import EngineError, EngineReply, is_event_stream
from gateway.upstream import send as send_to_engine


class _RefusedError(Exception):
    """Ends the exchange with a problem; never leaves this module."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(slots=True, eq=False, weakref_slot=True)
class Exchange:
    """One request. `run()` once; `end()` and `sweep()` from outside while it runs."""

    core: Core
    dialect: Dialect
    scope: Scope
    receive: Receive
    asgi_send: Send
    outcome: Outcome = field(init=False)
    step: str = "reading"
    arrived_s: float = 0.0
    read_s: float = 0.0
    place: Place | None = None
    reply: EngineReply | None = None
    prepared: Prepared | None = None
    started: bool = False
    send_since_s: float | None = None
    _raw: bytes = b""
    _unsent_bytes: int = 0
    _end_with: Problem | None = None
    _loop: asyncio.AbstractEventLoop = field(init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.arrived_s = self._loop.time()
        self.outcome = Outcome(request_id_of(self.scope), self.dialect.path)

    # From outside

    def end(self, problem: Problem) -> None:
        """End the stream with an honest error, at the next event boundary."""
        self._end_with = problem
        if self.reply is not None:
            self.reply.fail(problem)

    def sweep(self, now_s: float) -> None:
        """Cut a client that takes nothing, and give up an engine that says nothing."""
        limits = self.core.settings.limits
        if limits.client_stall_s and self._stalled_s(now_s) > limits.client_stall_s:
            self._word("client_gone")
            self.outcome.code = self.outcome.code or "client_stall"
            abort: Callable[[], None] | None = self.scope.get("moe.abort")
            if abort is not None:
                abort()
        reply = self.reply
        if reply is None or reply.ended or not limits.engine_silence_s:
            return
        if self.send_since_s is None and now_s - reply.last_byte_s > limits.engine_silence_s:
            reply.fail(problems.engine_lost(f"no byte for {limits.engine_silence_s:g} s"))

    def _stalled_s(self, now_s: float) -> float:
        """For how long the client has taken nothing. One write may be megabytes: it reads while they get fewer."""
        if self.send_since_s is None:
            return 0.0
        unsent: Callable[[], int] | None = self.scope.get("moe.unsent")
        before, self._unsent_bytes = self._unsent_bytes, unsent() if unsent is not None else 0
        if self._unsent_bytes < before:
            self.send_since_s = now_s
        return now_s - self.send_since_s

    @property
    def meter(self) -> Meter | None:
        """Figures so far, once the engine answers."""
        return self.reply.tap.meter if self.reply is not None and self.reply.tap is not None else None

    # The run

    async def run(self) -> None:
        """Serve the request. Raises only what nobody expected; routes.py logs that."""
        self.core.enter(self)
        try:
            seat = self._seat()
            self.outcome.seat = seat.name
            with self.core.bodies.reserve(seat.name) as reservation:
                await self._read(reservation)
                await self._watched(seat, reservation)
        except _RefusedError as refusal:
            await self._tell(refusal.problem)
        except ClientGoneError:
            self._word("client_gone")
        finally:
            self._close_books()
            self.core.leave(self, self.outcome)

    async def _watched(self, seat: Seat, reservation: Reservation) -> None:
        """Everything behind the body's last byte, ended at once when the client goes away."""
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch())
                try:
                    engine = await self._checked()
                    await self._in_line(seat, engine, reservation)
                except EngineError as error:
                    await self._engine_failed(error.problem)
                except _RefusedError as refusal:
                    await self._tell(refusal.problem)
                watcher.cancel()
        except* ClientGoneError:
            self._word("client_gone")

    async def _engine_failed(self, problem: Problem) -> None:
        if self.meter is not None and self.meter.failed and self.started:  # it has said so itself
            self._word("engine_error")
            return
        self._word("ended" if self._end_with else "engine_lost")
        await self._tell(problem)

    async def _watch(self) -> None:
        """Raise as soon as the client is gone. What else it sends is not for us."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        raise ClientGoneError

    # Before the line

    def _seat(self) -> Seat:
        found = self.core.seats.value.authenticate(self.scope["headers"], time.time())
        if isinstance(found, Denied):
            raise _RefusedError(problems.denied(found.status, found.reason, found.message))
        return found

    async def _read(self, reservation: Reservation) -> None:
        """Read the body."""
        limits = self.core.settings.limits
        headers = dict(self.scope["headers"])
        declared = headers.get(b"content-length")
        raw = await read_body(
            self.receive,
            int(declared) if declared is not None else None,
            headers.get(b"content-encoding"),
            reservation,
            limits.body_max_bytes,
            limits.body_timeout_s,
        )
        self.read_s = self._loop.time()
        if isinstance(raw, Problem):
            raise _RefusedError(raw)
        self.outcome.body_bytes = len(raw)
        self._raw = raw

    async def _checked(self) -> Engine:
        """Check the body; sets `prepared`. Returns the engine that will serve it."""
        raw, self._raw = self._raw, b""  # up to 64 MiB: no frame holds it while the reply runs
        prepared = await prepare(raw, self.dialect, self.core.large_bodies)
        if isinstance(prepared, Problem):
            raise _RefusedError(prepared)
        self.outcome.stream = prepared.stream
        self.prepared = prepared
        return self._engine(prepared)

    def _engine(self, prepared: Prepared) -> Engine:
        core = self.core
        if core.draining:
            raise _RefusedError(problems.ended(Reason.DRAINING, 0))
        if core.engine is None:
            raise _RefusedError(problems.engine_not_ready(core.engine_state, time.time()))
        models = core.engine_state.models
        if prepared.model is not None and models and prepared.model not in models:
            raise _RefusedError(problems.unknown_model(prepared.model, models))
        return core.engine

    # In line

    async def _in_line(self, seat: Seat, engine: Engine, reservation: Reservation) -> None:
        assert self.prepared is not None
        size = len(self.prepared.body)
        with self.core.limiter.enter(seat.name, seat.max_streams, size, self._ended_by_policy) as place:
            self.place = place
            await self._ticket(place)
            self.outcome.queue_s = self._loop.time() - self.read_s
            self.step = "prefill"
            reply = await self._send_to(engine, place)
            reservation.release()
            self.reply = reply
            try:
                if self._end_with is not None:
                    reply.fail(self._end_with)
                await self._headers(reply)
                await self._relay(reply)
            finally:
                reply.abort()

    async def _ticket(self, place: Place) -> None:
        """Wait for the ticket, with heartbeats; raises when there will be none."""
        self.step = "queued"
        while True:
            answer = await place.wait(self._patience_s())
            match answer:
                case Granted():
                    return
                case Rejected():
                    self._word("refused")
                    raise _RefusedError(problems.refused(answer, self.core.limiter.policy.limits.streams))
                case None if self._end_with is not None:
                    raise EngineError(self._end_with)
                case None:
                    await self._keep_open(*place.position())

    def _ended_by_policy(self, reason: Reason) -> None:
        self.end(problems.ended(reason, self.core.limiter.policy.limits.max_stream_s))

    async def _send_to(self, engine: Engine, place: Place) -> EngineReply:
        prepared = self.prepared
        assert prepared is not None
        headers = {"x-request-id": self.outcome.request_id, "accept": "*/*"}
        if engine.key is not None:
            headers["authorization"] = f"Bearer {engine.key}"

        def make_tap(status: int, content_type: str) -> Tap:
            return self.dialect.tap(prepared, status, is_event_stream(content_type))

        try:
            reply = await send_to_engine(
                engine.address, self.dialect.path, headers, prepared.body, make_tap, on_end=place.leave
            )
        except EngineError:
            self.core.engine_suspect(engine)
            raise
        self.prepared = replace(prepared, body=b"")
        return reply

    # The reply

    async def _headers(self, reply: EngineReply) -> None:
        while not await reply.wait_headers(self._patience_s()):
            await self._keep_open(0, 0)

    async def _relay(self, reply: EngineReply) -> None:
        assert self.prepared is not None
        is_stream = isinstance(reply.tap, ChatTap)
        if reply.status != 200 and not 400 <= reply.status < 600:
            raise EngineError(problems.engine_lost(f"it answered with status {reply.status}"))
        if reply.status == 200 and is_stream != self.prepared.stream:
            raise EngineError(problems.engine_lost("it did not answer in the form that was asked for"))
        await (self._relay_stream(reply) if is_stream else self._relay_whole(reply))

    async def _relay_stream(self, reply: EngineReply) -> None:
        """Forward events as they come. Until the first one, heartbeats fill the silence of a long prefill."""
        while (data := await reply.read(self._patience_s())) == b"":
            await self._keep_open(0, 0)
        await self._start_stream()
        self.step = "decode"
        loop_time, send = self._loop.time, self.asgi_send
        while data is not None:
            self.send_since_s = loop_time()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self.send_since_s = None
            data = await reply.read()
        self._word("ok")
        self.outcome.status = 200
        await self._put(b"", more=False)

    async def _relay_whole(self, reply: EngineReply) -> None:
        """A reply that is not a stream is sent on once it is whole, so that a lost one can still be a 502."""
        parts: list[bytes] = []
        while (data := await reply.read()) is not None:
            parts.append(data)
        body = b"".join(parts)
        status = reply.status
        if status in (401, 403):
            raise _RefusedError(problems.engine_refused_key())
        if status in (429, 503, 529):
            raise _RefusedError(problems.engine_busy(status))
        if self.started:
            raise _RefusedError(problems.engine_said(status, body))
        self._word("ok" if status == 200 else "engine_error")
        self.outcome.status = status
        self.send_since_s = self._loop.time()
        content_type = reply.headers.get("content-type", "application/json").encode("latin-1")
        await respond(self.asgi_send, status, body, self._common_headers(), content_type)
        self.send_since_s = None

    # What the client is sent

    def _patience_s(self) -> float | None:
        """How long to wait before the client must hear something: first until `early_response_s` after its
        body was read, then from heartbeat to heartbeat. None = a client that does not stream hears nothing."""
        assert self.prepared is not None
        limits = self.core.settings.limits
        if not self.prepared.stream:
            return None
        if self.started:
            return limits.heartbeat_s
        return max(0.0, limits.early_response_s - (self._loop.time() - self.read_s))

    async def _keep_open(self, position: int, depth: int) -> None:
        await self._start_stream()
        await self._put(self.dialect.heartbeat(position, depth))

    async def _put(self, data: bytes, more: bool = True) -> None:
        self.send_since_s = self._loop.time()
        await self.asgi_send({"type": "http.response.body", "body": data, "more_body": more})
        self.send_since_s = None

    async def _start_stream(self) -> None:
        if not self.started:
            self.started = True
            headers = [*self._common_headers(), *stream_headers()]
            await self.asgi_send({"type": "http.response.start", "status": 200, "headers": headers})

    def _common_headers(self) -> Headers:
        headers: Headers = [(b"x-request-id", self.outcome.request_id.encode())]
        queued = self.place.queued if self.place is not None else None
        return headers + (place_headers(queued.position, queued.depth) if queued else place_headers(0, 0))

    async def _tell(self, problem: Problem) -> None:
        """Say what went wrong: as a response, or inside the stream, which then stays without an end."""
        self._word("refused")
        self.outcome.code = self.outcome.code or problem.code
        if self.started:
            self.outcome.status = 200
            await self._put(self.dialect.stream_error(problem))
            return
        self.outcome.status = problem.status
        headers = [(b"x-request-id", self.outcome.request_id.encode()), *problem_headers(problem)]
        await respond(self.asgi_send, problem.status, self.dialect.error(problem), headers)

    # The end

    def _word(self, word: str) -> None:
        """The first word stands: what follows it is its consequence."""
        if not self.outcome.word:
            self.outcome.word = word

    def _close_books(self) -> None:
        outcome, meter = self.outcome, self.meter
        self._word("failed")
        outcome.duration_s = self._loop.time() - self.arrived_s
        if meter is None:
            return
        if meter.first_token_s is not None:
            outcome.ttft_s = meter.first_token_s - self.arrived_s
        outcome.completion_tokens = meter.tokens
        outcome.tok_per_s = meter.tok_per_s
        outcome.estimated = meter.estimated
        if meter.usage is not None:
            outcome.prompt_tokens = meter.usage.prompt_tokens
            outcome.cached_tokens = meter.usage.cached_tokens
