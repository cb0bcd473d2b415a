"""The fake engine: calls that tool_choice wants, JSON that response_format wants, and engines that obey neither."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.fake_engine.knobs import KnobError, Knobs, merged
from tests.fake_engine.serving import serving
from tests.fake_engine.told import sample

pytestmark = pytest.mark.anyio
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}, "days": {"type": "integer"}, "more": {"type": "string"}},
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
ASK = {"role": "user", "content": "What is it like?"}


async def asked(knobs: dict[str, Any], **body: Any) -> httpx.Response:
    async with (
        serving(merged(Knobs(time_scale=0.01), knobs)) as engine,
        httpx.AsyncClient(base_url=engine.url, trust_env=False) as client,
    ):
        request = {"messages": [ASK], "max_tokens": 16, **body}
        return await client.post("/v1/chat/completions", json=request)


async def message(knobs: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (await asked(knobs, **body)).json()["choices"][0]["message"]
    return answer


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_a_tool_is_called_when_it_must_be(choice: Any) -> None:
    call = (await message({}, tools=[TOOL], tool_choice=choice))["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("look", {"city": "Rome", "days": 1})


async def test_a_tool_is_not_called_unasked_nor_after_its_result() -> None:
    assert "tool_calls" not in await message({}, tools=[TOOL], tool_choice="auto")
    after = [ASK, {"role": "assistant", "content": None}, {"role": "tool", "content": "fine", "tool_call_id": "c"}]
    assert "tool_calls" not in await message({}, tools=[TOOL], tool_choice="required", messages=after)
    assert "tool_calls" not in await message({"tool_fault": "ignore"}, tools=[TOOL], tool_choice="required")


async def test_a_parser_that_fails_lets_markup_through_and_none_at_all_refuses() -> None:
    assert "<tool_call>" in (await message({"tool_fault": "markup"}, tools=[TOOL]))["content"]
    refused = await asked({"tool_fault": "refuse"}, tools=[TOOL])
    assert refused.status_code == 400
    assert "--enable-auto-tool-choice" in refused.text
    assert (await asked({"tool_fault": "refuse"})).status_code == 200


async def test_a_format_is_obeyed_unless_it_is_switched_off() -> None:
    told = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    assert json.loads((await message({}, response_format=told))["content"]) == {"city": "Rome", "days": 1}
    assert json.loads((await message({}, response_format={"type": "json_object"}))["content"]) == {"answer": 1}
    words = (await message({"json_mode": False}, response_format={"type": "json_object"}))["content"]
    assert len(words.split()) == 16


async def test_thoughts_and_silent_usage() -> None:
    said = await message({"thinks": True})
    assert said["content"] is None
    assert said["reasoning"]
    usage = (await asked({"tells_cached": False})).json()["usage"]
    assert usage["prompt_tokens_details"] is None


def test_a_fault_that_there_is_not_is_refused() -> None:
    with pytest.raises(KnobError, match="tool_fault"):
        merged(Knobs(), {"tool_fault": "other"})


def test_the_shortest_value_of_a_schema_is_made_up() -> None:
    assert sample({"type": "array"}) == []
    assert sample(None) == {}
    assert sample({"type": "boolean"}) is True
