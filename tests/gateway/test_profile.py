"""A developer's week from a file, and what is said about one that cannot be used."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.sizing.profile import STUDY, Profile, from_toml, from_values, json_values

FILE = Path("week.toml")
LEAST = {"output_tokens": 400_000, "new_input_tokens": 3_500_000}


def from_json(raw: bytes) -> Profile:
    return from_values(FILE, json_values(FILE, raw))


def test_the_studys_week_adds_up() -> None:
    assert round(STUDY.output_tokens) == 388_103
    assert STUDY.output_tokens * (1 + 234) + STUDY.new_input_tokens == pytest.approx(94.6e6)
    assert (STUDY.sessions, STUDY.active_days, STUDY.hours_a_day) == (9, 5, 8)
    assert STUDY.window_s == 40 * 3600


def test_two_numbers_are_a_profile() -> None:
    found = from_toml(FILE, b"output_tokens = 400_000\nnew_input_tokens = 3.5e6\n")
    assert (found.output_tokens, found.new_input_tokens, found.total_tokens) == (400_000, 3_500_000, 3_900_000)
    assert (found.active_days, found.hours_a_day, found.sessions) == (5, 8, None)
    assert found.source == "week.toml"


def test_json_says_the_same_as_toml() -> None:
    whole = LEAST | {"total_tokens": 9e7, "active_days": 4.5, "hours_a_day": 6, "sessions": 12, "reply_tokens": 500}
    text = "\n".join(f"{name} = {value}" for name, value in whole.items())
    assert from_json(json.dumps(whole).encode()) == from_toml(FILE, text.encode())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"output_tokens": 0}, "output_tokens must be more than 0"),
        ({"output_tokens": "many"}, "output_tokens must be a number, is text"),
        ({"output_tokens": True}, "output_tokens must be a number, is true"),
        ({"new_input_tokens": -1}, "new_input_tokens must be at least 0"),
        ({"active_days": 8}, "active_days must be at most 7"),
        ({"hours_a_day": 0}, "hours_a_day must be more than 0"),
        ({"hours_a_day": 25}, "hours_a_day must be at most 24"),
        ({"reply_tokens": 0}, "reply_tokens must be at least 1"),
        ({"output_tokens": 1e16}, "output_tokens must be at most"),
        ({"output": 5}, "output is not a known key; did you mean"),
        ({"total_tokens": 5}, "total_tokens is less than output_tokens and new_input_tokens together"),
    ],
)
def test_a_wrong_value_is_named_by_its_key(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        from_json(json.dumps(LEAST | change).encode())
    assert "week.toml" in found.value.message
    assert said in found.value.message


def test_toml_errors_have_their_line() -> None:
    with pytest.raises(ConfigError, match=r"week\.toml:2: new_input_tokens must be at least 0"):
        from_toml(FILE, b"output_tokens = 5\nnew_input_tokens = -5\n")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match="new_input_tokens is missing"):
        from_json(b'{"output_tokens": 5}')


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "too deep"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"output_tokens": 5, "output_tokens": 6}', "'output_tokens' is there twice"),
        (b"9" * 5000, "week.toml"),
        (b'{"output_tokens": NaN, "new_input_tokens": 5}', "output_tokens must be a finite number"),
        (b'{"output_tokens": 1e999, "new_input_tokens": 5}', "output_tokens must be a finite number"),
        (b"3", "must be a table"),
        (b"null", "must be a table"),
    ],
)
def test_what_is_no_profile_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_json(raw)


def test_text_of_a_file_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as found:
        from_json(b'{"output_tokens": "moe-secret", "new_input_tokens": 5}')
    assert "secret" not in str(found.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_profile_or_a_config_error(raw: bytes) -> None:
    for read in (from_json, lambda data: from_toml(FILE, data)):
        with contextlib.suppress(ConfigError):
            assert isinstance(read(raw), Profile)
