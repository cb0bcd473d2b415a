"""What the gateway wants to know of a conversation beyond its fields. Pure.

Rules:
- Anything may be anywhere in a body: what is not of the expected form is passed over, never an error.
- Where something is is told as a path that a developer can follow: `messages[3].content[1]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FIRST_TEXT_MAX = 2048
_IMAGES = ("image", "image_url", "input_image")
"""No set: a type may be of any type."""


@dataclass(frozen=True, slots=True)
class Traits:
    """`first_text`: the beginning of the first text by the user, names a run where nothing else does.
    `image_at`, `continues_at`: where an image, a partial assistant turn at the end is; None = there is none.
    `continues_asked`: a field of the request says that it is to be continued. `tools`: it offers tools.
    `json_output`: a schema for the answer is given. `prompt_key`: the client's own name for this prefix.
    """

    first_text: str = ""
    image_at: str | None = None
    continues_at: str | None = None
    continues_asked: bool = False
    tools: bool = False
    json_output: bool = False
    prompt_key: str = ""


def image_at(items: Any, name: str) -> str | None:
    """Where the first image among `items` (messages, or input items) is."""
    for at, item in _dicts(items):
        for field in ("content", "output"):
            found = _image_in(item.get(field), f"{name}[{at}].{field}")
            if found is not None:
                return found
        if item.get("type") in _IMAGES:
            return f"{name}[{at}]"
    return None


def _image_in(parts: Any, where: str) -> str | None:
    for at, part in _dicts(parts):
        if part.get("type") in _IMAGES:
            return f"{where}[{at}]"
        for inner_at, inner in _dicts(part.get("content")):  # a tool's result
            if inner.get("type") in _IMAGES:
                return f"{where}[{at}].content[{inner_at}]"
    return None


def continues_at(messages: Any) -> str | None:
    """Where a partial assistant turn at the end is: text, and no tool call that waits for its result."""
    if not isinstance(messages, list) or not messages:
        return None
    last = messages[-1]
    if not isinstance(last, dict) or last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    content = last.get("content")
    parts = [part for _, part in _dicts(content)]
    if any(part.get("type") == "tool_use" for part in parts):
        return None
    has_text = bool(content) if isinstance(content, str) else any(part.get("text") for part in parts)
    return f"messages[{len(messages) - 1}]" if has_text else None


def unfinished_at(items: Any) -> str | None:
    """Where an assistant's message at the end of an `input` is that says of itself that it is not whole."""
    last = items[-1] if isinstance(items, list) and items else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return None
    return f"input[{len(items) - 1}]" if last.get("status") in ("in_progress", "incomplete") else None


def first_user_text(items: Any) -> str:
    """The beginning of the first text that the user wrote."""
    if isinstance(items, str):
        return items[:FIRST_TEXT_MAX]
    for _, item in _dicts(items):
        if item.get("role") != "user":
            continue
        content = item.get("content")
        texts = [content] if isinstance(content, str) else [part.get("text") for _, part in _dicts(content)]
        for text in texts:
            if isinstance(text, str) and text:
                return text[:FIRST_TEXT_MAX]
    return ""


def _dicts(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    if isinstance(value, list):
        for at, item in enumerate(value):
            if isinstance(item, dict):
                yield at, item
