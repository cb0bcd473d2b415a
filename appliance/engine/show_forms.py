"""Tool calls and JSON: what the engine is asked, and what its answers show. Pure.

Rules:
- An answer that its limit cut shows nothing: a model of any size may be long-winded.
- Markup of a tool call in the text is the worst answer: an agent takes it for words, and goes round and round.

Source: facts about engines of July to November 2026; markup as Hermes, Mistral, Llama and DeepSeek models write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from appliance.engine.probe_forms import CHAT, Answer, Verdict, message, parsed, verdict
from appliance.engine.probe_seen import Seen, Streamed

TOOL = "report_weather"
CITIES = ("Paris", "Rome")
TOOL_TOKENS = 384
"""Of an answer that should be a call: one takes about 30, what is thought before it some hundred."""
TALK_PIECES = 24
"""An answer that has said so much without a call will not have one; one to a tool's result need not be longer."""
JSON_TOKENS = 256
TOOL_ASK = f"What is the weather in Paris now? Call {TOOL} to find out."
TOOL_RESULT = '{"weather": "sunny", "degrees": 21}'
CHOICES: tuple[Any, ...] = ("auto", "required", {"type": "function", "function": {"name": TOOL}})
"""How it is told to call, the freest first: it is what agents send, and what a parser of the engine must read. The
others are for models that would rather talk."""
MARKUP = ("<tool_call", "<function", "<invoke", "<|tool", "DSML", "[TOOL_CALLS]", "<|python_tag|>")
UNPARSED = "--enable-auto-tool-choice"
"""vLLM's words when it was started without a parser. Source: vLLM 0.26, measured."""
_SHOWN_CHARS = 160


def tool_question(model: str, choice: Any) -> dict[str, Any]:
    """One tool with one argument, of which there are two: a grammar that forces it cannot wander. Where a call is
    forced it is `strict`: vLLM 0.32 holds arguments to their schema only then, measured; agents mostly leave it out."""
    city = {"type": "string", "enum": list(CITIES)}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
    function: dict[str, Any] = {"name": TOOL, "description": "Says the weather in a city now."}
    function["parameters"] = parameters
    if choice != "auto":
        function["strict"] = True
    return {
        "model": model,
        "messages": [{"role": "user", "content": TOOL_ASK}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": choice,
        "max_tokens": TOOL_TOKENS,
        "temperature": 0,
    }


def tool_followup(question: Mapping[str, Any], call: Mapping[str, str]) -> dict[str, Any]:
    """The result of `call` goes back; nothing forces another one."""
    function = {"name": call.get("name", ""), "arguments": call.get("arguments", "")}
    told = {"id": call.get("id", "call_1"), "type": "function", "function": function}
    turn = {"role": "assistant", "content": None, "tool_calls": [told]}
    back = {"role": "tool", "tool_call_id": told["id"], "content": TOOL_RESULT}
    more = {"tool_choice": "auto", "messages": [*question["messages"], turn, back], "max_tokens": TALK_PIECES}
    return {**question, **more}


def talks(reply: Streamed) -> bool:
    """Whether it has said so much in words that no call will follow."""
    return bool(reply.text.strip()) and len(reply.at_s) >= TALK_PIECES and not reply.call and not reply.thought


def called(reply: Streamed) -> Seen:
    """Whether an answer is a call of TOOL with the arguments that its schema wants."""
    if reply.refused:
        return _refused(reply.status, parsed(reply.refused))
    mark = markup(reply.text)
    if mark:
        return Seen(False, f"the call came as text, with {mark} in it: {_short(reply.text)}")
    if reply.finish == "length":
        return Seen(None, f"the answer was cut after {TOOL_TOKENS} tokens")
    if not reply.call:
        return Seen(False, f"answered without a call: {_short(reply.text) or 'nothing'}")
    arguments = _object(reply.call.get("arguments"))
    if reply.call.get("name") != TOOL:
        return Seen(False, f"a tool was called that there is not: {_short(reply.call.get('name'))}")
    if arguments is None or arguments.keys() != {"city"}:
        return Seen(False, f"the call's arguments are not those of its schema: {_short(reply.call.get('arguments'))}")
    return Seen(True, "called with the arguments of its schema")


def hopeless(reply: Streamed) -> bool:
    """Whether asking in another way would tell nothing new: no parser, or one that lets markup through."""
    return UNPARSED.encode() in reply.refused or bool(markup(reply.text))


def answered(reply: Streamed) -> Seen:
    """Whether an answer to a tool's result is one."""
    if reply.refused:
        seen = _refused(reply.status, parsed(reply.refused))
        return Seen(seen.ok, f"its result was {seen.observed}")
    mark = markup(reply.text)
    if mark:
        return Seen(False, f"markup of a tool call in the answer to its result, {mark}: {_short(reply.text)}")
    if reply.text.strip() or reply.call or reply.thought:
        return Seen(True, "its result was answered")
    return Seen(None, "the answer to its result was empty")


def markup(text: str) -> str:
    """The first mark of a tool call in a text; "" = there is none."""
    return next((mark for mark in MARKUP if mark in text), "")


def json_question(model: str, schema: bool) -> dict[str, Any]:
    """A question that nobody answers in JSON unless the engine sees to it."""
    city = {"type": "string", "enum": list(CITIES)}
    shape = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
    told = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": shape}}
    ask = "Which city is the capital of France?"
    return {
        "model": model,
        "messages": [{"role": "user", "content": ask if schema else f"{ask} Answer with a JSON object."}],
        "response_format": told if schema else {"type": "json_object"},
        "max_tokens": JSON_TOKENS,
        "temperature": 0,
    }


def kept_to_json(answer: Answer, schema: bool) -> Seen:
    """Whether an answer is the JSON that was asked for."""
    if answer.status == 0:
        return Seen(None, answer.why)
    if verdict(CHAT, answer) is not Verdict.SERVED:
        return _refused(answer.status, answer.body)
    text = answer.body["choices"][0]["message"].get("content")
    value = _object(text)
    if value is None:
        if _cut(answer):
            return Seen(None, f"the answer was cut after {JSON_TOKENS} tokens")
        return Seen(False, f"not a JSON object: {_short(text)}")
    if schema and (value.keys() != {"city"} or value["city"] not in CITIES):
        return Seen(False, f"JSON, but not of the schema: {_short(text)}")
    return Seen(True, "kept to it")


def _refused(status: int, body: Any) -> Seen:
    said = message(body)
    busy = status in (408, 429) or status > 500
    return Seen(None if busy else False, f"refused with {status}{f': {_short(said)}' if said else ''}")


def _cut(answer: Answer) -> bool:
    first = answer.body["choices"][0]
    return isinstance(first, dict) and first.get("finish_reason") == "length"


def _object(text: object) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _short(text: object) -> str:
    shown = " ".join(str(text).split())
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]} ..."
