"""How fast a pod is: the study's figures, and files of other boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.simulation.pace import STUDY, Pace, from_values

FILE = Path("pace.json")
GOOD: dict[str, Any] = {"ms_per_token": [10, 12.5], "prefill": {"a": 0.1, "b": 1e-4}}


class TestStudy:
    def test_its_figures_are_those_of_the_facts(self) -> None:
        assert STUDY.tok_per_s(4) == pytest.approx(1000 / 17)
        assert STUDY.tok_per_s(10) == pytest.approx(1000 / 33)
        assert STUDY.prefill_s(128_000, 128_000) == pytest.approx(18.33, abs=0.01)
        assert STUDY.prefill_s(91_500, 3500) == pytest.approx(0.54, abs=0.01)

    @given(st.integers(0, 200_000), st.integers(0, 200_000))
    def test_a_prompt_in_two_parts_takes_as_long_as_at_once(self, first: int, second: int) -> None:
        whole = STUDY.prefill_s(first + second, first + second)
        assert STUDY.prefill_s(first, first) + STUDY.prefill_s(first + second, second) == pytest.approx(whole)


class TestFile:
    def test_what_it_does_not_say_is_the_studys(self) -> None:
        pace = from_values(FILE, GOOD)
        assert pace == Pace((10, 12.5), 0.1, 1e-4, 0.05, 200_000, "pace.json")

    def test_streams_beyond_the_last_cost_what_that_one_did(self) -> None:
        assert from_values(FILE, GOOD).tok_per_s(4) == pytest.approx(1000 / 17.5)
        assert from_values(FILE, GOOD | {"ms_per_token": [10]}).tok_per_s(2) == pytest.approx(1000 / 13)

    @pytest.mark.parametrize(
        ("values", "key"),
        [
            ([], "table"),
            ({"prefill": {"a": 0.1}}, "ms_per_token"),
            (GOOD | {"ms_per_token": []}, "ms_per_token"),
            (GOOD | {"ms_per_token": [10, 0]}, "ms_per_token"),
            (GOOD | {"ms_per_token": [10, None]}, "ms_per_token"),
            (GOOD | {"ms_per_token": [10, 9]}, "more streams cannot be faster"),
            (GOOD | {"prefill": {"a": -1}}, "prefill"),
            (GOOD | {"reading_share": 0}, "reading_share"),
            (GOOD | {"speed": 1}, "speed"),
        ],
    )
    def test_one_that_cannot_be_used_names_the_key(self, values: object, key: str) -> None:
        with pytest.raises(ConfigError, match=key) as caught:
            from_values(FILE, values)
        assert "pace.json" in str(caught.value)
