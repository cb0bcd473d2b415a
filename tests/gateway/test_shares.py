"""Who has had more than a fair share, over long times."""

from __future__ import annotations

import pytest

from gateway.shares import Shares

SEATS = ("ana", "hog")


@pytest.mark.parametrize("begun_s", [0.0, 1e7])
def test_use_of_long_ago_counts_for_nothing(begun_s: float) -> None:
    shares = Shares()
    shares.add("hog", 1e9, begun_s)
    assert shares.over(SEATS, 1.5, begun_s) == {"hog"}
    shares.add("ana", 5000.0, begun_s + 16_000.0)
    assert shares.over(SEATS, 1.5, begun_s + 16_000.0) == {"ana"}


def test_nothing_that_was_ever_used_is_over_a_share_after_a_year() -> None:
    shares = Shares()
    assert shares.over(SEATS, 1.5, 3e7) == frozenset()
    shares.add("hog", 1e9, 0.0)
    assert shares.over(SEATS, 1.5, 3e7) == frozenset()


def test_nothing_is_no_use() -> None:
    shares = Shares()
    shares.add("hog", 0.0, 0.0)
    shares.add("hog", -5000.0, 0.0)
    assert shares.over(SEATS, 1.5, 0.0) == frozenset()
