"""What a warm engine was seen to do, before anybody judges it. Pure.

Tokens are counted by the engine's `usage`; times are seconds of one monotonic clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.state import EngineAbilities

_TEXTS = ("reasoning", "reasoning_content")
"""Where a chunk carries what the model thinks. Source: vLLM 0.26 and llama.cpp, measured."""


@dataclass(slots=True)
class Streamed:
    """What came. `at_s`: when each chunk with output came, by the clock; `began_s`: when it was asked for. `thought`:
    some of it was reasoning; `finish`: why it ended, "" = it did not say. `refused`: the body of an error, b"" = none.
    `call`: id, name and arguments of the first tool call, empty = there was none. `left`: it was cut by us."""

    began_s: float
    status: int = 200
    at_s: list[float] = field(default_factory=list)
    text: str = ""
    thought: bool = False
    finish: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    refused: bytes = b""
    call: dict[str, str] = field(default_factory=dict)
    left: bool = False

    @property
    def tokens(self) -> int | None:
        """Tokens of the answer."""
        return _count(self.usage.get("completion_tokens"))

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the whole prompt."""
        return _count(self.usage.get("prompt_tokens"))

    @property
    def cached_tokens(self) -> int | None:
        """Those of them that came from the cache."""
        details = self.usage.get("prompt_tokens_details")
        return _count(details.get("cached_tokens")) if isinstance(details, dict) else None

    @property
    def first_s(self) -> float | None:
        """Seconds until the first output."""
        return self.at_s[0] - self.began_s if self.at_s else None

    def take(self, event: Mapping[str, Any], now_s: float) -> None:
        """One event of the stream."""
        if "error" in event:
            self.refused = json.dumps(event).encode()
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"]
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role"):
            self.at_s.append(now_s)
            self.text += str(delta.get("content") or "")
            self.thought = self.thought or any(delta.get(name) for name in _TEXTS)
            calls = delta.get("tool_calls")
            self._take_call(calls[0] if isinstance(calls, list) and calls else None)

    def _take_call(self, piece: object) -> None:
        """A piece of a call: its id and name come once, its arguments in pieces."""
        if not isinstance(piece, dict) or piece.get("index", 0) != 0:
            return
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        for name, value in (("id", piece.get("id")), ("name", function.get("name"))):
            if isinstance(value, str) and value:
                self.call.setdefault(name, value)
        self.call["arguments"] = self.call.get("arguments", "") + str(function.get("arguments") or "")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True, slots=True)
class Seen:
    """What an answer shows. `ok` None = nothing can be said."""

    ok: bool | None
    observed: str


@dataclass(slots=True)
class Shown:
    """What was seen; None = it was not asked. `paced`: the timed answer; `paced_limit_s`: how long it had, where it did
    not end by then. `notes`: for the log."""

    paced: Streamed | None = None
    paced_limit_s: float | None = None
    tools: Seen | None = None
    json_object: Seen | None = None
    json_schema: Seen | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One of the two. `prefill_s`: seconds until its first output; `tok_per_s`: after that."""

    prompt_tokens: int
    prefill_s: float
    tok_per_s: float | None


@dataclass(frozen=True, slots=True)
class Proven:
    """What came of it: the runs that ended, and why one did not, "" = both did. `tokens`: of each with its answer."""

    tokens: int
    runs: tuple[Run, ...] = ()
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Cached:
    """How much of a prompt came from the cache when it was read again, tokens: by the reply's usage, and by the
    engine's counters; None = it does not say."""

    prompt_tokens: int | None
    by_usage: int | None
    by_metrics: int | None

    @property
    def hit(self) -> bool | None:
        """Whether any of it did; None = nobody says."""
        told = [tokens for tokens in (self.by_usage, self.by_metrics) if tokens is not None]
        return max(told) > 0 if told else None


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was asked. `last`: the second of two equal completions; `host_bytes`: in host RAM, as the engine
    says; `proven` None = nobody wanted the proof."""

    last: Streamed
    cached: Cached
    abilities: EngineAbilities
    shown: Shown
    host_bytes: int | None = None
    proven: Proven | None = None
