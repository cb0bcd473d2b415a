"""The prefix of a request as the engine's cache sees it: what two requests share here, they share there. Pure.

Rules:
- Segments in the order in which chat templates render them: tools, system, then message by message. A request
  is a continuation of another when its segments begin with the other's.
- A text is one text block. Left out is what no engine renders and what changes from request to request:
  `cache_control` marks, ids of items, Claude Code's billing line.
- What stands in a tool's arguments, or in its schema, is content and stays as it is, whatever it is called.

Source: facts/clients.md sections 2 and 5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from gateway.dialects.rewrite import is_billing, rest_of_billing

SYSTEM_ROLES = ("system", "developer")
"""Of the messages that a system prompt is made of, where it is no field of its own."""
_CONTENT = frozenset({"content", "output"})
_MARKS = frozenset({"cache_control", "defer_loading"})
"""All that a tool has beside its definition; an `id` of its own a template may render."""
_NOT_RENDERED = _MARKS | {"id", "status", "annotations", "logprobs"}
_KEPT_IDS = ("tool_use", "server_tool_use", "mcp_tool_use", "item_reference")
"""Blocks and items whose `id` is what a result refers to, or all that they are."""
_TEXTS = ("text", "input_text", "output_text")


def segments(body: dict[str, Any]) -> Iterator[bytes]:
    """The segments of a parsed request of any dialect. Malformed parts come out as they are."""
    yield from tools(body)
    yield from system(body)
    yield from messages(body)


def tools(body: dict[str, Any]) -> Iterator[bytes]:
    """The first of them."""
    for tool in _list(body.get("tools")):
        yield _bytes(_without(tool, _MARKS) if isinstance(tool, dict) else tool)


def system(body: dict[str, Any]) -> Iterator[bytes]:
    """Those behind the tools; a system prompt that is a message is among the messages."""
    for field in ("instructions", "system"):
        for block in _blocks(body.get(field)):
            kept = _unbilled(block)
            if kept is not None:
                yield _bytes({"role": "system", "content": [kept]})


def messages(body: dict[str, Any]) -> Iterator[bytes]:
    """The last of them."""
    for field in ("messages", "input"):
        value = body.get(field)
        items = [{"role": "user", "content": value}] if isinstance(value, str) else _list(value)
        for item in items:
            yield _bytes(_item(item))
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        yield prompt.encode(errors="surrogatepass")
    elif prompt is not None and not isinstance(prompt, dict):
        yield _bytes(prompt)


def _item(item: Any) -> Any:
    """A message, or an item of `input`."""
    if not isinstance(item, dict):
        return item
    kept = _rendered(item)
    if kept.get("type") == "message":
        del kept["type"]
    for name in _CONTENT & kept.keys():
        value = kept[name]
        kept[name] = [_text(value)] if isinstance(value, str) else [_marked_off(block) for block in _list(value)]
    return kept


def _blocks(value: Any) -> list[Any]:
    """Content as a list of blocks: a text is one."""
    return [_text(value)] if isinstance(value, str) else _list(value)


def _text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def _marked_off(block: Any) -> Any:
    """A block without what is not rendered; content inside it (a tool's result) likewise."""
    if not isinstance(block, dict):
        return block
    kept = _rendered(block)
    if kept.get("type") in _TEXTS:
        kept["type"] = "text"
    if isinstance(kept.get("content"), str | list) and kept.get("type") == "tool_result":
        kept["content"] = [_marked_off(inner) for inner in _blocks(kept["content"])]
    return kept


def _rendered(value: dict[str, Any]) -> dict[str, Any]:
    return _without(value, _NOT_RENDERED - {"id"} if value.get("type") in _KEPT_IDS else _NOT_RENDERED)


def _without(value: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: own for name, own in value.items() if name not in names}


def _unbilled(block: Any) -> Any:
    """A system block without the billing line; None when that was all of it."""
    text = block.get("text") if isinstance(block, dict) else None
    if isinstance(text, str) and is_billing(text):
        rest = rest_of_billing(text)
        return _marked_off({**block, "text": rest}) if rest else None
    return _marked_off(block)


def _list(value: Any) -> list[Any]:
    """A list as it is, anything else as the only item of one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _bytes(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate, a number above 64 bits, or nested deeper than it writes
        pass
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b" ".join(_flat(value))


def _flat(value: Any) -> Iterator[bytes]:
    """The same for what is nested so deeply that no encoder writes it."""
    pending: list[tuple[bool, Any]] = [(True, value)]
    while pending:
        unwritten, value = pending.pop()
        if not unwritten:
            yield value
        elif isinstance(value, dict):
            yield b"{"
            pending.append((False, b"}"))
            pending += [(True, part) for member in reversed(value.items()) for part in reversed(member)]
        elif isinstance(value, list):
            yield b"["
            pending.append((False, b"]"))
            pending += [(True, part) for part in reversed(value)]
        else:
            yield json.dumps(value).encode()
