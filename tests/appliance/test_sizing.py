"""The whole answer of `seats size`, its JSON and its pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import MoeError
from appliance.sizing.chart import lines
from appliance.sizing.figures import Curve, Figure, figures, tick_text, ticks
from appliance.sizing.measured import measured_profile
from appliance.sizing.sizing import Prices, Sizing, size
from appliance.sizing.svg import drawing
from gateway.ledger.rows import Activity, Usage
from gateway.sizing.capacity import Pace
from gateway.sizing.profile import STUDY

DAY = 86_400.0
TEAMS = (20, 100, 250)
BUSY = Activity(
    since_s=0,
    until_s=14 * DAY,
    days=10,
    hours=80,
    seats=12,
    requests=8000,
    streams=4,
    duty_share=0.05,
    at_once=(0.5, 0.3, 0.15, 0.04, 0.007, 0.003),
    above_share=0.003,
    waited_share=0.02,
    enough=True,
)


def study(teams: tuple[int, ...] = TEAMS) -> Sizing:
    return size(STUDY, Pace(), teams, Prices())


class TestSize:
    def test_the_json_has_the_studys_figures(self) -> None:
        found = json.loads(json.dumps(study().to_json()))
        assert found["duty_share"] == pytest.approx(0.071, abs=5e-4)
        assert (found["seats_1pct"], found["seats_5pct"]) == (19, 28)
        assert (found["seats_by_volume"], found["seats_by_volume_half"]) == (262, 131)
        assert found["pods"] == {"20": 2, "100": 4, "250": 7}
        assert found["pods_apart"] == {"20": 2, "100": 6, "250": 14}
        assert found["cost"]["break_even_seats"] == pytest.approx(15.1, abs=0.05)
        assert round(found["cost"]["teams"][0]["more_eur"]) == 1847

    def test_the_second_column_has_the_same_work_in_half_the_hours(self) -> None:
        own, half = study().columns
        assert (own.hours_a_day, half.hours_a_day) == (8, 4)
        assert half.duty_share == pytest.approx(2 * own.duty_share)
        assert (half.seats_1pct, half.seats_5pct) == (10, 15)
        assert (own.cautious_1pct, own.cautious_5pct) == (15, 23)

    def test_the_waits_are_those_of_a_full_pod(self) -> None:
        waits = study().columns[0].waits
        assert waits is not None
        assert [wait.developers for wait in waits] == [19, 28]
        assert waits[0].chance == pytest.approx(0.037, abs=1e-3)

    def test_work_that_does_not_fit_half_the_hours_leaves_that_column_empty(self) -> None:
        found = size(replace(STUDY, hours_a_day=1.0), Pace(), (), Prices())
        assert found.columns[0].seats_1pct is not None
        assert found.columns[1].duty_share > 1
        assert found.columns[1].seats_1pct is None
        assert all(lines(figure, 80) for figure in figures(found))

    def test_work_that_no_stream_can_do_is_refused(self) -> None:
        with pytest.raises(MoeError, match=r"needs a stream for 0\.6 h of a day that has 0\.5"):
            size(replace(STUDY, hours_a_day=0.5), Pace(), TEAMS, Prices())

    @pytest.mark.parametrize(("measured", "used"), [(0.2, 0.2), (0.001, 0.0708)])
    def test_seats_go_by_the_larger_of_what_was_measured_and_what_the_floor_would_take(
        self, measured: float, used: float
    ) -> None:
        found = size(STUDY, Pace(), TEAMS, Prices(), replace(BUSY, duty_share=measured))
        assert found.columns[0].duty_share == pytest.approx(used, abs=1e-4)
        assert found.floor_duty_share == pytest.approx(0.0708, abs=1e-4)
        assert json.loads(json.dumps(found.to_json()))["activity"]["seats"] == 12


class TestMeasured:
    usage = (
        Usage("ana", served=3000, completion_tokens=1_200_000, prompt_tokens=90_000_000, cached_tokens=80_000_000),
        Usage("ben", served=5000, completion_tokens=2_000_000, prompt_tokens=30_000_000, cached_tokens=28_000_000),
    )

    def test_an_average_seat_has_its_share_of_two_weeks(self) -> None:
        found = measured_profile(BUSY, self.usage, 0.0)
        assert found.output_tokens == pytest.approx(3_200_000 / 12 / 2)
        assert found.new_input_tokens == pytest.approx(12_000_000 / 12 / 2)
        assert found.total_tokens == pytest.approx(123_200_000 / 12 / 2)
        assert (found.active_days, found.hours_a_day, found.reply_tokens) == (5, 8, 400)

    def test_a_ledger_that_began_a_week_ago_is_one_week(self) -> None:
        found = measured_profile(replace(BUSY, days=5), self.usage, 7 * DAY)
        assert found.output_tokens == pytest.approx(3_200_000 / 12)
        assert found.active_days == 5

    def test_what_the_tokens_take_at_the_floor_is_a_share_of_the_same_working_time(self) -> None:
        found = size(measured_profile(BUSY, self.usage, 0.0), Pace(), (), Prices(), BUSY)
        assert found.floor_duty_share == pytest.approx((3_200_000 / 40 + 12_000_000 / 6983) / 12 / (80 * 3600))

    def test_too_little_is_refused_with_what_is_enough(self) -> None:
        with pytest.raises(MoeError) as found:
            measured_profile(replace(BUSY, enough=False, days=2, hours=16, requests=40), self.usage, 0.0)
        assert "40 requests on 2 days with 16 working hours" in found.value.message
        assert "enough are 500 requests on 5 days" in found.value.message
        assert "moe-appliance seats size" in found.value.remedy

    def test_nothing_at_all_is_refused(self) -> None:
        with pytest.raises(MoeError, match="nothing in the last 14 days"):
            measured_profile(None, (), 0.0)

    def test_requests_that_all_failed_say_nothing(self) -> None:
        with pytest.raises(MoeError, match="no request of the last 14 days was answered"):
            measured_profile(BUSY, (Usage("ana", requests=8000, failed=8000),), 0.0)


class TestPictures:
    def test_the_cost_crosses_where_the_table_says(self) -> None:
        # given the study's team sizes
        cost, _ = figures(study())
        pods = dict(cost.curves[0].points)
        # then one pod is above 15 subscriptions and below 16, and the 20th developer wants a second one
        assert 15 * 180 < pods[15.0] == pods[16.0] < 16 * 180
        assert pods[20.0] == 2 * pods[19.0]
        assert cost.x_max == 250

    def test_the_chance_passes_1_percent_after_19_seats(self) -> None:
        _, chance = figures(study())
        own = dict(chance.curves[0].points)
        assert own[19.0] <= 0.01 < own[20.0]
        assert [label for _, label in chance.marks] == ["1 %", "5 %"]

    def test_the_svg_is_xml_that_names_every_curve_and_stays_inside(self) -> None:
        shown = figures(study())
        root = ElementTree.fromstring(drawing(shown))
        words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {curve.label for figure in shown for curve in figure.curves} <= words
        for line in root.iter("{http://www.w3.org/2000/svg}line"):
            assert 0 <= float(line.get("y1", "")) <= 340

    def test_the_svg_escapes_what_it_is_given(self) -> None:
        shown = Figure("<a> & b", "<x>", (Curve("<script>", ((0, 0), (1, 1))),), 1, 1)
        assert "<script>" not in drawing([shown])
        ElementTree.fromstring(drawing([shown]))

    @pytest.mark.parametrize("width", [1, 40, 80, 500])
    def test_the_terminal_chart_is_ascii_and_keeps_its_width(self, width: int) -> None:
        for figure in figures(study()):
            drawn = lines(figure, width)
            assert all(line.isascii() for line in drawn)
            assert all(len(line) <= max(40, width) for line in drawn[1:-3])

    @pytest.mark.parametrize("prices", [Prices(0, 0.01), Prices(1e9, 0.01), Prices(1e9, 1e9), Prices(1, 1e9)])
    def test_any_price_can_be_drawn(self, prices: Prices) -> None:
        for figure in figures(size(STUDY, Pace(), (1,), prices)):
            ElementTree.fromstring(drawing([figure]))
            assert lines(figure, 80)

    @given(st.floats(1e-3, 1e13), st.integers(3, 10))
    def test_ticks_are_round_and_few_and_within(self, top: float, about: int) -> None:
        found = ticks(top, about)
        assert found[0] == 0
        assert found[-1] <= top * (1 + 1e-6)
        assert 2 <= len(found) <= about + 1

    def test_ticks_are_said_as_people_write_them(self) -> None:
        assert tick_text(20_000.0, percent=False) == "20,000"
        assert tick_text(0.05, percent=True) == "5 %"
