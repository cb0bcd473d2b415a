"""Which tool call a request is answered with, decided from the request alone. Pure.

Rules: at most one call per user text. Once a tool result stands after the last real user text, the reply is
text, so an agent ends after one round whatever was asked before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

REMINDER = "<system-reminder>"
"""Claude Code puts such blocks next to tool results; they are not what a person said."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `namespace` is that of a tool nested in one (Codex), else ""."""

    name: str
    arguments: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Call `call` when the request has the tool `when_tool`; "" = when it has any tool."""

    when_tool: str
    call: ToolCall


def parse_rule(text: str) -> Rule:
    """A rule from {"when_tool": NAME, "any": BOOL, "name": NAME, "arguments": {...}}. Raises ValueError."""
    value = json.loads(text)
    known = isinstance(value, dict) and isinstance(value.get("name"), str)
    if not known:
        raise ValueError(f"a tool rule is an object with a name, not {text}")
    if unknown := value.keys() - {"when_tool", "any", "name", "arguments"}:
        raise ValueError(f"a tool rule has no {sorted(unknown)}: {text}")
    arguments = json.dumps(value.get("arguments", {}), ensure_ascii=False, separators=(",", ":"))
    when = "" if value.get("any") else str(value.get("when_tool", value["name"]))
    return Rule(when, ToolCall(value["name"], arguments))


def due_call(fields: Mapping[str, Any], rules: Sequence[str]) -> ToolCall | None:
    """The call of the first rule that fits a request of any dialect."""
    if not rules:
        return None
    names = tool_names(fields)
    choice = fields.get("tool_choice")
    if not names or choice == "none" or choice == {"type": "none"} or answered(fields):
        return None
    for rule in map(parse_rule, rules):
        if not rule.when_tool or rule.when_tool in names:
            return replace(rule.call, namespace=names.get(rule.call.name, ""))
    return None


def tool_names(fields: Mapping[str, Any]) -> dict[str, str]:
    """The names of the tools of a request, nested ones too, each with its namespace or ""."""
    names: dict[str, str] = {}
    for tool in dicts(fields.get("tools")):
        nested = dicts(tool.get("tools"))
        for inner in nested:
            names[str(inner.get("name"))] = str(tool.get("name"))
        function = tool.get("function")
        holder = function if isinstance(function, dict) else tool
        if not nested and "name" in holder:
            names[str(holder["name"])] = ""
    return names


def dicts(value: object) -> list[dict[str, Any]]:
    """The objects of a list; [] for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def answered(fields: Mapping[str, Any]) -> bool:
    """Whether a tool result follows the last text of the user."""
    last = False
    for is_result in _marks(fields):
        last = is_result
    return last


def _marks(fields: Mapping[str, Any]) -> Iterator[bool]:
    """For each tool result True and for each real user text False, in their order."""
    if isinstance(fields.get("input"), str):
        yield False
    for item in dicts(fields.get("messages")) + dicts(fields.get("input")):
        role, content = item.get("role"), item.get("content")
        kinds = [part.get("type") for part in dicts(content)]
        if role == "tool" or str(item.get("type", "")).endswith("_call_output") or "tool_result" in kinds:
            yield True
        elif role == "user" and _said(content):
            yield False


def _said(content: object) -> bool:
    texts = [content] if isinstance(content, str) else [part.get("text") for part in dicts(content)]
    return any(isinstance(text, str) and text.strip() and not text.startswith(REMINDER) for text in texts)
