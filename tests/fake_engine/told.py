"""What a request makes of a reply: a call that tool_choice wants, JSON that response_format wants. Pure.

Rules: what is made up is the shortest that a schema allows. A rule of the test's own goes before what is made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fake_engine.knobs import Knobs
from tests.fake_engine.refusal import Refusal, bad
from tests.fake_engine.render import json_text
from tests.fake_engine.tools import ToolCall, answered, dicts, tool_names


def refused(fields: Mapping[str, Any], knobs: Knobs) -> Refusal | None:
    """The 400 of a vLLM that was started without a parser."""
    if knobs.tool_fault != "refuse" or not dicts(fields.get("tools")):
        return None
    return bad('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')


def call(fields: Mapping[str, Any], knobs: Knobs) -> ToolCall | None:
    """The call that `tool_choice` forces, on its chat form."""
    choice = fields.get("tool_choice")
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if knobs.tool_fault or not (choice == "required" or named) or answered(fields):
        return None
    for tool in dicts(fields.get("tools")):
        function = tool.get("function")
        if isinstance(function, dict) and function.get("name") and named in (None, function["name"]):
            return ToolCall(function["name"], json_text(sample(function.get("parameters"))))
    return None


def text(fields: Mapping[str, Any], knobs: Knobs) -> str:
    """The text that is forced: a call that nobody parsed, or JSON; "" = none."""
    names = tool_names(fields)
    if knobs.tool_fault == "markup" and names and fields.get("tool_choice") != "none":
        return f"<tool_call>{json_text({'name': next(iter(names)), 'arguments': {}})}</tool_call>"
    told = fields.get("response_format")
    if not knobs.json_mode or not isinstance(told, dict) or told.get("type") not in ("json_object", "json_schema"):
        return ""
    schema = told.get("json_schema")
    return json_text(sample(schema.get("schema")) if isinstance(schema, dict) else {"answer": 1})


def sample(schema: object) -> Any:
    """A value of a schema, as far as a test needs one."""
    if not isinstance(schema, dict):
        return {}
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        properties = schema.get("properties")
        needed = schema.get("required") or []
        return {name: sample(properties[name]) for name in needed} if isinstance(properties, dict) else {}
    return {"string": "text", "integer": 1, "number": 1, "boolean": True, "array": []}.get(kind)
