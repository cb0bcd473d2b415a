"""The pod's day: arrivals, tickets, one prompt read at a time, replies, in virtual time. Pure.

The next event is the earliest of: a prompt has been read, a timer, the policy's own timer, a reply ends; ties in this
order. After each of them, in this order: the next prompt is begun, the policy is asked, the pace is set anew.
Source: facts/simulation-model.md section 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from gateway.simulation.agents import Agent
from gateway.simulation.decode import Decode
from gateway.simulation.kv import Kv
from gateway.simulation.pace import READY_S, Pace
from gateway.simulation.request import Admit, Move, Policy, Request

LEAST_STEP_S = 1e-3
"""A policy that asks to be woken at once is woken then."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that ended, or an attempt that `failed` at its deadline. `wait_s`: all before the first token but reading
    the own prompt; `queue_s`: until its ticket; `pace_tok_per_s`: after the first token."""

    seat: str
    hog: bool
    tokens: int
    failed: bool
    pace_tok_per_s: float = 0.0
    first_token_s: float = inf
    wait_s: float = inf
    queue_s: float = inf
    uncached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a policy may look at: the cache, the pace, and what running replies have written."""

    kv: Kv
    pace: Pace
    decode: Decode


class Pod:
    """One day. `ended` and `refused` are its outcome: turns and failed attempts, and who was sent away to ask again."""

    def __init__(self, agents: Iterable[Agent], kv: Kv, pace: Pace, policy: Callable[[Parts], Policy]) -> None:
        self.ended: list[Ended] = []
        self.refused = 0
        self._kv, self._pace, self._decode = kv, pace, Decode(pace)
        self._policy = policy(Parts(kv, pace, self._decode))
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._waiting: dict[int, Request] = {}
        self._no_room: list[Request] = []
        self._to_read: deque[Request] = deque()
        self._reading: Request | None = None
        self._read_at_s = inf
        for agent in agents:
            self._turn_in(agent.first_pause_s(), agent, None)

    def run(self, until_s: float) -> None:
        """Live until then; what is unfinished is dropped."""
        decode, policy, timers = self._decode, self._policy, self._timers
        while True:
            timer_s = timers[0][0] if timers else inf
            wake_s = max(policy.wake_at_s, self._now_s + LEAST_STEP_S)
            end_s = decode.next_end_s
            now_s = min(self._read_at_s, timer_s, wake_s, end_s)
            if now_s > until_s:
                return
            self._now_s = now_s
            decode.advance(now_s)
            if now_s == self._read_at_s:
                self._prompt_read()
            elif now_s == timer_s:
                heappop(timers)[2]()
            elif now_s == end_s and now_s != wake_s:
                self._reply_ended(decode.finish())
            self._begin_reading()
            while (move := policy.move(now_s)) is not None:
                self._carry_out(move)
            decode.set_pace(reading=self._reading is not None)

    # What happens

    def _arrive(self, request: Request) -> None:
        self._waiting[request.agent.index] = request
        self._policy.arrived(request, self._now_s)

    def _prompt_read(self) -> None:
        request = self._reading
        assert request is not None
        self._reading, self._read_at_s = None, inf
        request.first_token_s = self._now_s
        self._decode.begin(request)
        self._policy.read(request, self._now_s)

    def _reply_ended(self, request: Request) -> None:
        agent = request.agent
        self.ended.append(_ended(request, self._now_s))
        self._kv.unpin(agent)
        after_s, new_run = agent.turn_done()
        self._turn_in(after_s, agent, None if new_run else request.run_started_s)
        while self._no_room and self._kv.fits(self._no_room[0].agent):
            self._enter(self._no_room.pop(0))
        self._policy.left(request, self._now_s)

    # What follows

    def _carry_out(self, move: Move) -> None:
        request = move.request
        del self._waiting[request.agent.index]
        if isinstance(move, Admit):
            request.admitted_s = self._now_s
            if self._no_room or not self._kv.fits(request.agent):
                self._no_room.append(request)
            else:
                self._enter(request)
            return
        asked_s: float | None = request.asked_s
        if move.failed:
            self.ended.append(Ended(request.agent.seat, request.agent.hog, request.reply_tokens, failed=True))
            asked_s = None
        else:
            self.refused += 1
        self._turn_in(move.retry_s, request.agent, request.run_started_s, asked_s)

    def _enter(self, request: Request) -> None:
        """The engine takes it: what the cache has of it is settled now, and others lose what makes room for it."""
        reading = self._kv.reading(request.agent)
        request.uncached_tokens = reading.uncached_tokens
        request.reading_s = self._pace.prefill_s(request.agent.prompt_tokens, reading.uncached_tokens)
        request.reading_s += reading.reload_tokens / self._pace.reload_tok_per_s
        self._at(self._now_s + READY_S, lambda: self._to_read.append(request))
        for index in self._kv.pin(request.agent):
            if index in self._waiting:
                self._policy.recosted(self._waiting[index], self._now_s)

    def _begin_reading(self) -> None:
        if self._reading is None and self._to_read:
            self._reading = self._to_read.popleft()
            self._read_at_s = self._now_s + self._reading.reading_s

    def _turn_in(self, after_s: float, agent: Agent, run_started_s: float | None, asked_s: float | None = None) -> None:
        """The agent's next turn arrives then. `run_started_s`: None = it begins a run; `asked_s`: None = it is new."""
        at_s = self._now_s + after_s
        run_s = at_s if run_started_s is None else run_started_s
        self._count += 1
        request = Request(self._count, agent, run_s, at_s if asked_s is None else asked_s, at_s, agent.reply_tokens)
        self._at(at_s, lambda: self._arrive(request))

    def _at(self, at_s: float, then: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._timers, (at_s, self._count, then))


def _ended(request: Request, now_s: float) -> Ended:
    first_token_s = request.first_token_s - request.asked_s
    return Ended(
        request.agent.seat,
        request.agent.hog,
        request.reply_tokens,
        False,
        (request.reply_tokens - 1) / (now_s - request.first_token_s),
        first_token_s,
        first_token_s - request.reading_s,
        request.admitted_s - request.arrived_s,
        request.uncached_tokens,
    )
