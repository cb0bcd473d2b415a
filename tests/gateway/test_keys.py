"""Keys: form, digests, look-up."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX, KeyTable, digest_of, new_key, parse_digest


@given(st.binary(min_size=32, max_size=32), st.sampled_from([SEAT_PREFIX, ADMIN_PREFIX]))
def test_a_key_holds_all_256_bits_in_characters_that_need_no_escaping(raw: bytes, prefix: str) -> None:
    key = new_key(prefix, raw)
    assert re.fullmatch(re.escape(prefix) + r"[A-Za-z0-9_-]{43}", key)
    assert new_key(prefix, bytes(b ^ 1 for b in raw)) != key


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_strength_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        new_key(SEAT_PREFIX, b"x" * size)


def test_the_digest_is_sha256_of_the_key_as_sent() -> None:
    assert digest_of("moe-abc") == "sha256:" + hashlib.sha256(b"moe-abc").hexdigest()


@given(st.text())
def test_every_text_has_a_digest_that_parses(text: str) -> None:
    assert parse_digest(digest_of(text)) == digest_of(text)


def test_a_digest_in_capitals_is_the_same_digest() -> None:
    digest = digest_of("moe-abc")
    assert parse_digest("sha256:" + digest[7:].upper()) == digest


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:" + "a" * 63, "sha256:" + "g" * 64, "a" * 64, "x\n"])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        parse_digest(text)


def test_a_key_in_place_of_a_digest_is_named_but_not_repeated() -> None:
    key = new_key(SEAT_PREFIX, b"\x07" * 32)
    with pytest.raises(ValueError, match="holds a key") as caught:
        parse_digest(key)
    assert key not in str(caught.value)


@given(st.sets(st.text(min_size=1), min_size=1, max_size=8), st.text())
def test_the_table_finds_exactly_the_keys_that_it_was_given(keys: set[str], other: str) -> None:
    table = KeyTable((digest_of(key), key) for key in keys)
    assert len(table) == len(keys)
    assert all(table.find(key) == key for key in keys)
    assert table.find(other) == (other if other in keys else None)


def test_a_table_refuses_one_key_for_two() -> None:
    with pytest.raises(ValueError, match="twice"):
        KeyTable([(digest_of("k"), 1), (digest_of("k"), 2)])
