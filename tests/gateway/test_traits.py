"""What is seen in a conversation, and that nothing odd in it is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import Dialect, Prepared
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import RESPONSES
from gateway.dialects.traits import FIRST_TEXT_MAX, continues_at, first_user_text, image_at
from gateway.problem import Problem

TEXT = {"type": "text", "text": "x"}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


@pytest.mark.parametrize(
    ("items", "where"),
    [
        ([user(TEXT)], None),
        ([user(TEXT, {"type": "image_url", "image_url": {"url": "x"}})], "messages[0].content[1]"),
        ([user(TEXT), user({"type": "image", "source": {}})], "messages[1].content[0]"),
        ([user({"type": "input_image", "image_url": "x"})], "messages[0].content[0]"),
        ([{"type": "input_image"}], "messages[0]"),
        (
            [user({"type": "tool_result", "content": [TEXT, {"type": "image"}]})],
            "messages[0].content[0].content[1]",
        ),
        ([{"type": "function_call_output", "output": [{"type": "input_image"}]}], "messages[0].output[0]"),
        ([user({"type": "text", "text": '{"type": "image"}'})], None),
        ([{"role": "user", "content": "image_url"}], None),
        ([user({"type": ["image"]}, {"type": {}}, {"type": None}), {"type": [[]]}], None),
    ],
)
def test_an_image_is_found_where_it_is(items: Any, where: str | None) -> None:
    assert image_at(items, "messages") == where


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([user(TEXT), assistant("partial")], "messages[1]"),
        ([assistant([TEXT])], "messages[0]"),
        ([assistant([{"type": "thinking", "thinking": "x"}, TEXT])], "messages[0]"),
        ([assistant("x"), user(TEXT)], None),
        ([assistant("")], None),
        ([assistant(None)], None),
        ([assistant([])], None),
        ([assistant([{"type": "text", "text": ""}])], None),
        ([assistant("x", tool_calls=[{"id": "a"}])], None),
        ([assistant("x", tool_calls=[])], "messages[0]"),
        ([assistant([TEXT, {"type": "tool_use", "id": "a"}])], None),
        ([assistant(5)], None),
        (["x"], None),
        ([], None),
        ("x", None),
        (None, None),
    ],
)
def test_a_partial_turn_at_the_end_is_text_and_no_call(messages: Any, where: str | None) -> None:
    assert continues_at(messages) == where


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ("plain", "plain"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "u"),
        ([user({"type": "text", "text": ""}, {"type": "image"}, {"type": "text", "text": "b"})], "b"),
        ([{"role": "user", "content": ""}, {"role": "user", "content": "second"}], "second"),
        ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "i"}]}], "i"),
        ([{"role": "user", "content": [{"text": 5}, {"text": "t"}]}], "t"),
        ([{"role": "assistant", "content": "a"}], ""),
        ([{"role": "user", "content": "x" * 5000}], "x" * FIRST_TEXT_MAX),
        ([[1]], ""),
        (5, ""),
        (None, ""),
    ],
)
def test_the_first_text_of_the_user(items: Any, text: str) -> None:
    assert first_user_text(items) == text


NAMES = ["role", "type", "content", "text", "output", "tool_calls", "format", "source"]
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(NAMES), inner, max_size=4
    ) | st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": inner, "type": inner}),
    max_leaves=12,
)  # fmt: skip
FIELDS = ["messages", "input", "prompt", "tools", "system", "text", "output_config", "output_format", "response_format",
          "functions", "prompt_cache_key", "stream_options", "instructions"]  # fmt: skip


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, RESPONSES, MESSAGES], ids=lambda dialect: dialect.path)
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6), st.lists(ANYTHING, min_size=1, max_size=3))
def test_no_body_is_an_error_of_ours(dialect: Dialect, body: dict[str, Any], items: list[Any]) -> None:
    for given_body in (body, {**body, "messages": items, "input": items, "prompt": items[:1]}):
        result = dialect.prepare(json.dumps(given_body).encode(), given_body)
        assert isinstance(result, Prepared | Problem)
        assert isinstance(result, Prepared) or result.status == 400
