"""How long turns wait: the facts' table, and what must hold for all numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sizing.capacity import Pace, duty_share
from gateway.sizing.finite_source import turn_s, wait
from gateway.sizing.profile import STUDY

DUTY = 0.071


class TestTheFacts:
    @pytest.mark.parametrize(
        ("developers", "chance", "mean_s", "p95_s", "p99_s"),
        [
            (10, 0.002, 0.01, 0, 0),
            (15, 0.015, 0.05, 0, 1.3),
            (19, 0.037, 0.13, 0, 4.7),
            (24, 0.085, 0.34, 2.2, 8.6),
            (28, 0.140, 0.63, 4.7, 12),
            (32, 0.209, 1.1, 7.3, 15),
            (36, 0.292, 1.7, 10, 19),
            (40, 0.385, 2.6, 14, 24),
        ],
    )
    def test_the_waits_of_the_studys_turns(
        self, developers: int, chance: float, mean_s: float, p95_s: float, p99_s: float
    ) -> None:
        found = wait(developers, DUTY, 4, 10.5)
        assert found.chance == pytest.approx(chance, abs=1e-3)
        assert found.mean_s == pytest.approx(mean_s, abs=0.06)
        assert found.p95_s == pytest.approx(p95_s, abs=0.5)
        assert found.p99_s == pytest.approx(p99_s, abs=0.7)

    def test_a_turn_of_the_study_takes_ten_and_a_half_seconds(self) -> None:
        pace = Pace()
        generating_s = STUDY.generating_s(pace.floor_tok_per_s, pace.prefill_tok_per_s)
        assert turn_s(STUDY.reply_tokens, generating_s, STUDY.output_tokens) == pytest.approx(10.5, abs=0.01)
        assert duty_share(STUDY, pace) == pytest.approx(DUTY, abs=5e-4)


class TestAllNumbers:
    def test_two_developers_and_one_stream_are_as_by_hand(self) -> None:
        # given turns of 1 s and thoughts of 3 s: the other is found in the box with 1/3 / (1 + 1/3)
        found = wait(2, 0.25, 1, 1.0)
        # then who finds him waits for a rest of 1 s on average
        assert found.chance == pytest.approx(0.25)
        assert found.mean_s == pytest.approx(0.25)

    @given(st.integers(1, 60), st.floats(0.001, 0.9), st.integers(1, 8), st.floats(0.1, 100))
    def test_percentiles_are_in_order_and_never_negative(
        self, developers: int, duty: float, streams: int, a_turn_s: float
    ) -> None:
        found = wait(developers, duty, streams, a_turn_s)
        assert 0 <= found.chance <= 1
        assert 0 <= found.p95_s <= found.p99_s
        assert (found.mean_s == 0) == (found.chance == 0)

    @given(st.integers(1, 60), st.floats(0.001, 0.9), st.integers(1, 8))
    def test_more_developers_wait_longer_and_more_streams_let_them_wait_less(
        self, developers: int, duty: float, streams: int
    ) -> None:
        found = wait(developers, duty, streams, 10)
        assert wait(developers + 1, duty, streams, 10).mean_s >= found.mean_s * (1 - 1e-9)
        assert wait(developers, duty, streams + 1, 10).mean_s <= found.mean_s * (1 + 1e-9)

    @given(st.integers(1, 4), st.floats(0, 0.99))
    def test_nobody_waits_while_there_is_a_stream_each(self, developers: int, duty: float) -> None:
        assert wait(developers, duty, 4, 10).p99_s == 0

    def test_ten_thousand_developers_on_one_pod_queue_for_hours(self) -> None:
        found = wait(10_000, DUTY, 4, 10.5)
        assert found.chance == pytest.approx(1)
        assert found.mean_s < found.p95_s < found.p99_s < 10_000 * 10.5

    @pytest.mark.parametrize(("developers", "duty", "a_turn_s"), [(0, 0.1, 1), (5, 1.0, 1), (5, -0.1, 1), (5, 0.1, 0)])
    def test_what_is_no_queue_is_refused(self, developers: int, duty: float, a_turn_s: float) -> None:
        with pytest.raises(ValueError, match="no queue"):
            wait(developers, duty, 4, a_turn_s)
