"""Long steps read the rows that are there now, whatever the order of layers, and no part is filled while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.residency.long_reads import ColdRows, LongReads, SeenLayer
from appliance.residency.staging import AWAITED, PARTS, ColdPart, Copy, Lane, Staging, long_step

LAYERS = 7
ABOVE = 100
LONG, SHORT = ABOVE + 1, ABOVE
TILE = 48


class Told(LongReads):
    """Stages what it is told to. `asked`: the layers, and whether ahead."""

    def __init__(self, *in_place: int) -> None:
        super().__init__({layer: ColdRows(1, 1.0) for layer in range(LAYERS)})
        self.in_place = set(in_place)
        self.asked: list[tuple[int, bool]] = []

    def is_staged(self, step: int, layer: int, tokens: int, *, is_ahead: bool) -> bool:
        self.asked.append((layer, is_ahead))
        return layer not in self.in_place


@dataclass
class Sight:
    """Half of a lane: each look finds its number. `is_late`: only those that are awaited are there."""

    is_late: bool = False
    looked: list[tuple[range, int]] = field(default_factory=list)
    begun: list[object] = field(default_factory=list)
    awaited: list[object] = field(default_factory=list)

    def look(self, visited: object, cold: range, tile: int) -> object:
        self.looked.append((cold, tile))
        return len(self.looked)

    def begin(self, look: object) -> None:
        self.begun.append(look)

    def found(self, look: object, *, is_awaited: bool) -> tuple[int, float] | None:
        if is_awaited:
            self.awaited.append(look)
        assert isinstance(look, int)
        return (look, look / 10) if is_awaited or not self.is_late else None


@dataclass
class OrderedLane(Sight):
    """Two streams: a copy runs at any moment after all that stood on the model's stream when it began, and what reads
    it after it. `is_latest` has each copy run as late, else as early as that allows."""

    is_latest: bool = False
    rows: dict[int, int] = field(default_factory=dict)
    staging: dict[int, int] = field(default_factory=dict)
    _waiting: list[Sequence[Copy]] = field(default_factory=list)
    _begun: int = 0

    def copy_behind_model(self, copies: Sequence[Copy]) -> object:
        self._waiting.append(copies)
        if not self.is_latest:
            self._run(len(self._waiting))
        return len(self._waiting)

    def hold_model(self, copied: object) -> None:
        assert isinstance(copied, int)
        self._run(copied)

    def _run(self, count: int) -> None:
        """What stands on the copying stream runs in order."""
        for copies in self._waiting[self._begun : count]:
            for copy in copies:
                self.staging[copy.target] = self.rows[copy.source]
        self._begun = max(self._begun, count)


def staging_over(lane: Lane, reads: LongReads | None = None, layers: int = LAYERS) -> Staging:
    """Layer n's rows are at address n; its part is n modulo PARTS."""
    parts = {layer: ColdPart(range(layer, layer + 1), [Copy(layer % PARTS, layer, 1)]) for layer in range(layers)}
    return Staging(lane, parts, reads or Told(), ABOVE)


def run_layer(staging: Staging, lane: OrderedLane, layer: int) -> bool:
    """Whether staging was read; what was read is right."""
    is_staged = staging.before(layer, LONG, None, TILE)
    if is_staged:
        assert lane.staging[layer % PARTS] == lane.rows[layer]
    staging.after(layer, LONG)
    return is_staged


SOME = st.sets(st.integers(0, LAYERS - 1))
STEP = st.tuples(st.booleans(), st.lists(st.integers(0, LAYERS - 1), max_size=10), SOME, SOME)


@given(steps=st.lists(STEP, max_size=8), is_latest=st.booleans())
def test_every_long_layer_reads_its_own_rows_as_they_are_now(
    steps: list[tuple[bool, list[int], set[int], set[int]]], is_latest: bool
) -> None:
    """In any order, some of them exchanged, some of them in place, and others each time."""
    lane, reads = OrderedLane(is_latest=is_latest, rows={layer: layer for layer in range(LAYERS)}), Told()
    staging = staging_over(lane, reads)
    for number, (is_in_order, some, exchanged, in_place) in enumerate(steps, 1):
        for layer in exchanged:
            lane.rows[layer] = 100 * number + layer
            staging.exchanged(layer)
        reads.in_place = in_place
        for layer in range(LAYERS) if is_in_order else some:
            assert run_layer(staging, lane, layer) or layer in in_place


@dataclass
class CountingLane(Sight):
    copied: list[int] = field(default_factory=list)

    def copy_behind_model(self, copies: Sequence[Copy]) -> object:
        self.copied += [copy.source for copy in copies]
        return None

    def hold_model(self, copied: object) -> None:
        pass


