"""How often more streams were wanted than there are: against a count by hand, second by second."""

from __future__ import annotations

from collections import Counter
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.rows import Activity, Served
from gateway.sizing.activity import day_offset_s, measure

DAY = 86_400
HOUR = 3600


def served(start: float, end: float, seat: str = "ana", wait_s: float = 0.0) -> Served:
    return Served(start, wait_s, end, seat)


def measured(requests: list[Served], since: float = 0, until: float = DAY, streams: int = 4, tz: int = 0) -> Activity:
    found = measure(requests, since, until, streams, tz)
    assert found is not None
    return found


def by_hand(requests: list[Served], since: int, until: int, tz: int) -> tuple[Counter[int], int]:
    """Seconds with k wanted, and working seconds, counted one by one."""
    wanted: Counter[int] = Counter()
    for request in requests:
        begin, end = int(request.arrived_s), int(request.end_s - request.wait_s)
        wanted.update(range(max(begin, since), min(end, until)))
    held = Counter(wanted.values())
    working = 0
    for day in {(at + tz) // DAY for at in wanted}:
        inside = [at for at in wanted if (at + tz) // DAY == day]
        there = min((day + 1) * DAY - tz, until) - max(day * DAY - tz, since)
        working += max(max(inside) - min(inside) + 1, min(8 * HOUR, there))
    return held, working


REQUESTS = st.lists(
    st.tuples(st.integers(0, 3 * DAY), st.integers(0, 2000), st.integers(0, 4000), st.sampled_from("abc")), max_size=25
).map(lambda rows: sorted((Served(at, w, at + d, s) for at, w, d, s in rows), key=lambda row: row.arrived_s))


class TestCounting:
    @given(REQUESTS, st.integers(0, DAY), st.integers(2 * DAY, 3 * DAY), st.sampled_from([0, 7200, -12_600, 19_800]))
    def test_it_counts_as_by_hand(self, requests: list[Served], since: int, until: int, tz: int) -> None:
        held, working = by_hand(requests, since, until, tz)
        found = measure(requests, since, until, 2, tz)
        if not held:
            assert found is None
            return
        assert found is not None
        assert found.hours * HOUR == pytest.approx(working)
        assert sum(found.at_once) == pytest.approx(1)
        for k, share in enumerate(found.at_once[1:], 1):
            assert share == pytest.approx(held[k] / working, abs=1e-9)
        assert found.above_share == pytest.approx(sum(n for k, n in held.items() if k > 2) / working, abs=1e-9)
        assert found.duty_share * found.seats == pytest.approx(sum(k * n for k, n in held.items()) / working)

    def test_one_hour_of_a_day_is_an_eighth_of_its_working_time(self) -> None:
        found = measured([served(9 * HOUR, 10 * HOUR)])
        assert (found.days, found.hours, found.seats, found.requests) == (1, 8, 1, 1)
        assert found.at_once == pytest.approx((7 / 8, 1 / 8))
        assert found.duty_share == pytest.approx(1 / 8)

    def test_a_long_day_is_as_long_as_from_its_first_request_to_its_last(self) -> None:
        found = measured([served(6 * HOUR, 7 * HOUR), served(17 * HOUR, 18 * HOUR)])
        assert found.hours == 12

    def test_days_without_requests_are_no_working_time(self) -> None:
        found = measured([served(HOUR, 2 * HOUR), served(10 * DAY, 10 * DAY + 60)], until=14 * DAY)
        assert (found.days, found.hours) == (2, 16)

    def test_days_are_local(self) -> None:
        # given two requests around midnight in UTC, which is eight in the evening elsewhere
        requests = [served(DAY - 60, DAY - 1), served(DAY + 1, DAY + 60)]
        assert measured(requests, until=2 * DAY).days == 2
        assert measured(requests, until=2 * DAY, tz=-4 * HOUR).days == 1

    def test_a_request_over_midnight_is_of_both_days(self) -> None:
        found = measured([served(DAY - 60, DAY + 60)], until=2 * DAY)
        assert found.days == 2

    def test_a_day_that_is_cut_off_has_no_more_working_time_than_is_looked_at(self) -> None:
        assert measured([served(HOUR, HOUR + 60)], until=2 * HOUR).hours == 2


class TestWaiting:
    def test_who_waited_wanted_a_stream_from_his_arrival_for_as_long_as_he_then_ran(self) -> None:
        # given one stream, and two who come at once: the second waits for the first
        requests = [served(0, 600, "ana"), served(0, 1200, "ben", wait_s=600)]
        # then two were wanted for ten minutes, and none after that
        found = measured(requests, until=8 * HOUR, streams=1)
        assert found.above_share * found.hours == pytest.approx(1 / 6)
        assert found.at_once[1] == 0
        assert found.waited_share == 0.5

    def test_a_wait_of_a_second_is_none(self) -> None:
        assert measured([served(0, 10, wait_s=1.0)]).waited_share == 0

    def test_two_subagents_of_a_seat_want_two_streams(self) -> None:
        found = measured([served(0, 8 * HOUR), served(0, 8 * HOUR)], until=8 * HOUR)
        assert found.seats == 1
        assert found.duty_share == pytest.approx(2)


class TestBadInput:
    def test_nothing_is_nothing(self) -> None:
        assert measure([], 0, DAY, 4) is None

    @pytest.mark.parametrize(
        "request_",
        [served(10, 5), served(10, 10), served(nan, 5), served(5, nan), served(-inf, -1), served(5, 10, wait_s=20)],
    )
    def test_what_has_no_duration_is_left_out(self, request_: Served) -> None:
        assert measure([request_], 0, DAY, 4) is None

    def test_what_lies_outside_is_cut_off(self) -> None:
        found = measured([served(-100, 50), served(DAY - 50, inf)])
        assert found.at_once[1] * found.hours * HOUR == pytest.approx(100)

    def test_one_out_of_order_begins_where_the_sweep_is(self) -> None:
        # given a clock that was set back between two requests
        found = measured([served(1000, 1100), served(500, 1050)])
        # then none counts below nothing, and the shares still are shares
        assert sum(found.at_once) == pytest.approx(1)
        assert found.at_once[2] * found.hours * HOUR == pytest.approx(50)

    def test_rows_are_taken_one_by_one(self) -> None:
        taken = []

        def rows() -> object:
            for at in range(3):
                taken.append(at)
                yield served(at * 100, at * 100 + 10)

        assert measure(rows(), 0, DAY, 4) is not None  # type: ignore[arg-type]
        assert taken == [0, 1, 2]


def hours_of(requests: list[Served]) -> list[int]:
    found = Counter(int(request.arrived_s // HOUR % 24) for request in requests)
    return [found[hour] for hour in range(24)]


class TestWhereDaysBegin:
    @pytest.mark.parametrize("zone", range(-12, 15))
    def test_a_team_works_eight_hours_a_day_wherever_it_lives(self, zone: int) -> None:
        week = [
            served(day * DAY + (9 - zone) * HOUR + n * 600, day * DAY + (9 - zone) * HOUR + n * 600 + 60)
            for day in range(1, 6)
            for n in range(48)
        ]
        found = measured(week, 0, 7 * DAY, tz=day_offset_s(hours_of(week)))
        assert found.days == 5
        assert found.hours == pytest.approx(40, abs=0.1)

    def test_a_box_that_is_asked_at_all_hours_has_days_too(self) -> None:
        assert 0 <= day_offset_s([5] * 24) <= DAY
        assert 0 <= day_offset_s([0] * 24) <= DAY

    def test_an_evening_does_not_cut_the_day(self) -> None:
        turns = [0] * 9 + [20] * 9 + [2] * 6
        assert 0 < -day_offset_s(turns) % DAY / HOUR < 9


class TestEnough:
    def week(self, days: int, requests: int) -> Activity:
        each = requests // days
        rows = [served(day * DAY + n * 40, day * DAY + n * 40 + 10) for day in range(days) for n in range(each)]
        return measured(rows, until=days * DAY)

    def test_a_working_week_of_requests_is_enough(self) -> None:
        assert self.week(5, 500).enough

    @pytest.mark.parametrize(("days", "requests"), [(4, 2000), (5, 495)])
    def test_less_is_too_little_to_say(self, days: int, requests: int) -> None:
        assert not self.week(days, requests).enough
