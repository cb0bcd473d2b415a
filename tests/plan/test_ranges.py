"""Sets of experts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.plan.ranges import parse, respell, spell


@given(st.sets(st.integers(0, 2000)))
def test_what_is_spelled_is_read_as_the_same_set(numbers: set[int]) -> None:
    assert parse(spell(numbers)) == tuple(sorted(numbers))


@given(st.sets(st.integers(0, 2000)))
def test_a_set_has_one_spelling(numbers: set[int]) -> None:
    spelled = spell(numbers)
    assert spell(parse(spelled)) == spelled
    assert parse(",".join(map(str, sorted(numbers, reverse=True)))) == parse(spelled)
    assert respell(",".join(map(str, sorted(numbers, reverse=True)))) == spelled


@given(st.text(st.sampled_from("0123456789-, x"), max_size=12))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        numbers = parse(text)
    except ValueError:
        return
    assert parse(spell(numbers)) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", ()), ("  ", ()), ("7", (7,)), ("3-5", (3, 4, 5)), ("5-5", (5,)), (" 9 , 0-1 ", (0, 1, 9)), ("007", (7,))],
)
def test_spellings_that_people_use_are_understood(text: str, numbers: tuple[int, ...]) -> None:
    assert parse(text) == numbers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "'a' is neither a number nor a range"),
        ("1,,2", "'' is neither"),
        ("-3", "'-3' is neither"),
        ("1-2-3", "'1-2-3' is neither"),
        ("٣", "is neither"),
        ("5-3", "'5-3' runs backwards"),
        ("1,1", "1 occurs twice"),
        ("0-5,3-4", "3 occurs twice"),
        ("8", "8 is out of range: there are 8, 0 to 7"),
        ("6-9", "9 is out of range"),
    ],
)
def test_what_is_no_set_of_experts_is_refused_and_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text, 8)


def test_runs_of_two_or_more_are_joined() -> None:
    assert spell([9, 1, 2, 3, 5, 6, 3]) == "1-3,5-6,9"


@pytest.mark.parametrize("text", ["0-10000", "999999", "0-999999"])
def test_a_number_that_no_model_has_is_refused_before_it_is_written_out(text: str) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        parse(text)
