"""gateway.learning.robust_fit: coefficients that are never negative, and medians with weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.robust_fit import Row, fit, weighted_median


def test_a_median_follows_the_weights() -> None:
    assert weighted_median([(1, 1), (2, 1), (9, 1)]) == 2
    assert weighted_median([(1, 1), (2, 1), (9, 3)]) == 9
    assert weighted_median([(1, 1), (9, 1)]) == 1
    assert weighted_median([(1, 0)]) is None


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_a_line_is_found_in_its_points(slope: float, offset: float) -> None:
    rows: list[Row] = [((1.0, float(x)), offset + slope * x, 1.0) for x in range(1, 12)]
    assert fit(rows, (1.0, 1.0)) == pytest.approx((offset, slope), rel=1e-6)


def test_a_coefficient_that_would_be_negative_is_none() -> None:
    rows: list[Row] = [((1.0, float(x)), 5.0 - 0.1 * x, 1.0) for x in range(1, 12)]
    offset, slope = fit(rows, (1.0, 1.0))
    assert slope == 0
    assert offset == pytest.approx(4.4, rel=0.1)


def test_features_that_say_the_same_are_no_trouble() -> None:
    rows: list[Row] = [((float(x), 2.0 * x), 4.0 * x, 1.0) for x in range(1, 5)]
    one, other = fit(rows, (1.0, 1.0))
    assert one + 2 * other == pytest.approx(4.0)
