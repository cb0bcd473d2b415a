"""Which sessions the engine's cache still has: whole sessions, the longest unused goes first. Pure.

Rules:
- The head that all sessions share is always there and counted once; a session holds what it has beyond that.
- A session whose turn runs is pinned. With a host tier every session that ended a turn is kept in host RAM as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.simulation.agents import Agent

SHARED_TOKENS = 16_000
"""What every prompt begins with. Source: facts/simulation-model.md section 1."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a prompt costs now: tokens that are read anew, and tokens that come back from host RAM."""

    uncached_tokens: int
    reload_tokens: int


class Kv:
    """The cache. `tokens`: its capacity; `host`: with an unlimited copy of each session in host RAM."""

    __slots__ = ("_copied", "_held", "_host", "_idle", "_pinned", "_pinned_tokens", "_room")

    def __init__(self, tokens: int, *, host: bool) -> None:
        self._room = tokens - SHARED_TOKENS
        self._host = host
        self._idle: dict[int, int] = {}
        self._pinned: dict[int, int] = {}
        self._held = self._pinned_tokens = 0
        self._copied: set[int] = set()

    def reading(self, agent: Agent) -> Reading:
        """What the agent's next prompt would cost now."""
        prompt, context = agent.prompt_tokens, agent.context_tokens
        if not agent.compacted:
            if agent.index in self._idle:
                return Reading(prompt - context, 0)
            if self._host and agent.index in self._copied:
                return Reading(prompt - context, max(0, context - SHARED_TOKENS))
        return Reading(max(0, prompt - SHARED_TOKENS), 0)

    def fits(self, agent: Agent) -> bool:
        """Whether the agent's turn has room beside those that run; with none running it always has."""
        return not self._pinned or self._pinned_tokens + _charge(agent) <= self._room

    def pin(self, agent: Agent) -> list[int]:
        """The agent's turn begins. Returns the indices of the agents whose sessions were evicted."""
        charge = _charge(agent)
        self._held += charge - self._idle.pop(agent.index, 0)
        self._pinned[agent.index] = charge
        self._pinned_tokens += charge
        evicted = []
        while self._held > self._room and self._idle:
            oldest = next(iter(self._idle))
            self._held -= self._idle.pop(oldest)
            evicted.append(oldest)
        return evicted

    def unpin(self, agent: Agent) -> None:
        """The agent's turn has ended; of the idle sessions its own is now the last to go."""
        charge = self._pinned.pop(agent.index)
        self._pinned_tokens -= charge
        self._idle[agent.index] = charge
        if self._host:
            self._copied.add(agent.index)


def _charge(agent: Agent) -> int:
    return max(0, agent.prompt_tokens + agent.reply_tokens - SHARED_TOKENS)
