"""Watches whether the prompts of an agent's turns continue each other, and what it costs where they do not. Pure.

Rules:
- A run may have several conversations at once (an agent and its sub-agents): a prompt is compared with those of its
  run, the one that it continues first. A NEW one is kept beside them, any other takes the place of one.
- Helper calls are not told of: they are no turns.
- What a change costs is what of the prompt before the engine had read, and reads again. Of a prompt that was refused,
  or was read by another start of the engine, it had read nothing. A change that costs under CHANGE_MIN_TOKENS is none.
- Prompts are held in memory only, MEMORY_BYTES in all, for KEPT_S after the last turn of their run, the oldest run out
  first; nothing of them is printable. What is shown is an offset, a shape and numbers.
- A turn that came within RECENT_S of the one before should find it in the engine's cache: what is missed then was
  evicted. Later it may well have been.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gateway.learning.divergence import Divergence, Relation, divergence, relation
from gateway.learning.prompt import CanonicalPrompt

MEMORY_BYTES = 64 * 1024 * 1024
KEPT_BYTES = 1024
"""Of one prompt besides its text: objects and keys."""
PROMPT_MAX_BYTES = 4 * 1024 * 1024
"""A longer one is not watched; no engine of ours takes a million tokens."""
CONVERSATIONS_MAX = 8
"""Of one run; the one that was continued longest ago makes room."""
KEPT_S = 3600.0
RECENT_S = 600.0
TURNS = 10
"""The latest of each row, of which is told how many went wrong."""
LOST_S = 3600.0
ROWS_MAX = 1000
CHANGE_MIN_TOKENS = 256
MISSED_MIN_TOKENS, MISSED_SHARE = 2048, 0.5
"""A turn is missed when of so many tokens or more that had not changed, less than that share was cached. Our own rule:
well beyond what estimates and the blocks of engines (16 to 1,056 tokens) may be off by."""
_LOSSES_MAX = 1000

Predict = Callable[[int, int], float]


@dataclass(slots=True, eq=False)
class Kept:
    """The latest prompt of a conversation. `read_bytes`: how much of it the engine is known to have read."""

    prompt: CanonicalPrompt
    at_s: float
    read_bytes: int
    seat: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What the watch found when a prompt came; handed back to `ended`. Shares are of the prompt's bytes: what should
    have been cached, and what of it can have been, since it did not change. `recent`: that was not long ago."""

    seat: str
    client: str
    relation: Relation
    expected_share: float = 0.0
    common_share: float = 0.0
    recent: bool = False
    change: Divergence | None = None
    kept: Kept | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One seat with one client. `turns`: those that follow another one. Hit shares are of their prompt tokens; None =
    nothing to say yet. `changed` and `missed`: of its last `of` turns that should have continued another. `lost_s`:
    seconds of reading in the last hour that changes cost. `last`: the latest change."""

    seat: str
    client: str
    turns: int
    expected_share: float | None
    real_share: float | None
    of: int
    changed: int
    missed: int
    lost_s: float
    last: Divergence | None


@dataclass(slots=True)
class _Row:
    turns: int = 0
    prompt_tokens: float = 0.0
    expected_tokens: float = 0.0
    told_tokens: float = 0.0
    cached_tokens: float = 0.0
    latest: deque[tuple[bool, bool]] = field(default_factory=lambda: deque(maxlen=TURNS))
    lost: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LOSSES_MAX))
    last: Divergence | None = None


class PrefixWatch:
    """One per gateway. Times are seconds of one monotonic clock."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._runs: OrderedDict[str, list[Kept]] = OrderedDict()
        self._rows: OrderedDict[tuple[str, str], _Row] = OrderedDict()
        self.held_bytes = 0
        """Bytes of prompts in memory, and of what holds them."""

    def came(self, run_key: str, seat: str, client: str, prompt: CanonicalPrompt, now_s: float) -> Turn:
        """A turn's prompt, before the engine reads it. `run_key`: of runs.py; `client`: of clients.py."""
        kept = self._runs.get(run_key, [])
        if len(prompt.data) > min(PROMPT_MAX_BYTES, self._memory_bytes):
            return Turn(seat, client, Relation.NEW)
        before, found, common = _nearest(kept, prompt)
        fresh = Kept(prompt, now_s, min(common, before.read_bytes) if before is not None else 0, seat)
        left = [own for own in kept if own is not before]
        self._put(run_key, [*left, fresh][-CONVERSATIONS_MAX:])
        if before is None or not prompt.data:
            return Turn(seat, client, Relation.NEW, kept=fresh)
        size, changed = len(prompt.data), found is Relation.CHANGED
        return Turn(
            seat,
            client,
            found,
            expected_share=min(size, before.read_bytes) / size if changed else fresh.read_bytes / size,
            common_share=fresh.read_bytes / size,
            recent=now_s - before.at_s <= RECENT_S,
            change=divergence(before.prompt, prompt, common) if changed else None,
            kept=fresh,
        )

    def ended(self, turn: Turn, prompt_tokens: int, cached_tokens: int | None, predict: Predict, now_s: float) -> float:
        """That turn was read: the tokens by the engine's usage, else by an estimate. `cached_tokens` None = the engine
        does not say. `predict`: seconds to read (prompt tokens, cached tokens). Returns the seconds that a change cost,
        0 without one."""
        if turn.kept is not None:
            turn.kept.read_bytes = len(turn.kept.prompt.data)
        if turn.relation is Relation.NEW or prompt_tokens <= 0:
            return 0.0
        row = self._row(turn.seat, turn.client)
        expected, common = turn.expected_share * prompt_tokens, turn.common_share * prompt_tokens
        row.turns += 1
        row.prompt_tokens += prompt_tokens
        row.expected_tokens += expected
        if cached_tokens is not None:
            row.told_tokens += prompt_tokens
            row.cached_tokens += min(cached_tokens, prompt_tokens)
        found = common if cached_tokens is None else cached_tokens
        missed = turn.recent and common >= MISSED_MIN_TOKENS and found < MISSED_SHARE * common
        changed = turn.change is not None and expected - common >= CHANGE_MIN_TOKENS
        row.latest.append((changed, missed))
        if not changed:
            return 0.0
        row.last = turn.change
        lost_s = max(0.0, predict(prompt_tokens, int(max(common, found))) - predict(prompt_tokens, int(expected)))
        row.lost.append((now_s, lost_s))
        return lost_s

    def rows(self, now_s: float) -> tuple[WatchRow, ...]:
        """By seat, then client."""
        return tuple(_shown(seat, client, row, now_s) for (seat, client), row in sorted(self._rows.items()))

    def engine_started(self) -> None:
        """The engine's cache is empty: it has read nothing of what came before."""
        for kept in self._runs.values():
            for own in kept:
                own.read_bytes = 0

    def forget(self, now_s: float) -> None:
        """Let go what is too old. Call it often, also while nobody sends anything."""
        while self._runs and next(iter(self._runs.values()))[-1].at_s <= now_s - KEPT_S:
            self._forget_first()

    def seats_gone(self, seats: Collection[str]) -> None:
        """Seats that may not come in any more lose what was kept of them."""
        for run_key, kept in tuple(self._runs.items()):
            if kept[-1].seat in seats:
                self.held_bytes -= _size(self._runs.pop(run_key))

    def _row(self, seat: str, client: str) -> _Row:
        row = self._rows.setdefault((seat, client), _Row())
        self._rows.move_to_end((seat, client))
        if len(self._rows) > ROWS_MAX:
            self._rows.popitem(last=False)
        return row

    def _put(self, run_key: str, kept: list[Kept]) -> None:
        self.held_bytes -= _size(self._runs.pop(run_key, []))
        self._runs[run_key] = kept
        self.held_bytes += _size(kept)
        while self.held_bytes > self._memory_bytes and len(self._runs) > 1:
            self._forget_first()
        while self.held_bytes > self._memory_bytes:
            self.held_bytes -= _size([kept.pop(0)])

    def _forget_first(self) -> None:
        _, kept = self._runs.popitem(last=False)
        self.held_bytes -= _size(kept)


