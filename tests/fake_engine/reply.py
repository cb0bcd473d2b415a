"""One completion from its prefill to its last byte, with the faults that the knobs ask for. Touches the ASGI send.

Rules: the record ends before the last bytes leave, so that whoever read them sees it ended. A client that leaves
cancels everything within one pass of the loop, also during prefill.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import uuid4

from starlette.types import Message, Receive, Scope, Send

from tests.fake_engine import refusal, wire
from tests.fake_engine.asks import Ask
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.render import MESSAGES_PATH, RESPONSES_PATH
from tests.fake_engine.scheduler import Scheduler
from tests.fake_engine.script import Script, write
from tests.fake_engine.stats import RequestRecord, Stats
from tests.fake_engine.wire_chat import ChatForm
from tests.fake_engine.wire_messages import MessagesForm
from tests.fake_engine.wire_responses import ResponsesForm

JSON_TYPE = (b"content-type", b"application/json")
_SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class ClientGone(Exception):
    """The client closed the connection before the reply was complete."""


class PlannedEnd(Exception):
    """A knob ends this reply early; `outcome` is what the record will say."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Bench:
    """What a reply needs of the engine. `spent` is called after each chunk and may end the process."""

    scheduler: Scheduler
    stats: Stats
    now: Callable[[], float]
    spent: Callable[[], None]


def form_of(ask: Ask, script: Script, knobs: Knobs, name: str) -> wire.Form:
    """The wire form of a reply; `name` is its id without a prefix."""
    words = (knobs.model, int(time.time()), ask.path, knobs.style)
    head = wire.Head(name, *words, script.call, script.reason, knobs.thinks, knobs.tells_cached)
    if ask.path == MESSAGES_PATH:
        return MessagesForm(head)
    if ask.path == RESPONSES_PATH:
        return ResponsesForm(
            head,
            error_event=knobs.responses_error_event,
            bare=knobs.bare_events,
            max_output_tokens=ask.max_tokens,
        )
    return ChatForm(head, include_usage=ask.include_usage, error_then_done=knobs.error_then_done)


