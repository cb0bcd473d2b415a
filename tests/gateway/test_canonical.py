"""The prefix form: what is the same to an engine's cache is the same here, and what is not is not."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.canonical import segments
from gateway.dialects.rewrite import BILLING

MARK = {"cache_control": {"type": "ephemeral"}}
LINE = f"{BILLING} cc_version=2.1.332.58d;"


def of(**body: Any) -> list[bytes]:
    return list(segments(body))


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"id": 1, "cache_control": 2, "status": "s"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}, "cache_control": {}}}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA}
ITEM = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"id":1}'}

SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("a text is one block", {"messages": [user("a")]}, {"messages": [user([text("a")])]}),
    ("marks", {"messages": [user([text("a")])]}, {"messages": [user([text("a", **MARK)], **MARK)]}),
    ("system", {"system": "s"}, {"system": [text("s", **MARK)]}),
    ("instructions", {"instructions": "s"}, {"system": "s"}),
    ("billing block", {"system": [text("s")]}, {"system": [text(LINE), text("s")]}),
    ("billing block only", {}, {"system": [text(LINE)]}),
    ("billing line", {"system": "s"}, {"system": LINE + "\n\ns"}),
    ("billing line in instructions", {"instructions": "s"}, {"instructions": LINE + "\ns"}),
    ("input text", {"input": "a"}, {"input": [{"type": "message", **user([{"type": "input_text", "text": "a"}])}]}),
    ("easy item", {"input": [user("a")]}, {"input": [{"type": "message", "id": "msg_9", "status": "x", **user("a")}]}),
    ("item ids", {"input": [ITEM]}, {"input": [{**ITEM, "id": "fc_9", "status": "completed"}]}),
    (
        "annotations",
        {"input": [{"role": "assistant", "content": "a"}]},
        {"input": [{"role": "assistant", "content": [
            {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]}]},
    ),
    ("a result", {"messages": [user([RESULT])]}, {"messages": [user([{**RESULT, "content": [text("done", **MARK)]}])]}),
    (
        "an output",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [text("o")], "id": "fco_1"}]},
    ),
    ("a tool's mark", {"tools": [TOOL]}, {"tools": [TOOL | MARK | {"defer_loading": True}]}),
    ("a call's mark", {"messages": [user([CALL])]}, {"messages": [user([CALL | MARK])]}),
    ("no content", {"messages": [user(None)]}, {"messages": [user([])]}),
    ("other fields", {"messages": [user("a")]}, {"messages": [user("a")], "model": "m", "max_tokens": 5}),
]  # fmt: skip


def changed(value: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(value), **more}


DIFFERENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("text", {"messages": [user("a")]}, {"messages": [user("a ")]}),
    ("role", {"messages": [user("a")]}, {"messages": [{"role": "system", "content": "a"}]}),
    ("blocks", {"messages": [user([text("a"), text("b")])]}, {"messages": [user([text("ab")])]}),
    ("a call's id", {"messages": [user([CALL])]}, {"messages": [user([changed(CALL, id="toolu_2")])]}),
    *(
        (f"{field} in arguments", {"messages": [user([CALL])]},
         {"messages": [user([changed(CALL, input={**CALL["input"], field: "other"})])]})  # type: ignore[dict-item]
        for field in ("id", "cache_control", "status")
    ),
    ("a schema", {"tools": [TOOL]}, {"tools": [changed(TOOL, input_schema={**SCHEMA, "cache_control": 1})]}),
    ("a schema's id", {"tools": [TOOL]}, {"tools": [changed(TOOL, input_schema={**SCHEMA, "id": 1})]}),
    ("a tool's id", {"tools": [TOOL]}, {"tools": [changed(TOOL, id="t")]}),
    ("a tool's status", {"tools": [TOOL]}, {"tools": [changed(TOOL, status="t")]}),
    ("a chat call's id", {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
     {"messages": [{"role": "assistant", "tool_calls": [{"id": "b"}]}]}),
    ("what a result is of", {"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]},
     {"messages": [{"role": "tool", "tool_call_id": "b", "content": "x"}]}),
    ("call_id", {"input": [ITEM]}, {"input": [changed(ITEM, call_id="call_2")]}),
    ("arguments", {"input": [ITEM]}, {"input": [changed(ITEM, arguments='{"id":2}')]}),
    ("a reference", {"input": [{"type": "item_reference", "id": "a"}]},
     {"input": [{"type": "item_reference", "id": "b"}]}),
    ("a billing line of a user", {"messages": [user("a")]}, {"messages": [user(LINE + "\na")]}),
    ("what is behind the billing line", {"system": LINE + "\na"}, {"system": LINE + "\nb"}),
    ("malformed content", {"messages": [user(5)]}, {"messages": [user({"a": 5})]}),
    ("malformed system", {"system": {"a": 1}}, {"system": {"a": 2}}),
    ("a malformed type", {"messages": [user([{"type": ["text"], "text": "a"}])]},
     {"messages": [user([{"type": [], "text": "a"}])]}),
    ("a prompt", {"prompt": "a"}, {"prompt": "b"}),
    ("token ids", {"prompt": [1, 2]}, {"prompt": [1, 3]}),
    ("an image", {"messages": [user([{"type": "image", "source": {"id": 1}}])]},
     {"messages": [user([{"type": "image", "source": {"id": 2}}])]}),
    ("half a character", {"messages": [user("\ud83d")]}, {"messages": [user("\ud83e")]}),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_what_no_engine_renders_makes_no_difference(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert of(**one) == of(**other)


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT])
def test_what_is_rendered_makes_one(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert len(of(**one)) == len(of(**other))
    assert of(**one) != of(**other)


TEXTS = st.text(max_size=6)
BLOCKS = st.builds(text, TEXTS) | st.builds(lambda t: {**RESULT, "content": t}, TEXTS) | st.just(CALL)
CONTENTS = TEXTS | st.lists(BLOCKS, max_size=3)
MESSAGES = st.lists(
    st.builds(lambda role, c: {"role": role, "content": c}, st.sampled_from(["user", "assistant"]), CONTENTS),
    max_size=6,
)
ITEMS = st.lists(st.builds(user, CONTENTS) | st.builds(lambda a: {**ITEM, "arguments": a}, TEXTS), max_size=6)


@given(st.lists(st.builds(lambda t: {**TOOL, "description": t}, TEXTS), max_size=2), TEXTS, MESSAGES, MESSAGES)
def test_a_turn_more_only_adds_segments(tools: list[Any], system: str, messages: list[Any], more: list[Any]) -> None:
    before = of(tools=tools, system=system, messages=messages)
    after = of(tools=tools, system=system, messages=messages + more)
    assert after[: len(before)] == before
    assert len(after) == len(before) + len(more)


@given(TEXTS, ITEMS, ITEMS)
def test_an_item_more_only_adds_segments(instructions: str, items: list[Any], more: list[Any]) -> None:
    before, after = of(instructions=instructions, input=items), of(instructions=instructions, input=items + more)
    assert after[: len(before)] == before
    assert len(after) == len(before) + len(more)


@given(MESSAGES.filter(bool), st.data())
def test_a_text_that_changes_changes_its_own_segment_and_no_other(messages: list[Any], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(messages) - 1))
    other = copy.deepcopy(messages)
    content = other[at]["content"]
    added = text("more")
    other[at]["content"] = [text(content), added] if isinstance(content, str) else [*content, added]
    before, after = of(messages=messages), of(messages=other)
    assert [a != b for a, b in zip(before, after, strict=True)] == [number == at for number in range(len(before))]


def marked(messages: list[Any], at: int) -> list[Any]:
    """As an agent sends the same turns again: other marks, other spelling of a text."""
    other = copy.deepcopy(messages)
    for number, message in enumerate(other):
        content = message["content"]
        if isinstance(content, str) and number % 2 == at % 2:
            message["content"] = [text(content, **MARK)]
        elif isinstance(content, list) and content and number == at:
            content[-1] = content[-1] | MARK
    return other


@given(MESSAGES, st.integers(0, 6))
def test_marks_that_move_and_texts_that_become_blocks_change_nothing(messages: list[Any], at: int) -> None:
    assert of(messages=marked(messages, at), system=[text(LINE), text("s", **MARK)]) == of(
        messages=messages, system="s"
    )


def test_the_order_is_that_of_templates() -> None:
    found = of(messages=[user("m")], system="s", tools=[TOOL], stream=True)
    assert [json.loads(part) for part in found] == [TOOL, {"role": "system", "content": [text("s")]}, user([text("m")])]


@pytest.mark.parametrize("depth", [100, 300, 900, 1015])
def test_however_deeply_a_body_is_nested_it_has_segments(depth: int) -> None:
    def body(core: str) -> Any:
        return orjson.loads('{"messages":[' + '{"a":[' * (depth // 2) + core + "]}" * (depth // 2) + "]}")

    one, other = list(segments(body('"x"'))), list(segments(body('"y"')))
    assert len(one) == len(other) == 1
    assert one == list(segments(body('"x"')))
    assert one != other


@pytest.mark.parametrize("value", [5, "x", None, [], {}, [5], [[]], [None], {"role": []}])
@pytest.mark.parametrize("field", ["messages", "input", "system", "instructions", "tools", "prompt"])
def test_nothing_malformed_is_an_error(field: str, value: Any) -> None:
    assert all(isinstance(part, bytes) for part in segments({field: value}))
