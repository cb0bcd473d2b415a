"""Names runs, one agent's chain of turns, and tells their turns from helper calls. Pure.

Rules:
- A run is named by what the agent says of itself, else by its seat and the first thing its user wrote. The seat is
  part of every name: two seats never share a run.
- 90 s without a request end a run, so that an id that lives for a day does not keep its rank.
- A helper is a call that an agent makes beside its turns (a title, a memory): small and without tools, in a run whose
  turns have some; or, where the agent names its run, as the very first of it or with a schema for its answer. It may
  wait; a turn has a person behind it.
- No text of a prompt is kept, only a digest.

Source: facts/clients.md sections 2 and 5.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.dialects.traits import Traits

IDLE_S = 90.0
HELPER_MAX_BYTES = 16 * 1024
"""A title call has 2.5 to 4 KB; a summary, for which a person waits, carries the conversation."""
RUNS_MAX = 10_000
_HEADERS = (b"x-claude-code-session-id", b"session-id", b"session_id", b"x-session-id")


@dataclass(slots=True)
class Run:
    """`key`: 16 hex digits. `turns`: requests so far, helpers not counted. `open`: requests under way."""

    key: str
    started_s: float
    last_s: float
    turns: int = 0
    requests: int = 0
    open: int = 0
    has_tools: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a run: its turn (1 = first), or a helper beside it."""

    run: Run
    turn: int
    helper: bool


class Runs:
    """The runs that are under way. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, Run] = OrderedDict()

    def begin(
        self, seat: str, headers: Iterable[tuple[bytes, bytes]], traits: Traits, body_bytes: int, now_s: float
    ) -> Call:
        """A request arrives; `end` its run when it is over."""
        session = _session(headers)
        name = traits.prompt_key or traits.first_text
        key = _key(seat, session or name.encode(errors="surrogatepass"))
        run = self._runs.pop(key, None)
        if run is None or self._idle(run, now_s):
            run = Run(key, now_s, now_s)
        self._runs[key] = run  # behind all others: the first is the one that was quiet longest
        run.last_s = now_s
        run.open += 1
        run.has_tools = run.has_tools or traits.tools
        agent = run.has_tools or (bool(session) and (not run.requests or traits.json_output))
        helper = agent and not traits.tools and body_bytes <= HELPER_MAX_BYTES
        run.requests += 1
        run.turns += not helper
        self._forget(now_s)
        return Call(run, run.turns, helper)

    def end(self, call: Call, now_s: float) -> None:
        """A request is over."""
        call.run.open -= 1
        call.run.last_s = now_s

    def active(self, now_s: float) -> int:
        """Runs with a request in the last 90 s."""
        return sum(not self._idle(run, now_s) for run in self._runs.values())

    def dump(self) -> list[list[Any]]:
        """All runs as plain JSON values; digests and times, no text."""
        return [
            [run.key, run.started_s, run.last_s, run.turns, run.requests, run.has_tools] for run in self._runs.values()
        ]

    def load(self, kept: Any, now_s: float) -> None:
        """Runs as `dump` gave them to another process of this boot, whose clock is ours; nothing else is taken. They
        have no request under way any more, so each is as fresh as its last one."""
        for row in kept if isinstance(kept, list) else ():
            match row:
                case [
                    str(key),
                    float() | int() as started,
                    float() | int() as last,
                    int(turns),
                    int(requests),
                    bool(tools),
                ]:
                    if started <= last <= now_s and len(self._runs) < RUNS_MAX and key not in self._runs:
                        self._runs[key] = Run(key, started, last, turns, requests, 0, tools)
        self._runs = OrderedDict(sorted(self._runs.items(), key=lambda item: item[1].last_s))

    @staticmethod
    def _idle(run: Run, now_s: float) -> bool:
        return not run.open and now_s - run.last_s >= IDLE_S

    def _forget(self, now_s: float) -> None:
        while self._runs:
            first = next(iter(self._runs.values()))
            if not self._idle(first, now_s) and len(self._runs) <= RUNS_MAX:
                return
            self._runs.popitem(last=False)


def _session(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    sent = dict(headers)
    return next((sent[name] for name in _HEADERS if sent.get(name)), b"")


def _key(seat: str, name: bytes) -> str:
    return hashlib.sha256(seat.encode() + b"\0" + name).hexdigest()[:16]
