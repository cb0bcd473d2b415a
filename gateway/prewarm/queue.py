"""What is read into the engine next, and what came of it. Pure: times are arguments.

Order after a start of the engine:
1. The heads of runs, the one that was active last first: a person waits for the next turn of each. After a boot there
   are none.
2. Named prefixes, in the order of the configuration: they are small, and nobody in particular waits for them.

Rules:
- Each is read once for each start of the engine. A run whose turn the engine has served meanwhile needs it no more.
- Heads are read up to `room_tokens`: more than the engine can hold would push the most wanted ones out again.
- An engine that holds `sequences` prompts beside each other, not in one shared cache, gets no more than it has.
- What does not fit is given up, and told once.
- What somebody's arrival cut is tried again `CUTS_MAX` times, since an engine keeps most of what it had read; what
  failed, `TRIES_MAX` times in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

CUTS_MAX = 20
TRIES_MAX = 3
NO_ROOM = "the engine holds no more beside what was read already"
NO_SEQUENCE = "the engine has no sequence left for it"
BYTES_PER_TOKEN = 4
"""Source: facts/clients.md section 2, about 4 bytes a token in agents' requests."""


class Kind(StrEnum):
    """What is read."""

    RUN = "run"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Item:
    """One body to be read. `key` is unique: the run's, or the prefix's name; `seat`: whose it is, "" = a file's.
    `path`: the dialect's. `body` b"" = a run's, which heads.py keeps for as long as it may be kept."""

    kind: Kind
    key: str
    seat: str
    path: str
    size_bytes: int
    body: bytes = field(default=b"", repr=False)

    @property
    def shown(self) -> str:
        """How people are told of it."""
        return self.key if self.kind is Kind.PREFIX else f"a conversation of {self.seat}"


@dataclass(frozen=True, slots=True)
class PrewarmState:
    """What was read since the engine's last start. `done` of `of` are read, were there already or are not needed any
    more; `given_up`: they could not be read, or did not fit. `now`: what is read at this moment, "" = nothing.
    `tokens`: read anew, in `seconds`; `cut`: how often somebody came meanwhile; `copies`: sequences that a prefix was
    copied into."""

    of: int = 0
    done: int = 0
    given_up: int = 0
    now: str = ""
    tokens: int = 0
    seconds: float = 0.0
    cut: int = 0
    copies: int = 0
    last_error: str = ""


@dataclass(slots=True)
class Queue:
    """What is to be read for one start of the engine. `sequences` 0 = all prompts share one cache."""

    room_tokens: int | None = None
    sequences: int = 0
    state: PrewarmState = PrewarmState()
    _waiting: deque[Item] = field(default_factory=deque)
    _cuts: dict[str, int] = field(default_factory=dict)
    _tries: dict[str, int] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)
    _left_out: set[str] = field(default_factory=set)

    def begin(self, heads: Sequence[Item], prefixes: Sequence[Item]) -> list[Item]:
        """The engine has started and holds nothing. Those that no sequence is left for."""
        return [item for item in (*heads, *prefixes) if not self._placed(item)]

    def add(self, prefixes: Iterable[Item]) -> list[Item]:
        """Named prefixes as they are now: those that are new or have changed are read as well. Those that no sequence
        is left for, each once."""
        left_out = []
        for item in prefixes:
            if self._read.get(item.key) == hash(item.body) or item in self._waiting:
                continue
            waiting = next((other for other in self._waiting if other.key == item.key), None)
            if waiting is not None:
                self._waiting[self._waiting.index(waiting)] = item
            elif item.key not in self._left_out and not self._placed(item):
                left_out.append(item)
            self._tries.pop(item.key, None)
        return left_out

    def _placed(self, item: Item) -> bool:
        """Put it in line, or give it up at once. False: no sequence is left for it."""
        fits = not self.sequences or self.state.of - len(self._left_out) < self.sequences
        self._waiting.append(item)
        self.state = replace(self.state, of=self.state.of + 1)
        if not fits:
            self._left_out.add(item.key)
            self._give_up(item, NO_SEQUENCE)
        return fits

    def next(self) -> Item | None:
        """What to read now; it stays first until something is said of it. None = nothing is left."""
        while self._waiting:
            item = self._waiting[0]
            if item.kind is Kind.PREFIX or self._fits(item):
                return item
            self._give_up(item, NO_ROOM)
        return None

    def _fits(self, item: Item) -> bool:
        tokens = self.state.tokens
        wanted = tokens + item.size_bytes // BYTES_PER_TOKEN
        return self.sequences > 0 or self.room_tokens is None or not tokens or wanted <= self.room_tokens

    @property
    def prefixes_left(self) -> int:
        """Named prefixes that are still to be read."""
        return sum(item.kind is Kind.PREFIX for item in self._waiting)

    def is_new(self, item: Item) -> bool:
        """False once it was begun before."""
        return not self._cuts.get(item.key) and not self._tries.get(item.key)

    # What came of it

    def begins(self, item: Item) -> None:
        """The engine reads it."""
        self.state = replace(self.state, now=item.shown)

    def read(self, item: Item, tokens: int, seconds: float, copies: int = 0) -> None:
        """It is in the engine: `tokens` of it were not there before."""
        self._read[item.key] = hash(item.body)
        state = self.state
        self.state = replace(
            state, tokens=state.tokens + tokens, seconds=state.seconds + seconds, copies=state.copies + copies
        )
        self._gone(item, done=1)

    def no_place(self) -> None:
        """There is no place now for what is first."""
        self.state = replace(self.state, now="")

    def not_needed(self, item: Item) -> None:
        """It is there already, or not there to be read any more."""
        self._gone(item, done=1)

    def served(self, run: str) -> None:
        """The engine has taken a turn of `run` itself."""
        for item in tuple(self._waiting):
            if item.kind is Kind.RUN and item.key == run:
                self._gone(item, done=1)

    def cut(self, item: Item) -> bool:
        """Somebody came meanwhile. False: it was cut too often and is given up."""
        self.state = replace(self.state, now="", cut=self.state.cut + 1)
        self._cuts[item.key] = self._cuts.get(item.key, 0) + 1
        if self._cuts[item.key] < CUTS_MAX:
            return True
        self._give_up(item, "somebody came each time while it was read")
        return False

    def failed(self, item: Item, why: str, *, for_good: bool) -> bool:
        """It could not be read. `for_good`: nor will it be. False: it is given up."""
        self.state = replace(self.state, now="", last_error=f"{item.shown}: {why}")
        self._tries[item.key] = self._tries.get(item.key, 0) + 1
        if not for_good and self._tries[item.key] < TRIES_MAX:
            self._waiting.rotate(-1)
            return True
        self._give_up(item, why)
        return False

    def _give_up(self, item: Item, why: str) -> None:
        self.state = replace(self.state, last_error=f"{item.shown}: {why}")
        self._gone(item, given_up=1)

    def _gone(self, item: Item, *, done: int = 0, given_up: int = 0) -> None:
        if item in self._waiting:
            self._waiting.remove(item)
            state = self.state
            now = "" if state.now == item.shown else state.now
            self.state = replace(state, done=state.done + done, given_up=state.given_up + given_up, now=now)
