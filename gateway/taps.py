"""What a reply's bytes run through on their way to the client: one tap for each form of reply. Pure.

Rules:
- A tap gives back the bytes that it was given, but for what its docstring names and for comments: those are an
  engine's own heartbeats, which would hide its silence and are no heartbeat in two of the dialects.
- A block of events is only looked into when a search of its bytes says that something is in it: a first
  token, usage, an ending, an error, a comment.
- `whole` says that the reply ended as its form demands; nothing behind that is wanted. A reply that failed never
  gets there: the engine's error event is kept back, with all behind it, and told anew in the dialect's shape.
- A 200 in one piece is whole when it parses: a connection that just ended may have carried half of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

import orjson

from gateway.meter import Meter, Usage, chat_usage, messages_usage, responses_usage
from gateway.sse import Framer, data_of, events, is_comment, names_error

BUFFER_MAX_BYTES = 16 * 1024 * 1024
"""A reply that is not a stream is parsed for its usage up to this size."""

_GIVEN_UP = ("abort", "error")
"""Finish reasons of an engine that ended an answer of itself."""
_USAGE = b',"usage":{'
_RUNNING = re.compile(
    rb'(?<=\}\]),"usage":\{"prompt_tokens":(\d+),"total_tokens":\d+,"completion_tokens":(\d+)'
    rb'(?:[^{}]++|\{[^{}]*+\})*+\}(?=\}\r?\n|,"prompt_token_ids":)'
)
"""Usage behind the choices of a chunk, as vLLM writes it when it is forced: a count so far, of which a client that adds
usage up would make too much. The first chunk has the prompt behind it. Inside a string the quotes would have
backslashes. Source: measured with vLLM 0.26.0 and 0.32.0."""
_SEQUENCE = re.compile(rb'"sequence_number":\s*(\d+)')


class Tap(Protocol):
    """`feed` gives the bytes to send on, `finish` what was held. `finish` is told whether the reply was `framed`:
    by a length or by chunks, not by the end of the connection. `streamed`: it is a stream of events."""

    meter: Meter
    whole: bool

    @property
    def streamed(self) -> bool: ...

    def feed(self, data: bytes, now_s: float) -> bytes: ...
    def finish(self, now_s: float, framed: bool = True) -> bytes: ...


class EventTap:
    """A stream of server-sent events, one subclass for each form."""

    __slots__ = ("_framer", "meter", "whole")
    streamed: ClassVar[bool] = True
    _marks: ClassVar[tuple[bytes, ...]] = ()
    """Bytes that make a block worth looking into."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.whole = False
        self._framer = Framer()

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Bytes to send on for `data`; whole events only."""
        block = self._plain(self._framer.feed(data))
        if not block or self.whole or self.meter.failed:
            return b""
        meter = self.meter
        if (
            meter.first_token_s is None
            or b"rror" in block
            or block.startswith(b":")
            or b"\n:" in block
            or self._marked(block)
        ):
            return b"".join(event for event in events(block) if self._keep(event, now_s))
        count = self._count(block)
        if count:
            meter.events += count
            meter.last_token_s = now_s
        return block

    def finish(self, now_s: float, framed: bool = True) -> bytes:
        """What was held back when the reply ended: an ending without its empty line. The beginning of an event
        is dropped, since it would swallow the error event that follows it."""
        kept = b"".join(event for event in events(self._plain(self._framer.rest())) if self._keep(event, now_s))
        return kept.rstrip(b"\r\n") + b"\n\n" if self.whole and kept else b""

    def _marked(self, block: bytes) -> bool:
        for mark in self._marks:  # noqa: SIM110 - any() of a generator takes half as long again, for every chunk
            if mark in block:
                return True
        return False

    def _plain(self, block: bytes) -> bytes:
        """`block` without what the client did not ask for in each event."""
        return block

    def _count(self, block: bytes) -> int:
        """How many events of `block` carry output."""
        raise NotImplementedError

    def _look(self, chunk: dict[str, Any], data: bytes, now_s: float) -> bool:
        """Look into the data of one event; False when it must not be sent on."""
        raise NotImplementedError

    def _keep(self, event: bytes, now_s: float) -> bool:
        if self.whole or self.meter.failed:
            return False
        data = data_of(event)
        if b"rror" in event and names_error(event):
            return self._fail(data or event.partition(b"error:")[2].strip())
        if not data:
            return not is_comment(event)
        if data.strip() == b"[DONE]":
            return self._done()
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return True
        if not isinstance(chunk, dict):
            return True
        if chunk.get("error") is not None or chunk.get("object") == "error" or chunk.get("type") == "error":
            return self._fail(data)
        return self._look(chunk, data, now_s)

    def _fail(self, data: bytes) -> bool:
        self.meter.failed = True
        self.meter.error = data
        return False

    def _done(self) -> bool:
        """`[DONE]` passes by; in the forms that do not end with it, it is nothing for the client."""
        return False

    def _ending(self, now_s: float) -> None:
        """The answer ends here. An engine may have kept its last tokens back until now, those of a tool call above
        all; they count until now."""
        if self.meter.first_token_s is not None:
            self.meter.last_token_s = now_s

    def _token(self, now_s: float) -> None:
        meter = self.meter
        meter.events += 1
        meter.last_token_s = now_s
        if meter.first_token_s is None:
            meter.first_token_s = now_s


class ChatTap(EventTap):
    """/v1/chat/completions and /v1/completions; whole with `[DONE]` behind a finish reason, where the engine gives one
    at all.

    `strip_usage`: drop the usage chunk (no choices, usage) that only we asked for. `running_usage`: the client asked
    for usage in each chunk; else it is taken out of them, and counted.
    """

    __slots__ = ("_finished", "_running_usage", "_strip_usage")
    _marks = (b'"usage"', b"[DONE]")

    def __init__(self, strip_usage: bool, running_usage: bool = False) -> None:
        super().__init__()
        self._strip_usage = strip_usage
        self._running_usage = running_usage
        self._finished: bool | None = None  # None: no chunk had the field

    def _marked(self, block: bytes) -> bool:
        nulls = block.count(b'"finish_reason":null') + block.count(b'"finish_reason": null')
        return block.count(b'"finish_reason"') != nulls or super()._marked(block)

    def _plain(self, block: bytes) -> bytes:
        at = -1 if self._running_usage else block.find(_USAGE)
        kept, done = [], 0
        while at >= 0:
            found = _RUNNING.match(block, at)
            if found is not None:
                counts = {"prompt_tokens": int(found[1]), "completion_tokens": int(found[2])}
                self.meter.usage = chat_usage(counts) or self.meter.usage
                kept.append(block[done:at])
                done = found.end()
            at = block.find(_USAGE, at + 1)
        return b"".join([*kept, block[done:]]) if kept else block

    def _count(self, block: bytes) -> int:
        return block.startswith(b"data:") + block.count(b"\ndata:")

    def _done(self) -> bool:
        self.whole = self._finished is not False
        return self.whole

    def _look(self, chunk: dict[str, Any], data: bytes, now_s: float) -> bool:
        usage = chat_usage(chunk.get("usage"))
        if usage is not None:
            self.meter.usage = usage
        choices = chunk.get("choices")
        for reason in _reasons(choices):
            if reason in _GIVEN_UP:
                return self._fail(_given_up(reason))
            self._finished = self._finished or reason is not None
        if isinstance(choices, list) and any(_has_token(choice) for choice in choices):
            self._token(now_s)
        elif usage is not None:
            self._ending(now_s)
        return not (self._strip_usage and usage is not None and choices == [])


def _reasons(choices: Any) -> Iterator[Any]:
    """The finish reasons of these choices, None = it goes on."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and "finish_reason" in choice:
            yield choice["finish_reason"]


