"""All ranks exchange the same rows before the same step, whatever the deciding one takes its time for, and no row is
lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from appliance.plan.stats import load as load_stats
from appliance.residency.deciding import COUNTS, FIGURES, LEARNED, WRITE_S, Deciding
from appliance.residency.document import Residency
from appliance.residency.document import load as load_document
from appliance.residency.following import MIB, Following, Orders
from appliance.residency.layout import places_of
from appliance.residency.live import ROUND_STEPS, STEP_BYTES, STEP_SWAPS, Live, Move, half_round_bytes

EXPERTS, COLD, LAYERS, TOP_K = 16, 5, 3, 2
RESIDENCY = Residency(
    "sha256:p", "m", LAYERS, EXPERTS, TOP_K, 2, dict.fromkeys(range(LAYERS), tuple(range(11, 16))), {}, ()
)


@dataclass
class Layer:
    """A placing.Placed."""

    rows: tuple[int, ...] = tuple(range(EXPERTS))

    @property
    def places(self) -> tuple[int, ...]:
        return places_of(self.rows)


@dataclass
class RowSize:
    row_bytes: int


@dataclass
class Read:
    """A counters.Reading."""

    tokens: int
    counted: list[list[int]]

    def visits(self) -> list[list[int]]:
        return self.counted


@dataclass
class Rank:
    """What the card has: where each expert's content is, and the counts."""

    row_bytes: int = MIB
    content: dict[int, list[int]] = field(default_factory=lambda: {n: list(range(EXPERTS)) for n in range(LAYERS)})
    layers: dict[int, Layer] = field(default_factory=lambda: {number: Layer() for number in range(LAYERS)})
    loads: list[list[int]] = field(default_factory=lambda: [[0] * EXPERTS for _ in range(LAYERS)])
    tokens: int = 0
    made: list[tuple[int, int, int]] = field(default_factory=list)

    def swap(self, rows: RowSize, order: Sequence[int], here: int, there: int) -> tuple[int, ...]:
        number = next(n for n, one in self.sizes.items() if one is rows)
        for kept in (self.content[number], self.loads[number]):
            kept[here], kept[there] = kept[there], kept[here]
        self.made.append((number, here, there))
        return tuple(self.content[number])

    def read(self) -> Read:
        reading = Read(self.tokens, [list(one) for one in self.loads])
        self.tokens, self.loads[:] = 0, [[0] * EXPERTS for _ in range(LAYERS)]
        return reading

    def visit(self, weights: Sequence[float], chance: random.Random) -> None:
        self.tokens += 4
        for number in range(LAYERS):
            for expert in chance.choices(range(EXPERTS), weights, k=4 * TOP_K):
                self.loads[number][self.content[number].index(expert)] += 1

    def __post_init__(self) -> None:
        self.sizes = {number: RowSize(self.row_bytes) for number in range(LAYERS)}


class Box:
    """Ranks with one broadcast between them."""

    def __init__(self, decider: Any, ranks: int = 2, row_bytes: int = MIB) -> None:
        self.ranks = [Rank(row_bytes) for _ in range(ranks)]
        self._told: list[Sequence[Move]] = []
        self.exchanged: list[list[int]] = [[] for _ in self.ranks]
        self.lives = [
            Live(
                one.layers,
                one.sizes,
                one,
                one,
                self._agreeing(place),
                self.exchanged[place].append,
                None if place else decider,
            )  # type: ignore[arg-type]
            for place, one in enumerate(self.ranks)
        ]

    def _agreeing(self, place: int) -> Callable[[Sequence[Move]], Sequence[Move]]:
        def agree(moves: Sequence[Move]) -> Sequence[Move]:
            if place == 0:
                self._told.append(list(moves))
            return self._told[-1]

        return agree

    def step(self, is_counted: bool = True) -> None:
        for live in self.lives:
            live.step(is_counted)

    def settle(self) -> None:
        """What is being decided is."""
        if (decision := self.lives[0]._decision) is not None:
            decision.join(timeout=10)


def deciding(folder: Path | None = None, mib_per_s: int = 10**6, step_s: float = WRITE_S) -> Deciding:
    """`step_s`: that pass whenever the clock is looked at."""
    row_bytes = dict.fromkeys(range(LAYERS), MIB)
    following = Following(RESIDENCY, row_bytes, mib_per_s, half_round_bytes(MIB))
    return Deciding(following, list(range(LAYERS)), folder, count(0.0, step_s).__next__)


def test_the_hot_set_is_followed_on_all_ranks_alike_and_every_row_is_where_it_is_said_to_be() -> None:
    box, chance = Box(deciding()), random.Random(1)
    weights = [1.0] * 8 + [200.0] * 8
    for step in range(20 * ROUND_STEPS):
        state = chance.getstate()
        for rank in box.ranks:
            chance.setstate(state)
            rank.visit(weights, chance)
        box.step(is_counted=step % 7 != 0)
        box.settle()
    first, second = box.ranks
    assert first.made == second.made
    for rank in box.ranks:
        assert all(tuple(rank.content[number]) == layer.rows for number, layer in rank.layers.items())
    for layer in first.layers.values():
        assert set(layer.rows[-COLD:]) <= set(range(8)), "the visited ones are in VRAM"
    assert [[number for number, *_ in rank.made] for rank in box.ranks] == box.exchanged


