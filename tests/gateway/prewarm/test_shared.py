"""gateway/prewarm/shared.py: what the requests of a seat have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.canonical import segments
from gateway.prewarm.shared import shared_head

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def head(path: str, *bodies: object) -> dict[str, Any] | None:
    made = shared_head(path, [json.dumps(body).encode() for body in bodies])
    return None if made is None else json.loads(made)


def test_of_one_request_tools_and_system_are_kept_and_the_conversation_is_not() -> None:
    body = {"model": "m", "tools": [tool("a")], "tool_choice": "auto", "temperature": 0.5}
    turns = [turn("system", "be short"), turn("user", "a secret"), turn("assistant", "yes")]
    assert head(CHAT, body | {"messages": turns}) == body | {"messages": [turns[0], turn("user", ".")]}


def test_what_differs_ends_the_head() -> None:
    one = {"tools": [tool("a"), tool("b"), tool("c")], "messages": [turn("system", "s"), turn("system", "today")]}
    two = {"tools": [tool("a"), tool("x"), tool("c")], "messages": [turn("system", "s"), turn("user", "u")]}
    assert head(CHAT, one, two) == {"tools": [tool("a")], "messages": [turn("system", "s"), turn("user", ".")]}


def test_of_messages_whole_system_blocks_count() -> None:
    one = {"system": [{"type": "text", "text": "s"}, {"type": "text", "text": "git: clean"}], "messages": []}
    two = {"system": [{"type": "text", "text": "s"}, {"type": "text", "text": "git: dirty"}], "messages": []}
    assert head(MESSAGES, one, two) == {
        "system": [{"type": "text", "text": "s"}],
        "messages": [turn("user", ".")],
    }
    assert head(MESSAGES, {"system": "s", "messages": []}, {"system": "t", "messages": []}) is None


def test_of_responses_instructions_and_developer_items_count() -> None:
    one = {"instructions": "i", "input": [turn("developer", "d"), turn("user", "u")]}
    assert head(RESPONSES, one, one) == {"instructions": "i", "input": [turn("developer", "d"), turn("user", ".")]}
    assert head(RESPONSES, {"instructions": "i", "input": "hello"}) == {
        "instructions": "i",
        "input": [turn("user", ".")],
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [turn("user", "u")]}),
        (CHAT, {"tools": [], "messages": "none"}),
        (CHAT, [1]),
        ("/v1/completions", {"prompt": "p"}),
    ],
)
def test_where_nothing_is_shared_there_is_no_head(path: str, body: object) -> None:
    assert head(path, body) is None


def test_what_is_no_json_shares_nothing() -> None:
    assert shared_head(CHAT, [b"{"]) is None
    assert shared_head(CHAT, []) is None


def test_what_is_nested_too_deeply_to_be_compared_shares_nothing() -> None:
    deep = b'{"tools":[' + b"[" * 900 + b"]" * 900 + b'],"messages":[]}'
    assert shared_head(CHAT, [deep, deep]) is None


_texts = st.sampled_from(["one", "two", "three"])
_bodies = st.builds(
    lambda tools, system, said: {
        "tools": [tool(name) for name in tools],
        "messages": [*(turn("system", text) for text in system), *(turn("user", text) for text in said)],
    },
    st.lists(_texts, max_size=3),
    st.lists(_texts, max_size=3),
    st.lists(_texts, min_size=1, max_size=2),
)


@given(st.lists(_bodies, min_size=1, max_size=3))
def test_where_all_tools_are_shared_the_head_is_a_prefix_of_every_request(bodies: list[dict[str, Any]]) -> None:
    made = head(CHAT, *bodies)
    if made is None or any(body["tools"] != made.get("tools", []) for body in bodies):
        return
    prefix = list(segments(made))[:-1]
    assert all(list(segments(body))[: len(prefix)] == prefix for body in bodies)
