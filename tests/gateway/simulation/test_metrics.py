"""What is counted of simulated days."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.simulation.metrics import day_of, figures, percentile, two_standard_errors
from gateway.simulation.pod import Ended


def ended(seat: str = "ana", *, hog: bool = False, tokens: int = 100, **more: float) -> Ended:
    given = {"pace_tok_per_s": 50.0, "first_token_s": 2.0, "wait_s": 1.0, "queue_s": 0.5} | more
    return Ended(
        seat, hog, tokens, False, given["pace_tok_per_s"], given["first_token_s"], given["wait_s"], given["queue_s"]
    )


def failed(tokens: int = 100, *, hog: bool = False) -> Ended:
    return Ended("ana", hog, tokens, failed=True)


class TestShares:
    def test_a_slow_reply_and_a_failed_attempt_are_missed_with_their_tokens(self) -> None:
        day = day_of([ended(tokens=600), ended(pace_tok_per_s=39.9), failed(300)], 40.0, 8.0)
        found = figures([day])
        assert found.at_pace_share == pytest.approx(0.6)
        assert found.failed_share == pytest.approx(1 / 3)

    def test_a_late_first_token_counts_for_pace_but_not_for_g30(self) -> None:
        found = figures([day_of([ended(first_token_s=30.0), ended(first_token_s=30.1)], 40.0, 8.0)])
        assert (found.at_pace_share, found.g30_share) == (1.0, 0.5)

    def test_hogs_are_counted_apart(self) -> None:
        day = day_of([ended(), ended("hog", hog=True, pace_tok_per_s=1.0, wait_s=99.0), failed(hog=True)], 40.0, 8.0)
        found = figures([day])
        assert (found.at_pace_share, found.failed_share, found.p95_wait_s) == (1.0, 0.0, 1.0)
        assert (found.hog_at_pace_share, found.hog_p95_wait_s, found.hog_tokens_per_hour) == (0.0, 99.0, 25.0)

    def test_days_count_alike_and_a_bad_one_has_collapsed(self) -> None:
        good = day_of([ended(tokens=1000)], 40.0, 8.0)
        bad = day_of([ended(tokens=69), ended(tokens=31, pace_tok_per_s=1.0)], 40.0, 8.0)
        found = figures([good, bad])
        assert found.at_pace_share == pytest.approx((1 + 0.69) / 2)
        assert (found.collapses, found.least_day_share, found.seeds) == (1, 0.69, 2)
        assert found.at_pace_2se == pytest.approx(0.31)

    def test_the_worst_seat_is_found(self) -> None:
        found = figures([day_of([ended(), ended("ben", pace_tok_per_s=1.0, wait_s=7.0)], 40.0, 8.0)])
        assert (found.worst_seat_share, found.worst_seat_p95_wait_s) == (0.0, 7.0)

    def test_a_hog_is_not_the_worst_seat(self) -> None:
        day = day_of([ended(), ended("hog", hog=True, pace_tok_per_s=1.0, wait_s=99.0)], 40.0, 8.0)
        found = figures([day])
        assert (found.worst_seat_share, found.worst_seat_p95_wait_s) == (1.0, 1.0)

    def test_first_tokens_are_told_apart_by_what_was_read_anew(self) -> None:
        warm = replace(ended(first_token_s=1.0), uncached_tokens=16_000)
        cold = replace(ended(first_token_s=20.0), uncached_tokens=16_001)
        found = figures([day_of([warm, cold], 40.0, 8.0)])
        assert (found.p95_first_token_warm_s, found.p95_first_token_cold_s, found.cold_share) == (1.0, 20.0, 0.5)

    def test_a_day_without_turns_is_a_good_one(self) -> None:
        found = figures([day_of([], 40.0, 8.0)])
        assert (found.at_pace_share, found.p95_wait_s, found.failed_share) == (1.0, 0.0, 0.0)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([3.0], 0.5) == 3
    assert percentile([], 0.95) == 0


def test_one_value_has_no_error() -> None:
    assert two_standard_errors([0.5]) == 0
