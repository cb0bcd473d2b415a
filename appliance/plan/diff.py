"""What differs between two plans. Pure.

Two plans are the same when they decide the same, whatever else is in their files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.plan import ranges
from appliance.plan.schema import UNDECIDED, Plan

_TABLES = ("experts", "draft_experts")
_MISSING = "(none)"


@dataclass(frozen=True, slots=True)
class Change:
    """A key that has another value; None = it is not there."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Moved:
    """A layer whose cold experts differ: those that go to the host, and those that come back to the cards."""

    layer: int
    to_host: tuple[int, ...]
    to_cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """From one plan to another. `changes`: keys that decide something, experts apart; `experts`, `draft_experts`: by
    layer; `asides`: keys that decide nothing and differ."""

    before: str
    after: str
    changes: tuple[Change, ...]
    experts: tuple[Moved, ...]
    draft_experts: tuple[Moved, ...]
    asides: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both decide the same: their plan_ids, made anew, are equal."""
        return self.before == self.after

    def json(self) -> dict[str, Any]:
        """For programs: experts as ranges."""
        return {
            "same": self.same,
            "plan_ids": [self.before, self.after],
            "changes": {change.key: [change.before, change.after] for change in self.changes},
            "experts": _table(self.experts),
            "draft_experts": _table(self.draft_experts),
            "experts_to_host": _total(self.experts, "to_host"),
            "experts_to_cards": _total(self.experts, "to_cards"),
            "asides": list(self.asides),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.same:
            yield f"same decision: {self.before}"
        else:
            yield f"- {self.before}"
            yield f"+ {self.after}"
        for change in self.changes:
            yield f"{change.key}: {_shown(change.before)} -> {_shown(change.after)}"
        yield from _layers("experts", self.experts)
        yield from _layers("draft experts", self.draft_experts)
        if self.asides:
            yield f"also differ, and decide nothing: {', '.join(self.asides)}"


def diff(before: Plan, after: Plan) -> Difference:
    """What changes when `after` takes the place of `before`."""
    changes = tuple(_changes(_decided(before), _decided(after)))
    return Difference(
        before.identity,
        after.identity,
        changes,
        tuple(_moved(before.host.experts, after.host.experts)),
        tuple(_moved(before.host.draft_experts, after.host.draft_experts)),
        _asides(before, after, {change.key for change in changes}),
    )


def _asides(before: Plan, after: Plan, deciding: set[str]) -> tuple[str, ...]:
    every = _changes(before.model_dump(mode="json", by_alias=True), after.model_dump(mode="json", by_alias=True))
    told = ("plan_id", "host.experts", "host.draft_experts")
    found = [change.key for change in every if change.key not in deciding and not change.key.startswith(told)]
    derived = ("budget", "exports")
    return tuple(dict.fromkeys(key.partition(".")[0] if key.startswith(derived) else key for key in found))


def _decided(plan: Plan) -> dict[str, Any]:
    values = plan.model_dump(mode="json", by_alias=True, exclude=UNDECIDED)
    for table in _TABLES:
        del values["host"][table]
    return values


def _changes(before: Any, after: Any, key: str = "") -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            yield from _changes(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif before != after:
        yield Change(key, before, after)


def _moved(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Moved]:
    for layer in sorted(map(int, before.keys() | after.keys())):
        old = set(ranges.parse(before.get(str(layer), "")))
        new = set(ranges.parse(after.get(str(layer), "")))
        if old != new:
            yield Moved(layer, tuple(sorted(new - old)), tuple(sorted(old - new)))


def _table(moved: tuple[Moved, ...]) -> dict[str, dict[str, str]]:
    return {
        str(layer.layer): {"to_host": ranges.spell(layer.to_host), "to_cards": ranges.spell(layer.to_cards)}
        for layer in moved
    }


def _total(moved: tuple[Moved, ...], way: str) -> int:
    return sum(len(getattr(layer, way)) for layer in moved)


def _layers(name: str, moved: tuple[Moved, ...]) -> Iterator[str]:
    if not moved:
        return
    layers = "1 layer" if len(moved) == 1 else f"{len(moved)} layers"
    to_host, to_cards = _total(moved, "to_host"), _total(moved, "to_cards")
    yield f"{name}: {to_host:,} to the host, {to_cards:,} back to the cards, in {layers}"
    for layer in moved:
        ways = (("to the host", layer.to_host), ("back", layer.to_cards))
        said = "; ".join(f"{ranges.spell(experts)} {way}" for way, experts in ways if experts)
        yield f"  layer {layer.layer}: {said}"


def _shown(value: Any) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} entries"
    return str(value)
