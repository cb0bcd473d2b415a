"""Measures one reply as its bytes pass: first token, pace, usage, whether it ended whole. Pure.

Rules:
- Chunks are not tokens: speculative decoding packs several into one. Token counts come from `usage`; until
  it has passed, `tokens` is a count of events and `estimated` is True.
- A chunk is only parsed when a search of its bytes says that something is in it; see `ChatTap.feed`.
- A 200 in one piece is whole when it parses: a connection that just ended may have carried half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from gateway.sse import Framer, data_of, events, names_error

BUFFER_MAX_BYTES = 16 * 1024 * 1024
"""A reply that is not a stream is parsed for its usage up to this size."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them. `cached` is None when the engine does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


def usage_of(value: Any) -> Usage | None:
    """Usage from an OpenAI `usage` object; None when it is absent or malformed."""
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, completion, cached if isinstance(cached, int) else None)


class Tap(Protocol):
    """What a reply's bytes run through: `feed` gives the bytes to send on, `finish` what was held.

    `whole` says, after `finish` at the latest, that the reply ended as its form demands; once it is so, nothing
    more is wanted. `finish` is told whether the reply was `framed`: by a length or by chunks, not by the end of
    the connection.
    """

    meter: Meter
    whole: bool

    def feed(self, data: bytes, now_s: float) -> bytes: ...
    def finish(self, now_s: float, framed: bool = True) -> bytes: ...


@dataclass(slots=True)
class Meter:
    """Figures of one reply; times are monotonic seconds."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    events: int = 0
    usage: Usage | None = None
    failed: bool = False

    @property
    def tokens(self) -> int:
        """Output tokens: counted by the engine, or (see `estimated`) events so far."""
        return self.usage.completion_tokens if self.usage else self.events

    @property
    def estimated(self) -> bool:
        """True while `tokens` is a count of events."""
        return self.usage is None

    @property
    def tok_per_s(self) -> float | None:
        """Pace after the first token: (tokens - 1) / (last - first); None below two tokens."""
        if self.first_token_s is None or self.last_token_s is None or self.tokens < 2:
            return None
        elapsed_s = self.last_token_s - self.first_token_s
        return (self.tokens - 1) / elapsed_s if elapsed_s > 0 else None


class ChatTap:
    """The event stream of /v1/chat/completions and /v1/completions.

    `strip_usage`: drop the usage chunk (no choices, usage) that only we asked for.
    """

    __slots__ = ("_framer", "_strip_usage", "meter", "whole")

    def __init__(self, strip_usage: bool) -> None:
        self.meter = Meter()
        self.whole = False
        self._framer = Framer()
        self._strip_usage = strip_usage

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Bytes to send on for `data`; whole events only."""
        block = self._framer.feed(data)
        if not block:
            return b""
        meter = self.meter
        if (
            meter.first_token_s is None
            or b'"usage"' in block
            or b"[DONE]" in block
            or b"rror" in block
            or b'"finish_reason":"' in block
        ):
            return b"".join(event for event in events(block) if self._keep(event, now_s))
        count = block.startswith(b"data:") + block.count(b"\ndata:")
        if count:
            meter.events += count
            meter.last_token_s = now_s
        return block

    def finish(self, now_s: float, framed: bool = True) -> bytes:
        """What was held back when the reply ended: an ending without its empty line. The beginning of an event
        is dropped, since it would swallow the error event that follows it."""
        kept = b"".join(event for event in events(self._framer.rest()) if self._keep(event, now_s))
        return kept if self.whole else b""

    def _keep(self, event: bytes, now_s: float) -> bool:
        """Look into one event; False when it must not be sent on."""
        if b"rror" in event and names_error(event):
            self.meter.failed = True
        data = data_of(event)
        if not data:
            return True
        if data.strip() == b"[DONE]":
            self.whole = not self.meter.failed  # some engines say [DONE] behind an error
            return self.whole
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return True
        if not isinstance(chunk, dict):
            return True
        if chunk.get("error") is not None or chunk.get("object") == "error":
            self.meter.failed = True
        usage = usage_of(chunk.get("usage"))
        if usage is not None:
            self.meter.usage = usage
        choices = chunk.get("choices")
        if isinstance(choices, list) and any(_has_token(choice) for choice in choices):
            self.meter.events += 1
            self.meter.last_token_s = now_s
            if self.meter.first_token_s is None:
                self.meter.first_token_s = now_s
        return not (self._strip_usage and usage is not None and choices == [])


def _has_token(choice: Any) -> bool:
    """True when a choice of a chunk carries output, not just a role or an ending."""
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text"))


class JsonTap:
    """A reply in one piece: passed on as it comes, its usage read at the end. `status` is the engine's: what
    comes with another one than 200 is whole however it looks."""

    __slots__ = ("_parts", "_size", "_status", "meter", "whole")

    def __init__(self, status: int = 200) -> None:
        self._status = status
        self.meter = Meter()
        self.whole = False
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, now_s: float) -> bytes:
        """`data` itself."""
        if self.meter.first_token_s is None:
            self.meter.first_token_s = now_s
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
                self.whole = True
                self.meter.usage = usage_of(reply.get("usage"))
                self.meter.failed = reply.get("error") is not None
        self._parts.clear()
        return b""
