"""Long steps take about as long as with the better of the two ways, whatever they visit: replayed on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.residency.long_reads import ColdRows, LongReads, SeenLayer
from appliance.residency.staging import AWAITED, ColdPart, Copy, Staging

LAYERS, COLD, COPY_S = 12, 42, 7.2e-3
ATTENTION_S, EXPERTS_S = 1.6e-7, 3.2e-7
"""A token's and layer's, before and after its router. Of the shape in docs/measurements.md."""
ROWS = {layer: ColdRows(COLD, COPY_S) for layer in range(LAYERS)}


@dataclass(frozen=True)
class Traffic:
    """A step: tokens, and how many times as many readings as cold rows its layers need, in turn."""

    tokens: int
    shares: Sequence[float]
    attention_s: float = ATTENTION_S


@dataclass
class Look:
    readings: int
    at_s: float
    begun_s: float = inf


@dataclass
class Transfer:
    from_s: float
    left_s: float
    done_s: float = 0.0


@dataclass
class Paper:
    """A card and its link, as a staging.Lane. `overlaps`: whether readings in place hide behind the kernel's own work;
    `is_late`: whether the processor is so far ahead that only what it awaits is there; `slow`: how much slower copies
    are than they were measured. A copy and a reading at a time share the link."""

    overlaps: bool = False
    is_late: bool = True
    slow: float = 1.0
    model: float = 0.0
    link: float = 0.0
    copies: list[Transfer] = field(default_factory=list)
    found_before: Look | None = None

    def copy_behind_model(self, copies: Sequence[Copy]) -> object:
        self.copies.append(Transfer(self.model, copies[0].size / 1e9 * self.slow))
        return self.copies[-1]

    def hold_model(self, copied: object) -> None:
        assert isinstance(copied, Transfer)
        self._carry(inf, copied)
        self.model = max(self.model, copied.done_s)

    def look(self, visited: object, cold: range, tile: int) -> object:
        assert isinstance(visited, int)
        return Look(visited, self.model)

    def begin(self, look: object) -> None:
        assert isinstance(look, Look)
        look.begun_s = self.model

    def found(self, look: object, *, is_awaited: bool) -> tuple[int, float] | None:
        assert isinstance(look, Look)
        if self.is_late and not is_awaited:
            return None
        before, self.found_before = self.found_before, look
        return look.readings, look.at_s - before.begun_s if before else 0.0

    def compute(self, work_s: float, read_s: float) -> None:
        begun_s = self.model
        if read_s:
            self._carry(self.model)
            reading = Transfer(self.model, read_s)
            self._carry(inf, reading, reading)
            self.model = reading.done_s
        self.model = max(self.model, begun_s + work_s) if self.overlaps else self.model + work_s

    def _carry(self, until_s: float, wanted: Transfer | None = None, reading: Transfer | None = None) -> None:
        """The link does what is to be done, until then or until `wanted` is."""
        while self.link < until_s and (wanted is None or wanted.left_s):
            copy = next((copy for copy in self.copies if copy.left_s), None)
            from_s = copy.from_s if copy else inf
            busy = [one for one in (copy, reading) if one and one.from_s <= self.link]
            step_s = min([until_s - self.link, *(one.left_s * len(busy) for one in busy)])
            if from_s > self.link:
                step_s = min(step_s, from_s - self.link)
            self.link += step_s
            for one in busy:
                one.left_s -= step_s / len(busy)
                if one.left_s < 1e-12:
                    one.left_s, one.done_s = 0.0, self.link


class Always(LongReads):
    def __init__(self, rows: Mapping[int, ColdRows], is_staged: bool) -> None:
        super().__init__(rows)
        self._is_staged = is_staged

    def is_staged(self, step: int, layer: int, tokens: int, *, is_ahead: bool) -> bool:
        return self._is_staged


@dataclass
class Replay:
    """Steps, over layers with such cold rows."""

    steps: Sequence[Traffic]
    rows: Mapping[int, ColdRows] = field(default_factory=lambda: ROWS)
    overlaps: bool = False
    is_late: bool = True
    slow: float = 1.0

    def times(self, reads: LongReads) -> list[float]:
        """Seconds of each step."""
        paper, took = Paper(self.overlaps, self.is_late, self.slow), []
        parts = {
            layer: ColdPart(range(rows.count), [Copy(0, 0, round(rows.copy_s * 1e9))])
            for layer, rows in self.rows.items()
        }
        staging = Staging(paper, parts, reads, above=0)
        for step in self.steps:
            began = paper.model
            for layer, rows in self.rows.items():
                paper.model += step.attention_s * step.tokens
                readings = round(rows.count * step.shares[layer % len(step.shares)])
                is_staged = staging.before(layer, step.tokens, readings, 64)
                paper.compute(EXPERTS_S * step.tokens, 0 if is_staged else rows.in_place_s(readings))
                staging.after(layer, step.tokens)
                staging.exchanged(layer)  # what the last step left is not what is measured here
            took.append(paper.model - began)
        return took

    def chosen(self) -> list[float]:
        return self.times(LongReads(self.rows))

    def best(self) -> list[float]:
        """Of each step, the better way for all its layers."""
        return [min(both) for both in zip(*(self.times(Always(self.rows, way)) for way in (True, False)), strict=True)]

    def last_to_best(self, last: int) -> float:
        """Of the last steps, ours to the best."""
        return sum(self.chosen()[-last:]) / sum(self.best()[-last:])


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("share", [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.2, 2, 4])
@pytest.mark.parametrize("tokens", [1100, 2048, 4096, 8192, 16_384])
def test_the_same_traffic_again_takes_no_longer_than_the_better_way(
    tokens: int, share: float, overlaps: bool, is_late: bool
) -> None:
    assert Replay([Traffic(tokens, [share])] * 6, overlaps=overlaps, is_late=is_late).last_to_best(1) <= 1.1


EVEN, SKEWED = [1.9], [0.95, *[0.1] * (LAYERS - 1)]
DEEP_S = 4e-6
"""Attention over a long context."""


@pytest.mark.parametrize(
    "before",
    [
        [Traffic(4096, EVEN)] * 20,
        [Traffic(16_384, [4.0])] * 3,
        [Traffic(2048, [0.5], DEEP_S)] * 5,
        [Traffic(2048, [2.0], DEEP_S)] * 5,
        [Traffic(1100, [0.0])] * 5,
    ],
)
@pytest.mark.parametrize("slow", [1.0, 1.2, 1.5])
@pytest.mark.parametrize("tokens", [1100, 3000, 8192])
def test_nothing_that_was_before_spoils_what_follows(tokens: int, slow: float, before: list[Traffic]) -> None:
    """Its second step knows it."""
    for shares in (SKEWED, EVEN, [0.2], [2.0, 0.1, 0.1]):
        replay = Replay([*before, *[Traffic(tokens, shares)] * 4], slow=slow)
        assert replay.last_to_best(3) <= 1.15


@pytest.mark.parametrize(("shares", "most"), [([0.1, 3, 3], 0.8), ([1.5, 0.1], 0.75)])
def test_layers_that_differ_are_read_each_in_its_own_way(shares: list[float], most: float) -> None:
    assert Replay([Traffic(2048, shares)] * 4).last_to_best(2) < most


def test_a_layer_that_varies_around_a_copy_does_not_have_the_whole_step_staged() -> None:
    rows = {layer: ColdRows(COLD, COPY_S) for layer in range(60)}
    light = [0.1] * 59
    steps = [Traffic(2048, [0.85 if number % 2 else 0.92, *light]) for number in range(8)]
    assert Replay(steps, rows).last_to_best(6) <= 1.1


@pytest.mark.parametrize("is_late", [False, True])
def test_a_prompt_unlike_the_one_before_is_told_by_its_first_layers(is_late: bool) -> None:
    steps = [Traffic(4096, [0.2 if number % 2 else 3.0]) for number in range(12)]
    replay = Replay(steps, is_late=is_late)
    assert sum(replay.chosen()) < 0.9 * sum(replay.times(Always(ROWS, True)))
    assert sum(replay.chosen()) < 0.5 * sum(replay.times(Always(ROWS, False)))
    heavy, staged = (found[2] for found in (replay.chosen(), replay.times(Always(ROWS, True))))
    assert heavy <= staged + 2 * ROWS[0].in_place_s(3 * COLD), "a layer, and the copies that nothing hid"


def test_what_lost_a_copy_in_place_is_not_gone_on_with_although_it_was_never_visited() -> None:
    """The layers that were visited before are as they were, so that nothing more is expected of those that were not."""
    steps = [Traffic(2048, [0.0, 1.5]), Traffic(2048, [0.0, 1.5]), Traffic(2048, [4.0])]
    replay = Replay(steps)
    staged = replay.times(Always(ROWS, True))[2]
    assert replay.chosen()[2] <= staged + ROWS[0].in_place_s(4 * COLD) + COPY_S, "the first one"


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.7])
def test_chunks_over_long_and_short_contexts_by_turns(share: float, is_late: bool) -> None:
    rows = {layer: ColdRows(COLD, COPY_S) for layer in range(48)}
    steps = [Traffic(2048, [share], 4e-6 if number % 2 else ATTENTION_S) for number in range(12)]
    assert Replay(steps, rows, is_late=is_late).last_to_best(6) <= 1.25


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("others", [0.3, 1.5, 2, 4])
def test_first_layers_with_hardly_a_row_do_not_decide_for_the_others(others: float, is_late: bool) -> None:
    """Each of their two rows is visited in one step of four."""
    few, many = ColdRows(2, COPY_S / 21), ColdRows(COLD, COPY_S)
    rows = {layer: few if layer < AWAITED else many for layer in range(48)}
    steps = [
        Traffic(4096, [*[float((number + layer) % 4 == 0) for layer in range(AWAITED)], *[others] * (48 - AWAITED)])
        for number in range(16)
    ]
    assert Replay(steps, rows, is_late=is_late).last_to_best(12) <= 1.1


def test_layers_with_one_cold_expert_that_nobody_visits_are_read_in_place() -> None:
    rows = {layer: ColdRows(1, COPY_S) for layer in range(LAYERS)}
    assert Replay([Traffic(1100, [0])] * 4, rows).last_to_best(2) <= 1.01


@pytest.mark.parametrize(("tokens", "then", "is_staged"), [(2000, 8000, True), (8000, 2000, False)])
def test_more_tokens_are_expected_to_need_more_readings(tokens: int, then: int, is_staged: bool) -> None:
    reads = LongReads(ROWS)
    reads.seen(SeenLayer(0, 3, tokens, COLD if tokens > then else COLD // 3, 0.0, True))
    assert reads.is_staged(1, 3, then, is_ahead=True) is is_staged


STEP = st.builds(
    Traffic,
    st.sampled_from([1100, 2048, 4096, 8192, 16_384]),
    st.lists(st.floats(0, 8), min_size=1, max_size=LAYERS),
    st.sampled_from([ATTENTION_S, DEEP_S]),
)


@settings(max_examples=300)
@given(steps=st.lists(STEP, min_size=1, max_size=6), overlaps=st.booleans(), is_late=st.booleans())
def test_a_step_like_the_one_before_is_never_much_longer_than_with_staging(
    steps: list[Traffic], overlaps: bool, is_late: bool
) -> None:
    replay = Replay([step for step in steps for _ in range(2)], overlaps=overlaps, is_late=is_late)
    staged, found = replay.times(Always(ROWS, True)), replay.chosen()
    for mine, theirs in list(zip(found, staged, strict=True))[1::2]:
        assert mine <= 1.15 * theirs + COPY_S


@given(steps=st.lists(STEP, min_size=1, max_size=6))
def test_a_step_whose_layers_are_alike_is_never_much_longer_than_with_staging(steps: list[Traffic]) -> None:
    """Whatever was visited before: in place it goes on only as long as three layers lose no more than a copy, so that
    none takes more than a copy and a third, beside work that could have hidden it."""
    alike = [Traffic(step.tokens, step.shares[:1], steps[0].attention_s) for step in steps]
    replay = Replay(alike)
    for step, mine, theirs in zip(alike, replay.chosen(), replay.times(Always(ROWS, True)), strict=True):
        assert mine <= (2 + 1 / 3) * theirs + AWAITED * COPY_S + ROWS[0].in_place_s(COLD * step.shares[0])


def hear(reads: LongReads, step: int, layers: range, since_s: float = 0.002, readings: int = 4) -> None:
    """Layers of a step of 2,048 tokens, each staged if that is chosen."""
    for layer in layers:
        is_staged = reads.is_staged(step, layer, 2048, is_ahead=True)
        reads.seen(SeenLayer(step, layer, 2048, readings, since_s, is_staged))


def test_a_pause_is_forgotten() -> None:
    reads = LongReads(ROWS)
    for step, since_s in enumerate((0.002, 1.0, 0.002, 0.002)):
        hear(reads, step, range(LAYERS), since_s)
    assert not any(reads.is_staged(5, layer, 2048, is_ahead=True) for layer in range(LAYERS))


def test_what_is_between_two_steps_is_no_work_of_the_last_layer() -> None:
    reads = LongReads(ROWS)
    for step in range(3):
        hear(reads, step, range(1), since_s=9.0)
        hear(reads, step, range(1, LAYERS))
    assert not reads.is_staged(3, LAYERS - 1, 2048, is_ahead=True)


def test_what_is_heard_of_a_step_that_is_over_says_nothing_of_the_one_that_runs() -> None:
    reads = LongReads(ROWS)
    hear(reads, 1, range(6))
    hear(reads, 2, range(3))
    assert not reads.is_staged(3, 0, 2048, is_ahead=True)
    for layer in range(3, 6):
        reads.seen(SeenLayer(2, layer, 2048, 3 * COLD, 0.1, True))
    assert not reads.is_staged(3, 0, 2048, is_ahead=True)
    assert reads.is_staged(3, 4, 2048, is_ahead=True)


def test_what_a_staged_layer_would_have_read_is_no_part_of_its_time() -> None:
    reads = LongReads(ROWS)
    for step in (1, 2):
        for layer in range(3):
            reads.seen(SeenLayer(step, layer, 2048, 20, 0.005, True))
    assert reads.is_staged(3, 0, 2048, is_ahead=True)


def test_readings_that_took_no_time_are_not_work_of_less_than_none() -> None:
    reads = LongReads(ROWS)
    for step in (1, 2):
        for layer in range(3):
            reads.seen(SeenLayer(step, layer, 2048, COLD - 2, 0.002, False))
    assert reads.is_staged(3, 0, 2048, is_ahead=True)


def test_what_was_made_up_is_forgotten() -> None:
    reads, fresh = (LongReads(ROWS) for _ in range(2))
    for step in (1, 2):
        for layer in (0, 1):
            reads.is_staged(step, layer, 2048, is_ahead=True)
            reads.seen(SeenLayer(step, layer, 2048, 0, 1.0, False))
    assert not reads.is_staged(3, 0, 2048, is_ahead=False)
    reads.forget()
    assert vars(reads) == vars(fresh)
