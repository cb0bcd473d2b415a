"""Figures of one reply: first token, pace, usage. Pure.

Rules:
- Chunks are not tokens: speculative decoding packs several into one. Token counts come from `usage`; until
  it has passed, `tokens` is a count of events and `estimated` is True.
- `prompt_tokens` is the whole prompt in every dialect; Anthropic's `input_tokens` leaves out what was cached.
- An engine may keep an answer back until it is whole, a tool call above all. Its first token was then not the first,
  and nothing about reading or writing follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOKENS_MAX = 2**30
"""Of one prompt or reply. No window is a thousandth of it."""
BURST_TOKENS, BURST_TOK_PER_S = 8, 1000.0
"""More tokens than that in each event, and faster: they were written before. No draft puts so many into one step, and
no engine that sends each token needs so few events."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them. `cached` is None when the engine does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


def chat_usage(value: Any) -> Usage | None:
    """From the `usage` of /v1/chat/completions and /v1/completions; None when it is absent or malformed."""
    return _openai_usage(value, "prompt_tokens", "completion_tokens", "prompt_tokens_details")


def responses_usage(value: Any) -> Usage | None:
    """From the `usage` of /v1/responses."""
    return _openai_usage(value, "input_tokens", "output_tokens", "input_tokens_details")


def messages_usage(value: Any) -> Usage | None:
    """From the `usage` of /v1/messages, or its parts put together."""
    if not isinstance(value, dict):
        return None
    fresh, completion = _count(value.get("input_tokens")), _count(value.get("output_tokens"))
    if fresh is None or completion is None:
        return None
    read = _count(value.get("cache_read_input_tokens"))
    return Usage(fresh + (read or 0) + (_count(value.get("cache_creation_input_tokens")) or 0), completion, read)


def _openai_usage(value: Any, prompt: str, completion: str, details: str) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt_tokens, completion_tokens = _count(value.get(prompt)), _count(value.get(completion))
    if prompt_tokens is None or completion_tokens is None:
        return None
    of_prompt = value.get(details)
    return Usage(
        prompt_tokens,
        completion_tokens,
        _count(of_prompt.get("cached_tokens")) if isinstance(of_prompt, dict) else None,
    )


def _count(value: Any) -> int | None:
    """None for what no engine can have counted: sums and the ledger would keep it for ever."""
    counted = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX
    return value if counted else None


@dataclass(slots=True)
class Meter:
    """Figures of one reply; times are monotonic seconds. `reply_id` is the engine's name for it, "" = none yet.
    `failed`: the engine says inside a stream that it failed, in the words of `error` (the data of that event)."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    events: int = 0
    usage: Usage | None = None
    failed: bool = False
    error: bytes = b""
    reply_id: str = ""

    @property
    def tokens(self) -> int:
        """Output tokens: counted by the engine, or (see `estimated`) events so far."""
        return self.usage.completion_tokens if self.usage else self.events

    @property
    def estimated(self) -> bool:
        """True while `tokens` is a count of events."""
        return self.usage is None

    @property
    def kept_back(self) -> bool:
        """Whether all of it came at once, faster than it can have been written."""
        if self.first_token_s is None or self.last_token_s is None or self.tokens <= BURST_TOKENS * self.events:
            return False
        return self.tokens - 1 > BURST_TOK_PER_S * (self.last_token_s - self.first_token_s)

    @property
    def tok_per_s(self) -> float | None:
        """Pace after the first token: (tokens - 1) / (last - first); None below two tokens, and where it tells
        nothing."""
        if self.first_token_s is None or self.last_token_s is None or self.tokens < 2 or self.kept_back:
            return None
        elapsed_s = self.last_token_s - self.first_token_s
        return (self.tokens - 1) / elapsed_s if elapsed_s > 0 else None
