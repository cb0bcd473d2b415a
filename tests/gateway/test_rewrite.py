"""What is taken out of a body, and that nothing else of its bytes changes; json is the oracle."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import Dialect, Prepared
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT
from gateway.dialects.responses import RESPONSES
from gateway.dialects.rewrite import BILLING, ENGINE_CONTROL, without_billing, without_control, without_vendor_tools
from gateway.parsing import parse
from gateway.problem import Problem
from gateway.splice import drop_members
from tests.gateway.spelling import BLANKS, spelled

LINE = f"{BILLING} cc_version=2.1.332.58d; cc_entrypoint=cli;"
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    ["priority", LINE, f"see {BILLING}", "web_search_20250305", "\\", '"', "}{][,:", "été", "\U0001f600"]
)
KEYS = st.sampled_from(["role", "content", "type", "text", "priority", "cache_salt", "system", "tools", "a"]) | TEXTS
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def key(draw: st.DrawFn, name: str) -> str:
    """`name` as a client may spell it."""
    return '"' + "".join(f"\\u{ord(c):04x}" if draw(st.integers(0, 9)) == 0 else c for c in name) + '"'


def rewritten(raw: bytes) -> bytes:
    """All three, as /v1/messages has them."""
    body = parse(raw)
    return without_vendor_tools(without_billing(without_control(raw, body), body), body)


def has_none_of_it(body: dict[str, Any]) -> bool:
    system, tools = body.get("system"), body.get("tools")
    texts = [system] if isinstance(system, str) else [b.get("text") for b in system or [] if isinstance(b, dict)]
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return (
        not any(field in body for field in ENGINE_CONTROL)
        and not any(isinstance(text, str) and text.startswith(BILLING) for text in texts)
        and not any(isinstance(kind, str) and kind.startswith(("web_search_", "web_fetch_")) for kind in kinds)
    )


# Nothing to take out

BODIES = st.fixed_dictionaries(
    {"messages": VALUES},
    optional={"system": TEXTS | st.lists(VALUES, max_size=3), "tools": VALUES, "metadata": VALUES, "model": TEXTS},
)


@given(st.data(), BODIES)
def test_a_body_with_none_of_it_is_the_very_same_object(data: st.DataObject, body: dict[str, Any]) -> None:
    raw = data.draw(spelled(body)).encode()
    result = rewritten(raw)
    if has_none_of_it(body):
        assert result is raw
    else:
        assert json.loads(result)["messages"] == body["messages"]


# Fields that act on the engine


@given(st.data(), st.lists(st.tuples(KEYS.filter(lambda k: k not in ENGINE_CONTROL), VALUES), max_size=4))
def test_control_fields_go_wherever_and_however_often_they_are_and_nothing_else_does(
    data: st.DataObject, members: list[tuple[str, Any]]
) -> None:
    texts = [(name, f"{data.draw(spelled(name))}:{data.draw(spelled(value))}") for name, value in members]
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(ENGINE_CONTROL))
        at = data.draw(st.integers(0, len(texts)))
        spelling = data.draw(key(name))
        texts.insert(
            at, ("", f"{data.draw(BLANKS)}{spelling}{data.draw(BLANKS)}:{data.draw(spelled(data.draw(VALUES)))}")
        )
    raw = ("{" + ",".join(text for _, text in texts) + "}").encode()
    result = without_control(raw, json.loads(raw))
    assert json.loads(result) == dict(members)
    at = 0
    for name, text in texts:  # what stays is spelled as it was, in its order
        if name:
            at = result.index(text.strip(" \t\r\n").encode(), at) + 1
    assert without_control(result, json.loads(result)) is result


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b'{"priority":1}', b"{}"),
        (b'{"priority":1,"a":1.0}', b'{"a":1.0}'),
        (b'{"a":1e2 , "priority" : {"b":[1,"}"]} }', b'{"a":1e2  }'),
        (b'{"a":1,"priority":null,"b":2}', b'{"a":1,"b":2}'),
        (b'{"priority":1,"priority":2,"a":{"priority":3},"pr\\u0069ority":"x"}', b'{"a":{"priority":3}}'),
        (b'{"a":"\\"priority\\":1","\\u0063ache_salt":"s"}', b'{"a":"\\"priority\\":1"}'),
        (b'{"a":["priority",{"id_slot":1}],"id_slot":-1}', b'{"a":["priority",{"id_slot":1}]}'),
        (b'{ "lora":[] , "lora":[{"id":0}] }', b"{ }"),
        (b'{"prioritys":1,"Priority":2,"priority ":3}', b'{"prioritys":1,"Priority":2,"priority ":3}'),
    ],
)
def test_control_fields_by_example(raw: bytes, left: bytes) -> None:
    result = without_control(raw, json.loads(raw))
    assert result == left


@pytest.mark.parametrize("field", ENGINE_CONTROL)
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda dialect: dialect.path)
def test_no_dialect_passes_a_control_field_on(dialect: Dialect, field: str) -> None:
    raw = b'{"%s":[{"x":1}],"messages":[{"role":"user","content":"priority"}],"input":"lora"}' % field.encode()
    result = dialect.prepare(raw, orjson.loads(raw))
    assert isinstance(result, Prepared)
    assert result.body == b'{"messages":[{"role":"user","content":"priority"}],"input":"lora"}'


BIG = (
    b'"%s"' % (b"x" * 70_000),
    b'"[]%s"' % (b"x" * 70_000),
    b'{"a":"}%s"}' % (b"x" * 70_000),
    b"[" * 400 + b"0" * 70_000 + b"]" * 400,
)


@pytest.mark.parametrize("value", BIG, ids=["text", "text with brackets", "object with text", "list"])
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda dialect: dialect.path)
def test_a_value_too_long_to_drop_is_a_clear_400(dialect: Dialect, value: bytes) -> None:
    raw = b'{"messages":[1],"input":"x","cache_salt":%s,"a":1}' % value
    body = parse(raw) if value[:2] != b"[[" else {"messages": [1], "input": "x", "cache_salt": []}
    problem = dialect.prepare(raw, body)
    assert isinstance(problem, Problem)
    assert (problem.status, problem.heals) == (400, False)
    assert "longer than 65536 bytes" in problem.message


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b"{" + b'"priority":0,' * 299_990 + b'"a":1}', b'{"a":1}'),
        (b'{"x":[' + b'{"lora":0},' * 299_990 + b'0],"lora":1}', b'{"x":[' + b'{"lora":0},' * 299_990 + b"0]}"),
        (b"{" + b'"rid":0,"priority":[],"lora":{},' * 90_000 + b'"a":1}', b'{"a":1}'),
    ],
    ids=["repeated", "further down", "several"],
)
def test_a_body_of_many_keys_takes_linear_time(raw: bytes, left: bytes) -> None:
    body = orjson.loads(raw)
    began_s = time.process_time()
    assert without_control(raw, body) == left
    assert time.process_time() - began_s < 5


# The billing line


def message_body(system: Any, **more: Any) -> bytes:
    body = {"model": "m", "system": system, "messages": [{"role": "user", "content": LINE}], **more}
    return json.dumps(body, ensure_ascii=False).encode()


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


A, B = block("You are an agent.", cache_control={"type": "ephemeral"}), block("été \U0001f600 1.0")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([block(LINE), A, B], [A, B]),
        ([A, block(LINE), B], [A, B]),
        ([A, B, block(LINE)], [A, B]),
        ([block(LINE)], []),
        ([block(LINE), block(LINE, cache_control={}), A], [A]),
        ([block(LINE + "\n"), A], [A]),
        ([block(LINE + "\nYou are.", x=1), A], [block("You are.", x=1), A]),
        ([block(LINE + "\n\n\nTwo\nlines\n"), A], [block("Two\nlines\n"), A]),
        ([block(LINE + "\nhalf a character \ud83d")], [block("half a character \ud83d")]),
        (LINE, ""),
        (LINE + "\nYou are.\nété", "You are.\nété"),
        (["odd", 5, None, {"text": 7}, block(LINE)], ["odd", 5, None, {"text": 7}]),
    ],
)
def test_the_billing_line_goes_wherever_it_is(before: Any, after: Any) -> None:
    raw = json.dumps({"a": 1.50, "system": before, "messages": [{"role": "user", "content": LINE}], "z": 0.10}).encode()
    result = without_billing(raw, parse(raw))
    assert json.loads(result)["system"] == after
    head, tail = raw[: raw.index(b'"system"')], raw[raw.index(b', "messages"') :]
    assert result.startswith(head)
    assert result.endswith(tail)
    assert without_billing(result, parse(result)) is result


def test_what_stays_of_system_is_spelled_as_it_was() -> None:
    raw = (
        b'{"system": [ {"type":"text","text":"'
        + LINE.encode()
        + b'"} , {"n":1.50,"text":"\\u00e9"},\n{"b" : 1e2} ],"m":1}'
    )
    assert without_billing(raw, json.loads(raw)) == b'{"system": [{"n":1.50,"text":"\\u00e9"},{"b" : 1e2}],"m":1}'


@pytest.mark.parametrize(
    "system", [f"see {BILLING} x", [block("\n" + LINE)], [block("", x=LINE)], [{"text": [LINE]}], 5, None, {}]
)
def test_what_only_looks_like_it_stays(system: Any) -> None:
    raw = message_body(system, tools=[{"name": "t", "input_schema": {"system": [block(LINE)], "description": LINE}}])
    assert rewritten(raw) is raw


def test_of_a_repeated_system_the_last_is_the_one_that_counts() -> None:
    raw = b'{"system":"a","s\\u0079stem":[{"text":"%s"},{"text":"b"}],"messages":[1]}' % LINE.encode()
    assert without_billing(raw, json.loads(raw)) == b'{"system":"a","s\\u0079stem":[{"text":"b"}],"messages":[1]}'


def test_a_long_system_is_no_obstacle() -> None:
    raw = message_body([block(LINE), block("x" * 1_000_000)])
    assert without_billing(raw, json.loads(raw)) == message_body([block("x" * 1_000_000)])


@pytest.mark.parametrize("depth", [100, 800, 940, 1000, 1020])
@pytest.mark.parametrize("field", ["system", "tools"])
def test_what_is_nested_deeply_is_rewritten_or_a_clear_400(depth: int, field: str) -> None:
    deep = "[" * depth + "]" * depth
    first = json.dumps(block(LINE) if field == "system" else {"type": "web_search_20250305"})
    raw = f'{{"messages":[{{"role":"user","content":"x"}}],"{field}":[{first},{deep}]}}'.encode()
    result = MESSAGES.prepare(raw, orjson.loads(raw))
    if isinstance(result, Problem):
        assert (result.status, result.heals) == (400, False)
        assert "nested too deeply" in result.message
        assert depth > 800
    else:
        assert result.body == raw.replace(first.encode() + b",", b"")


# Tools of the vendor's own servers

OWN = {"name": "Bash", "description": "web_search_20250305", "input_schema": {"type": "web_search_x"}}


@pytest.mark.parametrize(
    "kind", ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "tool_search_tool_regex_20251119"]
)
def test_tools_that_only_the_vendor_runs_go(kind: str) -> None:
    hosted = {"type": kind, "name": "x", "max_uses": 5}
    for before, after in (
        ([hosted, OWN], [OWN]),
        ([OWN, hosted], [OWN]),
        ([hosted], []),
        ([OWN, hosted, OWN], [OWN, OWN]),
    ):
        raw = message_body("s", tools=before, tool_choice={"type": "auto"})
        assert json.loads(without_vendor_tools(raw, json.loads(raw))) == json.loads(raw) | {"tools": after}


@pytest.mark.parametrize(
    "tools",
    [
        [OWN], [], None, "web_search_20250305", {"type": "web_search_20250305"}, ["web_search_20250305"],
        [{"type": ["web_search_20250305"]}], [{"type": "bash_20250124", "name": "bash"}],
        [{"type": "text_editor_20250728"}], [{"type": "custom", "name": "web_search_"}],
    ],
)  # fmt: skip
def test_tools_that_the_client_runs_stay(tools: Any) -> None:
    raw = message_body("s", tools=tools)
    assert without_vendor_tools(raw, json.loads(raw)) is raw


def test_a_member_is_dropped_by_its_own_name_only() -> None:
    raw = b'{"a":1,"b":{"a":2},"\\u0061":3}'
    assert drop_members(raw, ("a",)) == b'{"b":{"a":2}}'
    assert drop_members(raw, ("c",)) == raw