def test_in_order_each_layer_is_copied_once_and_its_copy_begins_two_layers_ahead() -> None:
    lane = CountingLane()
    staging = staging_over(lane)
    for layer in range(LAYERS):
        assert staging.before(layer, LONG, None, TILE)
        assert lane.copied == list(range(min(layer + PARTS, LAYERS)))
        staging.after(layer, LONG)
        assert lane.copied == list(range(min(layer + PARTS + 1, LAYERS)))


def test_a_layer_read_in_place_is_not_copied_and_those_around_it_are() -> None:
    lane = CountingLane()
    staging = staging_over(lane, Told(0, 3))
    read = []
    for layer in range(LAYERS):
        read.append(staging.before(layer, LONG, None, TILE))
        staging.after(layer, LONG)
    assert read == [False, True, True, False, True, True, True]
    assert lane.copied == [1, 2, 4, 5, 6]


def test_a_layer_is_asked_about_ahead_and_once_more_when_more_was_seen() -> None:
    reads = Told(*range(LAYERS))
    staging = staging_over(CountingLane(), reads)
    staging.before(2, LONG, None, TILE)
    assert reads.asked == [(2, False), (3, True)]
    staging.after(2, LONG)
    assert reads.asked[2:] == [(3, False), (4, True)]


class Hearing(Told):
    """`told`: what it heard."""

    def __init__(self, *in_place: int) -> None:
        super().__init__(*in_place)
        self.told: list[SeenLayer] = []

    def seen(self, seen: SeenLayer) -> None:
        self.told.append(seen)


def run_in_order(staging: Staging, *layers: int) -> None:
    for layer in layers:
        staging.before(layer, LONG + layer, None, TILE)
        staging.after(layer, LONG + layer)


def test_what_was_seen_is_told_with_its_step_and_how_it_was_read() -> None:
    reads = Hearing(1)
    run_in_order(staging_over(CountingLane(), reads), 0, 1, 1, 2, 0)
    steps = [(1, 0), (1, 1), (2, 1), (2, 2), (3, 0)]
    assert reads.told == [
        SeenLayer(step, layer, LONG + layer, look, look / 10, layer != 1) for look, (step, layer) in enumerate(steps, 1)
    ]


def test_only_the_first_layers_of_a_step_are_awaited_and_the_others_are_heard_of_later() -> None:
    lane, reads = CountingLane(is_late=True), Hearing()
    staging = staging_over(lane, reads)
    run_in_order(staging, *range(LAYERS))
    assert [one.layer for one in reads.told] == list(range(AWAITED))
    run_in_order(staging, 0)
    assert [(one.step, one.layer) for one in reads.told[AWAITED:]] == [
        *((1, n) for n in range(AWAITED, LAYERS)),
        (2, 0),
    ]
    assert len(lane.awaited) == LAYERS + 1


def test_what_is_there_is_heard_of_before_a_step_begins() -> None:
    lane, reads = CountingLane(is_late=True), Hearing()
    staging = staging_over(lane, reads)
    run_in_order(staging, *range(LAYERS))
    lane.is_late = False
    staging.before(0, LONG, None, TILE)
    assert [one.layer for one in reads.told] == list(range(LAYERS))


def test_what_was_made_up_is_heard_of_and_forgotten() -> None:
    lane, reads = CountingLane(is_late=True), LongReads({layer: ColdRows(100, 1.0) for layer in range(LAYERS)})
    staging = staging_over(lane, reads)
    run_in_order(staging, *range(LAYERS))
    staging.forget()
    assert lane.awaited == list(range(1, LAYERS + 1))
    assert reads.is_staged(9, 3, LONG, is_ahead=True), "as if it had never been seen"


def test_the_cold_rows_of_the_layer_are_looked_at_before_its_kernel_begins() -> None:
    lane = CountingLane()
    staging_over(lane).before(3, LONG, None, TILE)
    assert lane.looked == [(range(3, 4), TILE)]
    assert lane.begun == [1]


def test_a_step_of_as_many_tokens_as_the_limit_is_not_long() -> None:
    staging = staging_over(CountingLane())
    assert staging.is_long(LONG)
    assert not staging.is_long(SHORT)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_few_layers_take_turns_too(layers: int) -> None:
    lane = OrderedLane(is_latest=True, rows={layer: layer for layer in range(layers)})
    staging = staging_over(lane, layers=layers)
    for _ in range(3):
        assert all(run_layer(staging, lane, layer) for layer in range(layers))


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens"), [(128, 8, 1024), (384, 6, 4096), (8, 2, 256), (2, 2, 64), (10, 3, 213)]
)
def test_a_step_is_long_when_it_brings_more_than_a_tile_to_each_expert(experts: int, top_k: int, tokens: int) -> None:
    assert long_step(experts, top_k) == tokens
