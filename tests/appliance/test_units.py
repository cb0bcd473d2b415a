"""Numbers as people read them."""

from __future__ import annotations

import pytest

from appliance.units import rate


@pytest.mark.parametrize(
    ("per_s", "said"), [(0.0, "0"), (39.64, "39.6"), (99.94, "99.9"), (254.3, "254"), (2574.6, "2,575")]
)
def test_a_rate_has_three_digits_or_is_whole_and_never_a_power_of_ten(per_s: float, said: str) -> None:
    assert rate(per_s) == said


def test_a_rate_just_under_a_hundred_is_not_written_as_a_power_either() -> None:
    assert rate(99.99) == "100"
