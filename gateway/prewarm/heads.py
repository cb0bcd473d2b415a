"""The latest request body of each run, as the engine got it: what is read again after the engine has lost it. Pure.

Rules:
- In memory only: nothing here is ever written, logged or shown.
- Bounded in bytes: what was active longest ago goes first, whoever it is of. A body above BODY_MAX_BYTES is not kept:
  it is mostly pictures, and would push out those of many others.
- A body goes `ACTIVE_S` after its run was last active; time without an engine does not count. Of a seat whose shared
  head is wanted (`[[prefix]] seat`) the `SHARED_OF` latest stay until others take their place, since that head is also
  read when nobody is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

ACTIVE_S = 600.0
BODY_MAX_BYTES = 2 * 1024 * 1024
"""Text of 262,144 tokens is about half of that."""
SHARED_OF = 3
"""Requests whose common beginning is taken for what a seat shares."""


@dataclass(frozen=True, slots=True)
class Head:
    """One body. `path`: the dialect's; `at_s`: when its run was last active, monotonic seconds."""

    run: str
    seat: str
    path: str
    body: bytes = field(repr=False)
    at_s: float


class Heads:
    """The bodies of one process. `capacity_bytes` 0 keeps none. `shared`: seats whose latest bodies stay."""

    def __init__(self, capacity_bytes: int, shared: Collection[str] = ()) -> None:
        self._capacity = capacity_bytes
        self._shared = frozenset(shared)
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self.held_bytes = 0

    def keep(self, run: str, seat: str, path: str, body: bytes, now_s: float) -> None:
        """The engine takes a turn of `run`: its body replaces the one before. One above the bound is not kept."""
        self._drop(run)
        if not body or len(body) > min(self._capacity, BODY_MAX_BYTES):
            return
        self._heads[run] = Head(run, seat, path, body, now_s)
        self.held_bytes += len(body)
        while self.held_bytes > self._capacity:
            self._drop(next(iter(self._heads)))

    def forget(self, now_s: float) -> None:
        """Let go what nobody was active in for `ACTIVE_S`."""
        over = [head for head in self._heads.values() if now_s - head.at_s > ACTIVE_S]
        for head in over:
            if head.seat not in self._shared or head not in self.of_seat(head.seat):
                self._drop(head.run)

    def seats_gone(self, seats: Collection[str]) -> None:
        """Seats that may not come in any more lose theirs."""
        for head in tuple(self._heads.values()):
            if head.seat in seats:
                self._drop(head.run)

    def active(self, now_s: float) -> tuple[Head, ...]:
        """The bodies of runs that were active in the last `ACTIVE_S`, the latest first."""
        return tuple(head for head in reversed(self._heads.values()) if now_s - head.at_s <= ACTIVE_S)

    def get(self, run: str) -> Head | None:
        """The body of one run; None = it is not kept any more."""
        return self._heads.get(run)

    def stood_still(self, seconds: float) -> None:
        """Nobody could be active for so long: there was no engine."""
        for run, head in tuple(self._heads.items()):
            self._heads[run] = replace(head, at_s=head.at_s + seconds)

    def of_seat(self, seat: str) -> tuple[Head, ...]:
        """The `SHARED_OF` latest of one seat, the latest first."""
        return tuple(head for head in reversed(self._heads.values()) if head.seat == seat)[:SHARED_OF]

    def _drop(self, run: str) -> None:
        head = self._heads.pop(run, None)
        if head is not None:
            self.held_bytes -= len(head.body)
