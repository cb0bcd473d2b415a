"""The signature of cards that wait for each other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.stall import CARD_BYTES, SILENT_S, Silence, hangs, looked

EMPTY = {0: 600 << 20, 1: 700 << 20}


def after(seconds: float, cores: float, read_bytes: int = 0) -> Silence:
    """A silence in looks of two seconds."""
    silence = Silence()
    for _ in range(int(seconds / 2)):
        silence = looked(silence, 2.0, 2.0 * cores, read_bytes)
    return silence


def test_low_cards_a_busy_core_and_a_silent_log_are_the_signature() -> None:
    assert hangs(after(SILENT_S, 2.0), EMPTY)


@pytest.mark.parametrize(
    ("silence", "grown"),
    [
        (after(SILENT_S - 2, 2.0), EMPTY),
        (after(SILENT_S, 0.5), EMPTY),
        (after(SILENT_S, 2.0, 1 << 20), EMPTY),
        (after(SILENT_S, 2.0), {0: 600 << 20, 1: CARD_BYTES}),
        (after(SILENT_S, 2.0), None),
        (after(SILENT_S, 2.0), {}),
    ],
    ids=["not yet", "idle", "reading", "weights are there", "unknown", "no cards"],
)
def test_whatever_lacks_a_part_of_it_is_not(silence: Silence, grown: Mapping[int, int] | None) -> None:
    assert not hangs(silence, grown)


@given(st.floats(0.01, 1e6), st.floats(0, 64))
def test_a_look_that_came_late_counts_no_more_work_than_time(elapsed_s: float, cores: float) -> None:
    silence = looked(Silence(), elapsed_s, elapsed_s * cores, 0)
    assert silence.cpu_s == pytest.approx(silence.silent_s * cores)
    assert not hangs(silence, EMPTY)
