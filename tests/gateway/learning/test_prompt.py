"""gateway.learning.prompt: where two prompts part, fast, and without showing any of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.canonical import segments
from gateway.learning.prompt import CanonicalPrompt, alike, first_difference
from tests.gateway.learning.conversations import SYSTEM, TOOLS, body, message, prompt, turns

CHAT: dict[str, Any] = {
    "messages": [message("system", SYSTEM), message("developer", "d"), *turns(2)],
    "tools": TOOLS,
}
RESPONSES: dict[str, Any] = {"instructions": SYSTEM, "input": [message("developer", "d"), *turns(2)], "tools": TOOLS}


@pytest.mark.parametrize("request_body", [body(turns(3)), CHAT, RESPONSES, {"prompt": "once"}, {"input": "hello"}, {}])
def test_it_is_the_canonical_prompt(request_body: dict[str, Any]) -> None:
    assert CanonicalPrompt.of(request_body).data == b"".join(segments(request_body))


def test_its_parts_have_names() -> None:
    names = ["tool 1", "tool 2", "tool 3", "tool 4", "system prompt", "message 1", "message 2"]
    found = prompt(turns(2))
    assert [found.name(index) for index in range(7)] == names
    assert CanonicalPrompt.of(CHAT).name(5) == "system prompt", "a developer's message"
    assert CanonicalPrompt.of(CHAT).name(6) == "message 1"
    assert CanonicalPrompt.of(RESPONSES).name(6) == "message 1"


def test_a_byte_is_of_the_segment_that_it_is_in() -> None:
    found = prompt(turns(2))
    for index in range(len(found.ends)):
        assert found.index_at(found.begin(index)) == index
        assert found.index_at(found.ends[index] - 1) == index


def test_nothing_of_it_is_printable() -> None:
    found = CanonicalPrompt.of({"messages": [message("user", "my secret")]})
    assert "secret" not in f"{found} {found!r}"


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200))
def test_the_first_difference_is_that_of_a_plain_look(head: bytes, one: bytes, other: bytes) -> None:
    left, right = head + one, head + other
    plain = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    assert first_difference(left, right) == plain


def test_400_kb_are_compared_in_under_a_millisecond() -> None:
    one = b"x" * 400_000
    other = one[:-10] + b"y" * 10
    began_s = time.perf_counter()
    for _ in range(20):
        assert first_difference(one, other) == 399_990
    assert (time.perf_counter() - began_s) / 20 < 0.001


def test_a_text_with_a_part_changed_is_alike_and_another_one_is_not() -> None:
    one = prompt([message("user", "The time is 10:05. " + "Do this and that. " * 5)]).data
    other = prompt([message("user", "The time is 10:06. " + "Do this and that. " * 5)]).data
    assert alike(one, other)
    assert not alike(prompt([message("user", "say hello")], tools=[]).segment(1), b'{"role":"user","content":[]}')
    greeting, parting = (
        CanonicalPrompt.of({"messages": [message("user", text)]}).data for text in ("say hello", "good bye now")
    )
    assert not alike(greeting, parting)
