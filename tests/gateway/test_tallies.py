"""gateway.tallies: histograms of waits and first tokens."""

from __future__ import annotations

import pytest

from gateway.outcome import Outcome
from gateway.tallies import BOUNDS_S, Histogram, Tallies


@pytest.mark.parametrize(("time_s", "place"), [(0.0, 0), (0.5, 0), (0.51, 1), (240.0, len(BOUNDS_S) - 1), (1e9, -1)])
def test_a_bound_belongs_to_the_times_below_it(time_s: float, place: int) -> None:
    found = Histogram()
    found.add(time_s)
    assert found.counts[place] == sum(found.counts) == 1
    assert found.sum_s == time_s


def test_what_got_no_ticket_waited_for_none_and_what_gave_no_token_had_no_first() -> None:
    tallies = Tallies()
    tallies.add(Outcome("one", "/v1/messages", word="refused"))
    tallies.add(Outcome("two", "/v1/messages", seat="ana", queue_s=2.0))
    tallies.add(Outcome("three", "/v1/messages", seat="ana", queue_s=0.001, ttft_s=30.5))
    tallies.add(Outcome("four", "/v1/messages", seat="ana", queue_s=0.0))  # at once, by a clock of milliseconds
    assert (sum(tallies.waits.counts), tallies.waits.sum_s) == (3, 2.001)
    assert list(tallies.of("ana").waits) == [2.0, 0.001, 0.0]
    assert (sum(tallies.first_tokens.counts), tallies.first_tokens.sum_s) == (1, 30.5)