def _given_up(reason: str) -> bytes:
    """An engine's ending that is none, as an error."""
    return orjson.dumps({"error": {"message": f"The engine gave the answer up ({reason})."}})


def chat_ended(reply: dict[str, Any]) -> bool:
    """Whether an unstreamed answer of /v1/chat/completions or /v1/completions is whole by its own word."""
    return not any(reason is None or reason in _GIVEN_UP for reason in _reasons(reply.get("choices")))


def messages_ended(reply: dict[str, Any]) -> bool:
    """The same of /v1/messages."""
    return reply.get("stop_reason", "") is not None


def responses_ended(reply: dict[str, Any]) -> bool:
    """The same of /v1/responses."""
    return reply.get("status") not in ("failed", "cancelled", "in_progress", "queued")


def _has_token(choice: Any) -> bool:
    """True when a choice of a chunk carries output, not just a role or an ending."""
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text"))


class MessagesTap(EventTap):
    """/v1/messages; whole with `message_stop` behind a stop reason. Usage comes in two parts: of the prompt with
    `message_start`, of the output with `message_delta`, which may say both again."""

    __slots__ = ("_of_prompt", "_stopped")
    _marks = (b"message_start", b"message_delta", b"message_stop", b"[DONE]")

    def __init__(self) -> None:
        super().__init__()
        self._of_prompt: dict[str, Any] = {}
        self._stopped = False

    def _count(self, block: bytes) -> int:
        return block.count(b'"content_block_delta"')

    def _look(self, chunk: dict[str, Any], data: bytes, now_s: float) -> bool:
        match chunk.get("type"):
            case "message_start":
                message = _dict(chunk.get("message"))
                self.meter.reply_id = str(message.get("id") or "")
                self._of_prompt = _dict(message.get("usage"))
            case "content_block_delta":
                self._token(now_s)
            case "message_delta":
                self._stopped = self._stopped or _dict(chunk.get("delta")).get("stop_reason") is not None
                usage = _dict(chunk.get("usage"))
                usage = {name: value for name, value in usage.items() if value is not None}
                anew = usage.get("input_tokens", self._of_prompt.get("input_tokens"))
                same = anew == self._of_prompt.get("input_tokens") and not usage.keys() & _CACHE_FIELDS
                known = self._of_prompt | usage if same else usage
                self.meter.usage = messages_usage(known) or self.meter.usage
                self._ending(now_s)
            case "message_stop":
                self.whole = self._stopped
                return self.whole
        return True