class Reply:
    """One reply; `run` is called once. `knobs` hold for this reply whatever is merged meanwhile."""

    def __init__(self, bench: Bench, knobs: Knobs, ask: Ask, record: RequestRecord, scope: Scope, send: Send) -> None:
        self._bench = bench
        self._knobs = knobs
        self._ask = ask
        self._record = record
        self._scope = scope
        self._send = send
        self._started = False
        self._texts = ["" for _ in range(ask.sequences)]
        self._script = write(ask, knobs)
        self._form = form_of(ask, self._script, knobs, record.id or uuid4().hex)
        self._used = wire.Usage(ask.prompt_tokens, 0, 0)
        self._opened = False

    async def run(self, receive: Receive) -> None:
        """Send the reply, or as much of it as the knobs and the client let."""
        stats, record = self._bench.stats, self._record
        ended: PlannedEnd | None = None
        stats.admit(record, self._ask.sequences)
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch(receive))
                await self._produce()
                watcher.cancel()
        except* ClientGone:
            stats.end(record, "aborted", self._bench.now())
        except* PlannedEnd as several:
            ended = _first(several)
        finally:
            if ended is None:
                stats.end(record, "broken", self._bench.now())
        if ended is not None:
            stats.end(record, ended.outcome, self._bench.now())
            await self._end_early(ended.outcome, receive)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._record.outcome:
            raise ClientGone

    async def _produce(self) -> None:
        knobs, ask, bench = self._knobs, self._ask, self._bench
        if knobs.hang:
            await asyncio.Event().wait()
        if ask.stream and not knobs.headers_delay:
            await self._start(200, _SSE_HEADERS)
            if knobs.early_events and self._form.opens:
                self._used = replace(self._used, cached_tokens=bench.scheduler.cached_tokens(ask.prompt))
                await self._body(self._opening())
        if knobs.silent_s > 0:
            await asyncio.sleep(knobs.silent_s)
        cached = await bench.scheduler.prefill(ask.prompt, ask.prompt_tokens)
        self._used = replace(self._used, cached_tokens=cached)
        bench.stats.prefilled(self._record, ask.prompt_tokens, cached, bench.now())
        if ask.stream:
            await self._start(200, _SSE_HEADERS)
        async with asyncio.TaskGroup() as group:
            for sequence in range(ask.sequences):
                group.create_task(self._decode(sequence))
        used = replace(self._used, completion_tokens=self._record.tokens)
        bench.stats.end(self._record, "completed", bench.now())
        if ask.stream:
            await self._body(self._form.closing(used), last=True)
        else:
            await self._whole(200, self._form.whole(self._texts, used))

    def _opening(self) -> bytes:
        """What comes first in a stream; nothing the second time."""
        if self._opened:
            return b""
        self._opened = True
        return self._form.opening(self._used)

    async def _decode(self, sequence: int) -> None:
        ask, bench, script = self._ask, self._bench, self._script
        text = ""
        with bench.scheduler.sequence() as first:
            started = False
            made = 0
            while made < script.tokens:
                await self._maybe_end()
                count = self._chunk_tokens(script.tokens - made)
                await bench.scheduler.reached(first + made + count - 1)
                piece = script.piece(ask.prompt, sequence, made, count)
                made += count
                text += piece
                self._texts[sequence] = text
                bench.stats.sent(self._record, count, bench.now())
                if ask.stream:
                    lead = b"" if started else self._opening() + self._form.start(sequence)
                    started = True
                    await self._body(lead + self._form.piece(sequence, piece))
                bench.spent()
            await self._maybe_end()
        bench.scheduler.remember(ask.prompt + script.as_prompt(text).encode("utf-8", "surrogatepass"))
        if ask.stream:
            lead = b"" if started else self._opening() + self._form.start(sequence)
            await self._body(lead + self._form.finish(sequence, text))

    def _limits(self) -> list[tuple[int, str]]:
        knobs = self._knobs
        faults = (
            (knobs.error_in_stream, "error"),
            (knobs.truncate_after, "truncated"),
            (knobs.cut_after, "cut"),
            (knobs.stall_after, "stall"),
        )
        return [(tokens, outcome) for tokens, outcome in faults if tokens is not None]

    def _chunk_tokens(self, missing: int) -> int:
        """A chunk stops exactly where a fault is due."""
        upto = [tokens - self._record.tokens for tokens, _ in self._limits()]
        most = 1 if self._knobs.first_alone and not self._record.tokens else self._knobs.tokens_per_chunk
        return max(min([most, missing, *upto]), 1)

    async def _maybe_end(self) -> None:
        for tokens, outcome in self._limits():
            if self._record.tokens >= tokens:
                if outcome == "stall":
                    await asyncio.Event().wait()
                raise PlannedEnd(outcome)

    async def _end_early(self, outcome: str, receive: Receive) -> None:
        stream = self._ask.stream
        if outcome == "error" and not stream:
            await self._whole(500, wire.dump(refusal.CRASH.body(self._knobs.style, self._ask.path)))
        elif outcome == "error":
            await self._body(self._form.failure(refusal.CRASH), last=True)
        else:
            if not stream:
                await self._start(200, [JSON_TYPE])
                await self._body(self._form.half)
            if outcome == "cut":
                await self._cut(receive)
            else:
                await self._body(b"", last=True)

    async def _cut(self, receive: Receive) -> None:
        transport = self._scope["state"]["transport"]
        if self._knobs.cut_rst:
            # uvloop's socket object cannot set options; a duplicate of the descriptor names the same socket.
            with (
                contextlib.suppress(OSError),  # closed already
                socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same,
            ):
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, data: bytes, *, last: bool = False) -> None:
        message: Message = {"type": "http.response.body", "body": data, "more_body": not last}
        await self._send(message)

    async def _whole(self, status: int, data: bytes) -> None:
        await self._start(status, [JSON_TYPE, (b"content-length", str(len(data)).encode())])
        await self._body(data, last=True)


def _first(several: BaseExceptionGroup[PlannedEnd]) -> PlannedEnd:
    one: BaseException = several
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    assert isinstance(one, PlannedEnd)
    return one
