"""What all wire forms have in common: JSON, events, words, usage, and what a form must be able to say. Pure.

Rules: one generated reply token is one word of four bytes and a prompt has bytes / 4 tokens, so a reply that
comes back in the next prompt has as many tokens as it had, and its blocks are in the cache. Words depend on
the prompt and the sequence only.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.fake_engine.refusal import Refusal
from tests.fake_engine.render import CHAT_PATH, json_text
from tests.fake_engine.render import render as render_dialect
from tests.fake_engine.tools import ToolCall

DONE = b"data: [DONE]\n\n"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one reply; `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of one reply have in common. `id` has no prefix yet; `created` is Unix seconds."""

    id: str
    model: str
    created: int
    path: str
    style: str
    call: ToolCall | None
    reason: str
    """finish_reason of the chat form: stop, length or tool_calls."""
    thinks: bool = False
    tells_cached: bool = True


class Form(Protocol):
    """The wire form of one reply. Each method but `whole` returns events; b"" says nothing.

    Order of a stream: opening, then per sequence start, piece ..., finish, then closing; failure at any point.
    """

    opens: bool
    """Whether `opening` has something to say."""
    half: bytes
    """The beginning of a body that is not streamed, for a cut."""

    def opening(self, used: Usage) -> bytes: ...
    def start(self, sequence: int) -> bytes: ...
    def piece(self, sequence: int, text: str) -> bytes: ...
    def finish(self, sequence: int, text: str) -> bytes: ...
    def closing(self, used: Usage) -> bytes: ...
    def failure(self, refusal: Refusal) -> bytes: ...
    def whole(self, texts: list[str], used: Usage) -> bytes: ...


def dump(value: object) -> bytes:
    """Compact JSON."""
    return json_text(value).encode("utf-8", "replace")


def event(value: object) -> bytes:
    """One SSE event without a name."""
    return b"data: " + dump(value) + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """One SSE event named by its `type`."""
    return f"event: {value['type']}\n".encode() + event(value)


def render(fields: Mapping[str, Any]) -> bytes | None:
    """The prompt of a /v1/chat/completions request; None without messages."""
    rendered = render_dialect(fields, CHAT_PATH)
    return None if rendered is None else rendered.prompt


def words(prompt: bytes, sequence: int, start: int, count: int) -> str:
    """Tokens `start` ... `start + count - 1` of a generated reply: four bytes each."""
    seed = zlib.crc32(prompt) + 104_729 * sequence
    return "".join(_word(seed + 7919 * index) for index in range(start, start + count))


def _word(number: int) -> str:
    high, low = divmod(number % 26**3, 26)
    return " " + _LETTERS[high // 26] + _LETTERS[high % 26] + _LETTERS[low]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object of the chat form."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
