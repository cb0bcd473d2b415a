"""One turn on its way through the pod, and what a policy says of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateway.simulation.agents import Agent

RETRY_S = 30.0
"""When a turn that failed at the deadline is tried again. Source: facts/admission-search.md."""


@dataclass(slots=True, eq=False)
class Request:
    """An attempt at a turn. `asked_s`: when the turn first arrived, or came back after it had failed; `arrived_s`: when
    this attempt did. The other times are set as it goes on: a ticket, the first token, and `reading_s`, how long the
    engine reads its prompt. `ends_at`: the tokens that each stream must have written, see Decode."""

    id: int
    agent: Agent
    run_started_s: float
    asked_s: float
    arrived_s: float
    reply_tokens: int
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    reading_s: float = 0.0
    uncached_tokens: int = 0
    ends_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Admit:
    """It gets a ticket now."""

    request: Request


@dataclass(frozen=True, slots=True)
class Refuse:
    """It gets none: the agent asks again after `retry_s`. `failed`: its deadline passed, the turn counts as missed."""

    request: Request
    retry_s: float
    failed: bool


Move: TypeAlias = Admit | Refuse


class Policy(Protocol):
    """Who goes next. It is told what happens, and then asked for moves until it has none."""

    @property
    def wake_at_s(self) -> float:
        """When it wants to be asked though nothing happened; inf = never."""
        ...

    def arrived(self, request: Request, now_s: float) -> None:
        """It waits from now on."""
        ...

    def recosted(self, request: Request, now_s: float) -> None:
        """It waits, and what the cache has of it has changed."""
        ...

    def read(self, request: Request, now_s: float) -> None:
        """Its first token is there."""
        ...

    def left(self, request: Request, now_s: float) -> None:
        """Its reply has ended."""
        ...

    def move(self, now_s: float) -> Move | None:
        """The next thing to do now."""
        ...
