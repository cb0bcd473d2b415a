"""What differs between the request forms that agents speak. Pure.

One code path (exchange.py) serves all of them: authentication, admission, metering, cancelling and logging
are the same; a `Dialect` says how to check, how to prepare, how to say no and how to keep a line open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.dialects.traits import Traits
from gateway.problem import Problem
from gateway.taps import Tap


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that passed the checks. `body` is what the engine gets: the client's bytes, or those with a few
    splices. `model` is None when the client named none. `max_tokens`: the field that bounds the answer, and its
    value. `strip_usage`: the usage chunk was our wish alone. `running_usage`: the client wants usage in each chunk."""

    body: bytes
    stream: bool
    model: str | None
    traits: Traits
    max_tokens: tuple[str, int] | None = None
    strip_usage: bool = False
    running_usage: bool = False


class Dialect(Protocol):
    """One request form. `path` is both where clients post it and where the engine serves it."""

    @property
    def path(self) -> str: ...

    def prepare(self, raw: bytes, body: dict[str, Any]) -> Prepared | Problem:
        """Check a parsed body and say what the engine gets."""
        ...

    def tap(self, prepared: Prepared, status: int, is_stream: bool) -> Tap:
        """The tap of a reply; `status` and `is_stream` are what the engine answered with."""
        ...

    def error(self, problem: Problem) -> bytes:
        """JSON body of an error response."""
        ...

    def opening(self, request_id: str) -> bytes:
        """What a stream that waits begins with, before any heartbeat."""
        ...

    def stream_error(self, problem: Problem, tap: Tap | None) -> bytes:
        """Events that say the same inside a stream that has begun; `tap` is of the reply, if there was one."""
        ...

    def heartbeat(self, position: int, depth: int, why: str = "") -> bytes:
        """Keeps a waiting stream open; `position` 0 = it no longer waits, the engine reads the prompt. `why`
        it waits is said where a comment keeps the line open."""
        ...