def _nearest(kept: list[Kept], prompt: CanonicalPrompt) -> tuple[Kept | None, Relation, int]:
    """Which of the prompts of its run this one follows, how, and how many bytes both begin with; None = it is NEW."""
    longest = max(
        (own for own in kept if prompt.continues(own.prompt)), key=lambda own: len(own.prompt.data), default=None
    )
    if longest is not None:
        return longest, Relation.CONTINUES, len(longest.prompt.data)
    related = [(own, *relation(own.prompt, prompt)) for own in reversed(kept)]
    nearest = max(related, key=lambda found: (_RANKS.index(found[1]), found[2]), default=None)
    if nearest is None or nearest[1] is Relation.NEW:
        return None, Relation.NEW, 0
    return nearest


_RANKS = (Relation.NEW, Relation.CHANGED, Relation.AGAIN, Relation.CONTINUES)
"""What a prompt is taken for when it is several things to the prompts of its run: the last of these."""


def _size(kept: list[Kept]) -> int:
    return sum(KEPT_BYTES + len(own.prompt.data) for own in kept)


def _shown(seat: str, client: str, row: _Row, now_s: float) -> WatchRow:
    return WatchRow(
        seat=seat,
        client=client,
        turns=row.turns,
        expected_share=row.expected_tokens / row.prompt_tokens if row.prompt_tokens else None,
        real_share=row.cached_tokens / row.told_tokens if row.told_tokens else None,
        of=len(row.latest),
        changed=sum(changed for changed, _ in row.latest),
        missed=sum(missed for _, missed in row.latest),
        lost_s=sum(seconds for at_s, seconds in row.lost if at_s > now_s - LOST_S),
        last=row.last,
    )
