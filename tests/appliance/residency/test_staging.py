"""Long steps read the rows that are there now, whatever the order of layers, and no part is filled while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.residency.staging import PARTS, Copy, Staging, long_step

LAYERS = 7
ABOVE = 100
LONG, SHORT = ABOVE + 1, ABOVE


@dataclass
class OrderedLane:
    """Two streams: a copy runs at any moment after all that stood on the model's stream when it began, and what reads
    it after it. `is_latest` has each copy run as late, else as early as that allows."""

    is_latest: bool
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


def staging_over(lane: OrderedLane) -> Staging:
    """Layer n's rows are at address n; its part is n modulo PARTS."""
    return Staging(lane, {layer: [Copy(layer % PARTS, layer, 1)] for layer in range(LAYERS)}, ABOVE)


def run_layer(staging: Staging, lane: OrderedLane, layer: int, tokens: int) -> bool:
    """Whether staging was read; what was read is right."""
    is_staged = staging.before(layer, tokens)
    if is_staged:
        assert lane.staging[layer % PARTS] == lane.rows[layer]
        staging.after(layer)
    return is_staged


STEP = st.tuples(
    st.sampled_from([LONG, SHORT]),
    st.booleans(),
    st.lists(st.integers(0, LAYERS - 1), max_size=10),
    st.sets(st.integers(0, LAYERS - 1)),
)


@given(steps=st.lists(STEP, max_size=8), is_latest=st.booleans())
def test_every_long_layer_reads_its_own_rows_as_they_are_now(
    steps: list[tuple[int, bool, list[int], set[int]]], is_latest: bool
) -> None:
    lane = OrderedLane(is_latest, rows={layer: layer for layer in range(LAYERS)})
    staging = staging_over(lane)
    for number, (tokens, is_in_order, some, exchanged) in enumerate(steps, 1):
        for layer in exchanged:
            lane.rows[layer] = 100 * number + layer
            staging.exchanged(layer)
        for layer in range(LAYERS) if is_in_order else some:
            assert run_layer(staging, lane, layer, tokens) == (tokens == LONG)


@dataclass
class CountingLane:
    copied: list[int] = field(default_factory=list)

    def copy_behind_model(self, copies: Sequence[Copy]) -> object:
        self.copied += [copy.source for copy in copies]
        return None

    def hold_model(self, copied: object) -> None:
        pass


def test_in_order_each_layer_is_copied_once_and_its_copy_begins_two_layers_ahead() -> None:
    lane = CountingLane()
    staging = Staging(lane, {layer: [Copy(layer % PARTS, layer, 1)] for layer in range(LAYERS)}, ABOVE)
    for layer in range(LAYERS):
        assert staging.before(layer, LONG)
        assert lane.copied == list(range(min(layer + PARTS, LAYERS)))
        staging.after(layer)
        assert lane.copied == list(range(min(layer + PARTS + 1, LAYERS)))


def test_a_short_step_copies_nothing() -> None:
    lane = CountingLane()
    assert not Staging(lane, {3: [Copy(0, 3, 1)]}, ABOVE).before(3, SHORT)
    assert lane.copied == []


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_few_layers_take_turns_too(layers: int) -> None:
    lane = OrderedLane(is_latest=True, rows={layer: layer for layer in range(layers)})
    staging = Staging(lane, {layer: [Copy(layer % PARTS, layer, 1)] for layer in range(layers)}, ABOVE)
    for _ in range(3):
        assert all(run_layer(staging, lane, layer, LONG) for layer in range(layers))


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(128, 8, 1024), (384, 6, 4096), (8, 2, 256), (2, 2, 64)])
def test_a_step_is_long_when_it_brings_more_than_a_tile_to_each_expert(experts: int, top_k: int, tokens: int) -> None:
    assert long_step(experts, top_k) == tokens