@dataclass
class Scripted:
    """A decider that says what it was given."""

    moves: list[Sequence[Move]]
    error: Exception | None = None
    heard: list[tuple[list[list[int]], Orders, Orders]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def decide(self, reading: Read, then: Orders, now: Orders, seconds: float) -> Sequence[Move]:
        self.heard.append((reading.visits(), then, now))
        self.seconds.append(seconds)
        if self.error:
            raise self.error
        return self.moves.pop(0) if self.moves else ()


def test_only_a_few_rows_change_places_before_a_step() -> None:
    many = [(number, hot, cold) for number in range(LAYERS) for hot, cold in zip(range(5), range(11, 16), strict=True)]
    box = Box(Scripted([many]))
    made = []
    for _ in range(3 * ROUND_STEPS):
        box.step()
        box.settle()
        made.append(len(box.ranks[0].made))
    each = [now - before for before, now in pairwise(made)]
    assert max(each) == STEP_SWAPS
    assert made[-1] == len(many)


def test_a_row_that_is_larger_than_a_step_is_allowed_goes_alone() -> None:
    box = Box(Scripted([[(0, 0, 11), (1, 0, 11)]]), row_bytes=STEP_BYTES)
    made = [0]
    for _ in range(3 * ROUND_STEPS):
        box.step()
        box.settle()
        made.append(len(box.ranks[0].made))
    assert [now - before for before, now in pairwise(made) if now != before] == [1, 1]


def test_nothing_is_decided_while_rows_still_move() -> None:
    decider = Scripted([[(0, 0, 11), (0, 1, 12)], [(0, 2, 13)]])
    box = Box(decider)
    for _ in range(5 * ROUND_STEPS):
        box.step()
        box.settle()
    orders = [now[0] for _, _, now in decider.heard]
    assert orders[0] == tuple(range(EXPERTS))
    assert orders[1][0] == 11
    assert orders[2][2] == 13


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_decider_that_fails_ends_the_following_and_not_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    box = Box(Scripted([], ValueError("odd counts")))
    for _ in range(4 * ROUND_STEPS):
        box.step()
        box.settle()
    said = "moe-residency: residency no longer follows traffic: ValueError: odd counts\n"
    assert capsys.readouterr().err == said
    assert box.ranks[0].made == []
    assert sum(map(sum, box.ranks[0].loads)) == 0


def test_a_thread_that_cannot_begin_ends_the_following_and_not_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    box = Box(Scripted([]))
    for _ in range(3 * ROUND_STEPS):
        box.step()
    assert capsys.readouterr().err.endswith("follows traffic: RuntimeError: can't start new thread\n")


def test_counts_are_written_as_plans_are_made_from_and_the_placement_as_it_is_read(tmp_path: Path) -> None:
    for name in (COUNTS, LEARNED, FIGURES):
        (tmp_path / name).write_text("of an engine before this one")
    box, chance = Box(deciding(tmp_path), ranks=1), random.Random(2)
    kept = {f"before-{name}" for name in (COUNTS, LEARNED)}
    assert {path.name for path in tmp_path.iterdir()} == kept
    for name in kept:
        (tmp_path / name).unlink()
    for _ in range(6 * ROUND_STEPS):
        box.ranks[0].visit([1.0] * 10 + [30.0] * 6, chance)
        box.step()
        box.settle()
    stats = load_stats(tmp_path / COUNTS)
    assert set(stats.counts) == set(range(LAYERS))
    assert all(sum(counts) <= stats.tokens * TOP_K for counts in stats.counts.values())
    learned = load_document(tmp_path / LEARNED)
    assert learned.plan_id == RESIDENCY.plan_id
    assert learned.cold != RESIDENCY.cold
    assert {layer: len(cold) for layer, cold in learned.cold.items()} == dict.fromkeys(range(LAYERS), COLD)
    figures = json.loads((tmp_path / FIGURES).read_text())
    assert figures["visits"] == figures["tokens"] * TOP_K * LAYERS
    assert 0 <= figures["cold_visits"] <= figures["visits"]
    assert figures["swapped"] == len(box.ranks[0].made)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_folder_that_takes_nothing_is_told_once_and_rows_move_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box, chance = Box(deciding(tmp_path / "gone"), ranks=1), random.Random(2)
    for _ in range(6 * ROUND_STEPS):
        box.ranks[0].visit([1.0] * 10 + [30.0] * 6, chance)
        box.step()
        box.settle()
    said = capsys.readouterr().err
    assert said.startswith("moe-residency: ")
    assert said.count("\n") == 1
    assert "cannot be written" in said
    assert box.ranks[0].made


def test_files_are_written_no_more_often_than_they_are_looked_at(tmp_path: Path) -> None:
    box, chance = Box(deciding(tmp_path, step_s=WRITE_S / 8), ranks=1), random.Random(2)
    times = set()
    for _ in range(16 * ROUND_STEPS):
        box.ranks[0].visit([1.0] * EXPERTS, chance)
        box.step()
        box.settle()
        times |= {path.stat().st_ino for path in tmp_path.glob(FIGURES)}
    assert 2 <= len(times) <= 4


def test_a_folder_that_cannot_be_cleared_keeps_no_engine_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FIGURES).mkdir()
    deciding(tmp_path)
    assert "cannot be written" in capsys.readouterr().err


def test_a_reading_says_how_long_the_engine_worked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    decider = Scripted([])
    box = Box(decider, ranks=1)
    for step in range(3 * ROUND_STEPS):
        clock[0] += 1000.0 if step == ROUND_STEPS + 5 else 0.01
        box.step()
        box.settle()
    assert [round(seconds, 2) for seconds in decider.seconds] == [1.28, 2.27]