_CACHE_FIELDS = {"cache_read_input_tokens", "cache_creation_input_tokens"}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class ResponsesTap(EventTap):
    """/v1/responses; whole with `response.completed` or `response.incomplete` (the answer reached its limit).
    `response.failed` is an engine that says itself that it failed.

    `opened`: the gateway has sent a `response.created` while the client waited; the engine's own is dropped.
    """

    __slots__ = ("_last", "opened")
    _marks = (b'"response.created"', b'"response.completed"', b'"response.incomplete"', b'"response.failed"', b"[DONE]")

    def __init__(self) -> None:
        super().__init__()
        self.opened = False
        self._last = b""

    def feed(self, data: bytes, now_s: float) -> bytes:
        out = super().feed(data, now_s)
        self._last = out or self._last
        return out

    @property
    def sequence(self) -> int:
        """Number of the last event that was sent on; 0 before any."""
        numbers = _SEQUENCE.findall(self._last)
        return int(numbers[-1]) if numbers else 0

    def _count(self, block: bytes) -> int:
        return block.count(b'.delta"')

    def _look(self, chunk: dict[str, Any], data: bytes, now_s: float) -> bool:
        kind = chunk.get("type")
        if not isinstance(kind, str):
            return True
        if kind.endswith(".delta"):
            self._token(now_s)
            return True
        if kind not in ("response.created", "response.completed", "response.incomplete", "response.failed"):
            return True
        response = _dict(chunk.get("response"))
        self.meter.reply_id = str(response.get("id") or "")
        self.meter.usage = responses_usage(response.get("usage")) or self.meter.usage
        given_up = kind == "response.completed" and not responses_ended(response)
        if kind == "response.failed" or response.get("error") is not None or given_up:
            return self._fail(data)
        if kind != "response.created":
            self.whole = True
            self._ending(now_s)
        return not (kind == "response.created" and self.opened)


class JsonTap:
    """A reply in one piece: passed on as it comes, its usage read at the end. `status` is the engine's: what
    comes with another one than 200 is whole however it looks. `ended`: whether a parsed answer is one to its end."""

    __slots__ = ("_ended", "_parts", "_size", "_status", "_usage_of", "meter", "whole")
    streamed: ClassVar[bool] = False

    def __init__(
        self,
        status: int,
        usage_of: Callable[[Any], Usage | None],
        ended: Callable[[dict[str, Any]], bool] = lambda reply: True,
    ) -> None:
        self._status = status
        self._ended = ended
        self._usage_of = usage_of
        self.meter = Meter()
        self.whole = False
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, now_s: float) -> bytes:
        """`data` itself."""
        self._size += len(data)
        if self._size <= BUFFER_MAX_BYTES:
            self._parts.append(data)
        return data

    def finish(self, now_s: float, framed: bool = True) -> bytes:
        """Nothing is held; read the usage."""
        self.whole = self._status != 200 or (framed and self._size > BUFFER_MAX_BYTES)
        if self._size <= BUFFER_MAX_BYTES:
            try:
                reply = orjson.loads(b"".join(self._parts))
            except orjson.JSONDecodeError:
                reply = None
            if isinstance(reply, dict):
                self.whole = self._status != 200 or self._ended(reply)
                self.meter.usage = self._usage_of(reply.get("usage"))
                self.meter.failed = reply.get("error") is not None
                self.whole = self.whole or self.meter.failed
        self._parts.clear()
        return b""
