"""Prompts of an agent's turns, as small as a test can read."""

from __future__ import annotations

from typing import Any

from gateway.learning.prompt import CanonicalPrompt

TOOLS = [{"name": f"tool{n}", "description": f"does the thing {n} " * 20, "input_schema": {}} for n in range(4)]
SYSTEM = "You are an agent. " * 60


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def turns(count: int, name: str = "a") -> list[dict[str, Any]]:
    """A user's text, then `count` - 1 times an answer and what the tools said."""
    found = [message("user", f"{name}: please do this, and then that. " * 10)]
    for at in range(1, count):
        found += [message("assistant", f"{name} answer {at} " * 30), message("user", f"{name} result {at} " * 60)]
    return found


def body(messages: list[dict[str, Any]], *, system: Any = SYSTEM, tools: Any = TOOLS) -> dict[str, Any]:
    return {"system": system, "tools": tools, "messages": messages}


def prompt(messages: list[dict[str, Any]], *, system: Any = SYSTEM, tools: Any = TOOLS) -> CanonicalPrompt:
    return CanonicalPrompt.of(body(messages, system=system, tools=tools))
