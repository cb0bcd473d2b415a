"""gateway.learning.divergence: what is a change, what is none, and what is shown of it."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.divergence import SHAPE_BYTES, Divergence, Origin, Relation, divergence, relation, shape
from gateway.learning.prompt import CanonicalPrompt
from tests.gateway.learning.conversations import SYSTEM, TOOLS, message, prompt, turns

OTHER_TOOLS = [{"name": f"other{n}", "description": "something else " * 20, "input_schema": {}} for n in range(3)]


def found(before: CanonicalPrompt, after: CanonicalPrompt) -> Relation:
    return relation(before, after)[0]


def changed(before: CanonicalPrompt, after: CanonicalPrompt) -> Divergence:
    kind, common = relation(before, after)
    assert kind is Relation.CHANGED
    return divergence(before, after, common)


def with_first(text: str, count: int) -> list[dict[str, Any]]:
    return [message("user", text), *turns(count)[1:]]


def test_a_turn_that_goes_on_continues() -> None:
    assert found(prompt(turns(2)), prompt(turns(3))) is Relation.CONTINUES
    assert found(prompt(turns(2)), prompt(turns(2))) is Relation.CONTINUES


def test_the_beginning_of_the_one_before_is_a_turn_asked_again() -> None:
    assert found(prompt(turns(4)), prompt(turns(3))) is Relation.AGAIN


def test_a_much_shorter_one_is_a_compaction() -> None:
    summary = [message("user", "summary of all that was " * 10), message("user", "a result 7 " * 60)]
    assert found(prompt(turns(9)), prompt(summary)) is Relation.NEW


@pytest.mark.parametrize(
    "after",
    [
        prompt([*turns(3)[:-1], message("user", "no, do it otherwise")]),
        prompt([*turns(2)[:-1], message("user", "no, do it otherwise, and quite so, please. " * 30)]),
        prompt([*turns(3)[:-1], message("user", "a result 2 " * 59 + "and more")]),
        prompt(turns(4, "b")),
        prompt(turns(4, "b"), system=SYSTEM.replace("agent", "titler")),
        prompt(turns(3), tools=OTHER_TOOLS),
        prompt(turns(3), tools=[]),
        prompt(turns(3), system="Write a summary. " * 60),
    ],
    ids=["last edited", "back a turn", "last alike", "another", "another agent", "other tools", "no tools", "summary"],
)
def test_another_conversation_another_agent_or_going_back_a_turn_is_no_change(after: CanonicalPrompt) -> None:
    assert found(prompt(turns(3)), after) is Relation.NEW


def test_a_clock_in_the_system_prompt_is_a_change() -> None:
    before = prompt(turns(2), system=f"{SYSTEM}Now: 2026-11-30 14:05:33. {SYSTEM}")
    after = prompt(turns(3), system=f"{SYSTEM}Now: 2026-11-30 14:06:01. {SYSTEM}")
    change = changed(before, after)
    assert (change.segment, change.origin) == ("system prompt", Origin.CLOCK)
    assert change.shape == "-9+ 9+:9+:9+. a+ a+ a+"
    assert after.data[: change.offset].endswith(b"14:0")


def test_a_date_in_the_first_message_is_a_change_once_the_conversation_goes_on() -> None:
    before, after = (f"Today is {day}. " + "Please do it. " * 10 for day in ("Monday", "Tuesday"))
    change = changed(prompt(with_first(before, 1)), prompt(with_first(after, 2)))
    assert (change.segment, change.origin) == ("message 1", Origin.CLOCK)


def test_a_marker_of_the_tokens_that_are_left_is_a_change() -> None:
    marked = turns(2)
    marked[-1] = message("user", marked[-1]["content"] + "<total_tokens>12345 left</total_tokens>")
    change = changed(prompt(marked), prompt(turns(3)))
    assert (change.segment, change.origin) == ("message 3", Origin.TOKENS)


def test_a_billing_line_that_is_not_where_it_is_taken_out_is_a_change() -> None:
    before, after = (f"{SYSTEM}\nx-anthropic-billing-header: cch={code};\n" for code in ("58d1", "18b2"))
    assert changed(prompt(turns(2), system=before), prompt(turns(3), system=after)).origin is Origin.BILLING


def test_tools_in_another_order_are_a_change() -> None:
    change = changed(prompt(turns(2)), prompt(turns(3), tools=[*TOOLS[1:], TOOLS[0]]))
    assert (change.segment, change.origin) == ("tool 1", Origin.TOOL_ORDER)
    swapped = [dict(reversed(tool.items())) for tool in TOOLS]
    assert changed(prompt(turns(2)), prompt(turns(3), tools=swapped)).origin is Origin.TOOL_ORDER


def test_tools_that_come_and_go_are_a_change() -> None:
    change = changed(prompt(turns(2)), prompt(turns(3), tools=[*TOOLS, OTHER_TOOLS[0]]))
    assert change.origin is Origin.TOOL_SET
    change = changed(prompt(turns(2)), prompt(turns(3), tools=TOOLS[:3]))
    assert (change.segment, change.origin) == ("tool 4", Origin.TOOL_SET)


def test_a_clock_in_a_tool_is_a_clock() -> None:
    def tools(now: str) -> list[dict[str, Any]]:
        return [{**TOOLS[0], "description": f"It is {now}. " + "Runs a command. " * 20}]

    change = changed(prompt(turns(2), tools=tools("10:05")), prompt(turns(3), tools=tools("10:06")))
    assert (change.segment, change.origin) == ("tool 1", Origin.CLOCK)


def test_a_block_that_comes_into_the_system_prompt_is_a_change() -> None:
    blocks = [{"type": "text", "text": text * 30} for text in ("one ", "two ", "three ")]
    for system in (blocks, [blocks[0], blocks[2]]):
        other = [blocks[0], blocks[2]] if system is blocks else blocks
        assert changed(prompt(turns(2), system=system), prompt(turns(3), system=other)).segment == "system prompt"
    grown = changed(prompt(turns(3), system=blocks[:2]), prompt(turns(4), system=blocks))
    assert grown.segment == "system prompt"


def test_an_old_result_that_is_cut_is_a_change() -> None:
    cut = turns(4)
    cut[2] = message("user", "[removed]")
    change = changed(prompt(turns(3)), prompt(cut))
    assert (change.segment, change.origin) == ("message 3", Origin.UNKNOWN)


def test_a_shape_has_nothing_of_a_secret() -> None:
    assert shape(b'key: "sk-Ab3dE9xQ12", at 10:05', 8) == 'a+: "a+-x+", a+'
    assert shape(b"password=hunter2 and more", 9) == "a+=x+ a+ a+"
    assert shape("geheim=пароль!".encode(), 7) == "a+=a+*"


@given(st.text(min_size=4, max_size=30), st.integers(0, 40))
def test_no_run_of_letters_or_digits_can_be_read_back(secret: str, at: int) -> None:
    shown = shape(secret.encode(errors="replace"), at)
    assert len(shown) <= 2 * SHAPE_BYTES
    left = shown.replace("a+", "").replace("9+", "").replace("x+", "")
    assert not set(left) & set(string.ascii_letters + string.digits)
    assert all(32 <= ord(letter) < 127 for letter in shown)


BODIES = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=200)), max_size=8).map(
    lambda parts: [message(role, text) for role, text in parts]
)


@given(BODIES, BODIES, st.lists(st.sampled_from(TOOLS), max_size=4), st.lists(st.sampled_from(TOOLS), max_size=4))
def test_any_two_prompts_have_a_relation(
    one: list[dict[str, Any]], other: list[dict[str, Any]], tools: list[Any], others: list[Any]
) -> None:
    before, after = prompt(one, tools=tools), prompt([*one, *other], tools=others)
    kind, common = relation(before, after)
    assert before.data[:common] == after.data[:common]
    if kind is Relation.CHANGED:
        assert divergence(before, after, common).offset == common
    if tools == others:
        assert kind is Relation.CONTINUES
