"""How many developers a box can take: the study's figures, heavier tails, and what must hold for all numbers."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sizing.capacity import (
    CAUTIOUS_RHO,
    DEVELOPERS_MAX,
    PROMISE,
    RELAXED,
    Pace,
    at_once,
    break_even,
    chance_above,
    chances_above,
    cost,
    duty_share,
    pods,
    pods_apart,
    seats,
    seats_by_volume,
)
from gateway.sizing.profile import STUDY

DUTY = duty_share(STUDY, Pace())
ROUNDED_DUTY = 0.071
"""With which facts/admission-and-bench.md computed its tables."""
DUTIES = st.floats(1e-6, 1 - 1e-6)
RHOS = st.one_of(st.just(0.0), st.floats(1e-4, 0.9))


class TestTheStudy:
    def test_the_developer_generates_for_2_8_hours_a_week_which_is_7_1_percent_of_the_working_time(self) -> None:
        hours = STUDY.generating_s(40, 6983) / 3600
        assert round(hours, 1) == 2.8
        assert round(hours / 168, 3) == 0.017
        assert round(DUTY, 3) == 0.071

    def test_a_pod_takes_19_developers_at_1_percent_and_28_at_5_percent(self) -> None:
        assert seats(DUTY, 4, PROMISE) == 19
        assert seats(DUTY, 4, RELAXED) == 28

    def test_by_volume_it_would_be_262_and_131_at_half_use(self) -> None:
        assert seats_by_volume(STUDY, Pace()) == 262
        assert seats_by_volume(STUDY, Pace(), 0.5) == 131

    @pytest.mark.parametrize(("developers", "boxes"), [(19, 1), (20, 2), (100, 4), (250, 7), (500, 13)])
    def test_a_team_needs_so_many_pods(self, developers: int, boxes: int) -> None:
        assert pods(developers, DUTY, 4) == boxes

    def test_without_moving_anybody_100_developers_need_6_pods_and_250_need_14(self) -> None:
        assert [pods_apart(n, 19) for n in (100, 250)] == [6, 14]

    def test_a_pod_costs_15_1_subscriptions(self) -> None:
        assert round(break_even(), 1) == 15.1

    def test_20_seats_cost_1847_eur_a_month_more_than_subscriptions(self) -> None:
        found = cost(20, pods(20, DUTY, 4))
        assert round(found.more_eur) == 1847
        assert found.saved_share < 0

    def test_the_price_of_a_pod_is_the_one_that_the_study_prints(self) -> None:
        assert round(cost(1, 1).pods_eur) == 2723
        assert round(cost(1, 1).pods_eur / 730, 2) == 3.73

    @pytest.mark.parametrize(("developers", "saved"), [(100, 39), (250, 58)])
    def test_larger_teams_save(self, developers: int, saved: int) -> None:
        assert round(cost(developers, pods(developers, DUTY, 4)).saved_share * 100) == saved


class TestTheFacts:
    @pytest.mark.parametrize(("developers", "chance"), [(19, 0.0090), (20, 0.0113), (28, 0.0450), (29, 0.0513)])
    def test_the_chance_of_a_fifth_stream(self, developers: int, chance: float) -> None:
        assert chance_above(developers, ROUNDED_DUTY, 4) == pytest.approx(chance, abs=5e-5)

    @pytest.mark.parametrize(("streams", "promised", "relaxed"), [(3, 12, 20), (5, 26, 38), (6, 34, 47)])
    def test_other_caps_give_other_seats(self, streams: int, promised: int, relaxed: int) -> None:
        assert (seats(ROUNDED_DUTY, streams), seats(ROUNDED_DUTY, streams, RELAXED)) == (promised, relaxed)

    @pytest.mark.parametrize("duty", [0.0695, 0.0705, 0.072])
    def test_19_seats_do_not_hang_on_the_last_digit_of_the_duty(self, duty: float) -> None:
        assert seats(duty, 4) == 19

    @pytest.mark.parametrize(
        ("rho", "promised", "relaxed", "chance_at_19"),
        [(0.01, 16, 25, 0.017), (CAUTIOUS_RHO, 15, 23, 0.025), (0.05, 11, 19, 0.047), (0.10, 9, 15, 0.073)],
    )
    def test_developers_who_go_up_together_are_fewer(
        self, rho: float, promised: int, relaxed: int, chance_at_19: float
    ) -> None:
        assert (seats(ROUNDED_DUTY, 4, rho=rho), seats(ROUNDED_DUTY, 4, RELAXED, rho)) == (promised, relaxed)
        assert chance_above(19, ROUNDED_DUTY, 4, rho) == pytest.approx(chance_at_19, abs=6e-4)

    @pytest.mark.parametrize(("hours", "promised", "relaxed"), [(6, 14, 21), (5, 12, 18), (4, 10, 14)])
    def test_the_same_work_in_fewer_hours_leaves_fewer_seats(self, hours: int, promised: int, relaxed: int) -> None:
        duty = ROUNDED_DUTY * 8 / hours
        assert (seats(duty, 4), seats(duty, 4, RELAXED)) == (promised, relaxed)


class TestAllNumbers:
    @given(st.integers(1, 60), DUTIES, RHOS)
    def test_the_chances_of_all_numbers_sum_to_one(self, developers: int, duty: float, rho: float) -> None:
        assert sum(at_once(developers, duty, rho)) == pytest.approx(1, abs=1e-9)

    @given(st.integers(1, 60), DUTIES, RHOS)
    def test_on_average_each_developer_is_up_for_his_share(self, developers: int, duty: float, rho: float) -> None:
        mean = sum(k * chance for k, chance in enumerate(at_once(developers, duty, rho)))
        assert mean == pytest.approx(developers * duty, rel=1e-6)

    @given(st.integers(1, 40), st.integers(1, 99), st.integers(0, 12))
    def test_the_binomial_is_that_of_exact_fractions(self, developers: int, percent: int, streams: int) -> None:
        up = Fraction(percent, 100)
        exact = sum(
            comb(developers, k) * up**k * (1 - up) ** (developers - k) for k in range(streams + 1, developers + 1)
        )
        assert chance_above(developers, percent / 100, streams) == pytest.approx(float(exact), rel=1e-9, abs=1e-300)

    @given(st.integers(1, 80), DUTIES, st.integers(1, 8), RHOS)
    def test_one_more_developer_never_lowers_the_chance_and_one_more_stream_never_raises_it(
        self, developers: int, duty: float, streams: int, rho: float
    ) -> None:
        chance = chance_above(developers, duty, streams, rho)
        assert chance_above(developers + 1, duty, streams, rho) >= chance * (1 - 1e-9)
        assert chance_above(developers, duty, streams + 1, rho) <= chance

    @given(st.floats(0.02, 0.9), st.integers(1, 8), st.sampled_from([PROMISE, RELAXED]), st.sampled_from([0.0, 0.02]))
    def test_the_seats_are_the_last_number_that_keeps_the_promise(
        self, duty: float, streams: int, chance: float, rho: float
    ) -> None:
        most = seats(duty, streams, chance, rho)
        assert most >= streams
        assert chance_above(most, duty, streams, rho) <= chance < chance_above(most + 1, duty, streams, rho)

    @given(st.integers(1, 300), st.floats(0.001, 0.9), st.integers(1, 8))
    def test_pods_are_the_least_that_keep_the_promise_and_no_more_than_without_moving(
        self, developers: int, duty: float, streams: int
    ) -> None:
        boxes = pods(developers, duty, streams)
        above = chances_above(developers, duty)
        assert boxes * streams >= developers or above[boxes * streams] <= PROMISE
        assert boxes == 1 or above[(boxes - 1) * streams] > PROMISE
        assert boxes <= pods_apart(developers, seats(duty, streams))

    def test_ten_thousand_developers_are_no_trouble(self) -> None:
        # given the study's developer, 707.6 of ten thousand are up on average, with a deviation of 25.6
        chances = chances_above(DEVELOPERS_MAX, DUTY)
        # then half of the chance lies above the mean, and far tails are small but not lost
        assert chances[707] == pytest.approx(0.5, abs=0.01)
        assert 0 < chances[1000] < 1e-20
        assert pods(DEVELOPERS_MAX, DUTY, 4) == 192
        assert sum(at_once(DEVELOPERS_MAX, DUTY, CAUTIOUS_RHO)) == pytest.approx(1, abs=1e-7)

    def test_who_hardly_works_fills_no_pod(self) -> None:
        assert seats(0.0, 4) == DEVELOPERS_MAX
        assert seats(1e-6, 4) == DEVELOPERS_MAX

    def test_who_always_works_has_a_stream_each(self) -> None:
        assert seats(1.0, 4) == 4
        assert pods(9, 1.0, 4) == 3

    @pytest.mark.parametrize(("duty", "rho"), [(-0.1, 0.0), (1.1, 0.0), (float("nan"), 0.0), (0.5, 1.0), (0.5, 1e-9)])
    def test_what_is_no_share_is_refused(self, duty: float, rho: float) -> None:
        with pytest.raises(ValueError, match=r"duty|rho"):
            at_once(3, duty, rho)
