"""Long steps take about as long as with the better of the two ways, whatever they visit: replayed on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.residency.long_reads import IN_PLACE_RATE, ColdRows, LongReads, SeenLayer
from appliance.residency.staging import ColdPart, Copy, Staging

LAYERS, COLD, COPY_S = 12, 42, 7.2e-3
TILE_STEP = 1024
"""Tokens that bring a tile to each expert."""
WORK_S = 95e-3 / 16_384 / LAYERS
"""A token's and layer's; a third of it before the layer's router has run. Of the shape in docs/measurements.md."""


@dataclass(frozen=True)
class Traffic:
    """A step: tokens, and how many times as many readings as cold rows its layers need, in turn."""

    tokens: int
    shares: Sequence[float]

    def readings(self, layer: int) -> int:
        return int(COLD * self.shares[layer % len(self.shares)])


class Paper:
    """A card and a link, as a staging.Lane. `overlaps`: whether readings in place hide behind the kernel's own work."""

    def __init__(self, overlaps: bool) -> None:
        self._overlaps = overlaps
        self.model = self.link = 0.0

    def copy_behind_model(self, copies: Sequence[Copy]) -> object:
        self.link = max(self.link, self.model) + COPY_S
        return self.link

    def hold_model(self, copied: object) -> None:
        assert isinstance(copied, float)
        self.model = max(self.model, copied)

    def look(self, visited: object, cold: range) -> None:
        assert isinstance(visited, int)
        self._seen = visited, self.model

    def seen(self) -> tuple[int, float]:
        return self._seen

    def compute(self, tokens: int, readings: int) -> None:
        work, read = WORK_S * tokens * 2 / 3, readings * COPY_S / COLD / IN_PLACE_RATE
        self.model += max(work, read) if self._overlaps else work + read


class Always(LongReads):
    def __init__(self, is_staged: bool) -> None:
        super().__init__(ROWS, TILE_STEP)
        self._is_staged = is_staged

    def is_staged(self, layer: int, tokens: int, *, is_ahead: bool) -> bool:
        return self._is_staged


ROWS = {layer: ColdRows(COLD, COPY_S) for layer in range(LAYERS)}


def times(steps: Sequence[Traffic], reads: LongReads, overlaps: bool = False) -> list[float]:
    """Seconds of each step."""
    paper, took = Paper(overlaps), []
    parts = {layer: ColdPart(range(COLD), [Copy(0, 0, 1)]) for layer in range(LAYERS)}
    staging = Staging(paper, parts, reads, above=0)
    for step in steps:
        began = paper.model
        for layer in range(LAYERS):
            paper.model += WORK_S * step.tokens / 3
            is_staged = staging.before(layer, step.tokens, step.readings(layer))
            paper.compute(step.tokens, 0 if is_staged else step.readings(layer))
            staging.after(layer)
            staging.exchanged(layer)  # what the last step left is not what is measured here
        took.append(paper.model - began)
    return took


def chosen(steps: Sequence[Traffic], overlaps: bool = False) -> list[float]:
    return times(steps, LongReads(ROWS, TILE_STEP), overlaps)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 1.2, 2, 4])
@pytest.mark.parametrize("tokens", [1100, 2048, 4096, 8192, 16_384])
def test_the_same_traffic_again_takes_no_longer_than_the_better_way(tokens: int, share: float, overlaps: bool) -> None:
    steps = [Traffic(tokens, [share])] * 6
    best = min(times(steps, Always(is_staged), overlaps)[-1] for is_staged in (True, False))
    assert chosen(steps, overlaps)[-1] <= 1.07 * best


def test_layers_that_differ_are_read_each_in_its_own_way() -> None:
    steps = [Traffic(2048, [0.1, 3, 3])] * 4
    best = min(times(steps, Always(is_staged))[-1] for is_staged in (True, False))
    assert chosen(steps)[-1] < 0.8 * best


STEP = st.builds(
    Traffic,
    st.sampled_from([1100, 2048, 4096, 8192, 16_384]),
    st.lists(st.floats(0, 8), min_size=1, max_size=LAYERS),
)


@settings(max_examples=300)
@given(steps=st.lists(STEP, min_size=1, max_size=8), overlaps=st.booleans())
def test_no_step_is_much_longer_than_with_staging_whatever_it_visits(steps: list[Traffic], overlaps: bool) -> None:
    """What is not as it was expected is seen after a layer: that one is lost, and copies that nothing hides."""
    staged, found = times(steps, Always(True), overlaps), chosen(steps, overlaps)
    for step, mine, theirs in zip(steps, found, staged, strict=True):
        most = max(map(step.readings, range(LAYERS))) * COPY_S / COLD / IN_PLACE_RATE
        assert mine <= 1.15 * theirs + 2 * most + 2 * COPY_S


def test_prompts_that_differ_from_those_before_do_not_spoil_them() -> None:
    steps = [Traffic(4096, [0.2 if number % 2 else 3.0]) for number in range(12)]
    found = sum(chosen(steps))
    assert found < 0.9 * sum(times(steps, Always(True)))
    assert found < 0.5 * sum(times(steps, Always(False)))


def test_a_pause_of_the_processor_is_forgotten() -> None:
    reads = LongReads(ROWS, TILE_STEP)
    at_s = 0.0
    for step in range(4):
        reads.begin_step()
        for layer in range(LAYERS):
            is_staged = reads.is_staged(layer, 2048, is_ahead=True)
            at_s += 1.0 if (step, layer) == (1, 5) else 0.002
            reads.seen(SeenLayer(layer, 2048, 4, at_s, is_staged))
    assert not reads.is_staged(0, 2048, is_ahead=True)


def test_what_was_made_up_is_forgotten() -> None:
    reads = LongReads(ROWS, TILE_STEP)
    reads.seen(SeenLayer(0, 2048, 0, 1.0, True))
    assert not reads.is_staged(0, 2048, is_ahead=False)
    reads.forget()
    assert reads.is_staged(0, 2048, is_ahead=False)
