"""gateway.history, tallies, sparkline: what is kept of the last hour and how it is drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.history import GAP_S, STEP_S, STEPS, History, Look
from gateway.outcome import Outcome
from gateway.status import sparkline
from gateway.tallies import WAITS_KEPT, Tallies

LOOKS = st.lists(
    st.tuples(
        st.floats(0, 30),
        st.integers(0, 4),
        st.none() | st.floats(1, 200),
        st.integers(0, 5000),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=60,
)


def outcome(seat: str = "ana", **fields: object) -> Outcome:
    made = Outcome("id", "/v1/chat/completions", seat=seat, word="ok")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_step_keeps_the_most_streams_and_the_slowest_pace() -> None:
    history = History()
    for at_s, streams, pace in ((0, 1, 60.0), (1, 4, 41.0), (2, 2, None), (3, 2, 55.0)):
        history.add(at_s, Look(streams, pace))
    found = history.view(4, 1000.0)
    assert found is not None
    assert (found.streams, found.slowest_tok_per_s, found.cached_share) == ((4,), (41.0,), (None,))


def test_the_share_of_a_step_is_that_of_what_ended_in_it() -> None:
    history = History()
    history.add(0, Look(1, None, 1000, 900))
    history.add(STEP_S, Look(1, None, 3000, 1000))
    history.add(2 * STEP_S, Look(1, None, 3000, 1000))
    found = history.view(2 * STEP_S, 0.0)
    assert found is not None
    assert found.cached_share == (0.9, 0.05, None)


def test_a_time_without_a_look_is_a_gap() -> None:
    history = History()
    history.add(0, Look(2, None, 0, 0))
    history.add(4 * STEP_S, Look(3, None, 0, 0))
    found = history.view(5 * STEP_S, 0.0)
    assert found is not None
    assert found.streams == (2, None, None, None, 3), "a step that has just begun is no gap"
    later = history.view(6 * STEP_S, 0.0)
    assert later is not None
    assert later.streams == (2, None, None, None, 3, None, None)


def test_what_a_look_saw_lasts_until_the_next_and_no_longer_than_a_gap() -> None:
    history = History()
    for at_s, reading, closed, waiting in (
        (0.0, True, False, {"gate": 2}),
        (2.0, False, True, {"gate": 1, "pace": 1}),
        (3.0, True, True, {}),
        (1000.0, False, False, {}),
    ):
        history.add(at_s, Look(reading=reading, closed=closed, waiting=waiting))
    found = history.view(1000.0, 0.0)
    assert found is not None
    assert (found.reading_s, found.closed_s) == (2.0 + GAP_S, 1.0 + GAP_S)
    assert found.waited_s == {"gate": 2 * 2.0 + 1.0, "pace": 1.0}
    assert found.reading_share[0] == 2 / 3


def test_nothing_is_shown_before_the_first_look() -> None:
    assert History().view(5.0, 0.0) is None


@given(LOOKS)
def test_a_history_is_bounded_and_its_lines_are_of_one_length(
    looks: list[tuple[float, int, float | None, int, float]],
) -> None:
    history, now_s, prompt, cached = History(), 0.0, 0, 0
    for pause_s, streams, pace, more, share in looks:
        now_s += pause_s * 20
        prompt += more
        cached += int(more * share)
        history.add(now_s, Look(streams, pace, prompt, cached, streams > 1, streams > 2, {"gate": streams}))
    found = history.view(now_s, 0.0)
    assert found is not None
    lines = (found.streams, found.slowest_tok_per_s, found.cached_share, found.reading_share)
    assert len({len(line) for line in lines}) == 1
    assert len(found.streams) <= STEPS
    assert all(share is None or 0 <= share <= 1 for share in (*found.cached_share, *found.reading_share))
    assert 0 <= found.closed_s <= found.reading_s <= len(looks) * GAP_S


def test_a_seats_hit_rate_counts_only_what_the_engine_told() -> None:
    tallies = Tallies()
    tallies.add(outcome(prompt_tokens=1000, cached_tokens=800, queue_s=0.1))
    tallies.add(outcome(prompt_tokens=5000, cached_tokens=None, queue_s=0.1))
    assert tallies.of("ana").hit_share == 0.8
    assert tallies.of("ben").hit_share is None
    assert tallies.total.prompt_tokens == 1000


def test_waits_are_those_of_what_got_a_ticket_the_latest_of_them() -> None:
    tallies = Tallies()
    tallies.add(outcome(word="refused"))
    assert tallies.of("ana").wait_p95_s is None
    for number in range(1, WAITS_KEPT + 101):
        tallies.add(outcome(queue_s=float(number)))
    assert tallies.of("ana").wait_p95_s == 100 + 0.95 * WAITS_KEPT


def test_what_no_seat_sent_is_of_no_seat() -> None:
    tallies = Tallies()
    tallies.add(outcome("", prompt_tokens=10, cached_tokens=5))
    assert tallies.of("").prompt_tokens == 0
    assert tallies.total.prompt_tokens == 10


def test_a_line_is_broken_at_gaps_and_a_lone_point_is_a_dot() -> None:
    assert sparkline.line((0.0, 1.0, None, 0.5, None)) == "M0 100L250 0M750 50h0.01"
    assert sparkline.area((0.0, 1.0, None, 0.5, None)) == "M0 100L250 0V100H0Z"
    assert sparkline.line(()) == sparkline.area(()) == ""


@given(st.lists(st.none() | st.floats(-1, 2), max_size=50))
def test_a_line_stays_in_its_picture(points: list[float | None]) -> None:
    drawn = sparkline.line(points).replace("h0.01", "").replace("M", "L").split("L")[1:]
    places = [tuple(map(float, place.split())) for place in drawn]
    assert len(places) == sum(point is not None for point in points)
    assert all(0 <= x <= sparkline.WIDTH and 0 <= y <= sparkline.HEIGHT for x, y in places)
