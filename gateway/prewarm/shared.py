"""The head that several requests of one seat share: their tools and system texts, as a body of its own. Pure.

Rules:
- Only whole tools and whole system segments count, and only those that all begin with, in order.
- The rest of the body is the latest request's, so that its template renders the head in the same way. The words of the
  conversation are replaced by one short user message, which templates want behind a system text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.dialects.canonical import SYSTEM_ROLES
from gateway.parsing import parse

_TURNS = {"/v1/chat/completions": "messages", "/v1/messages": "messages", "/v1/responses": "input"}
"""The field with the conversation; /v1/completions has neither tools nor system texts."""
_ANYTHING = [{"role": "user", "content": "."}]


def shared_head(path: str, bodies: Sequence[bytes]) -> bytes | None:
    """A body with what all `bodies` of one dialect begin with, the latest first; None = they share nothing. Bodies
    that are no JSON objects share nothing with anybody."""
    turns = _TURNS.get(path)
    try:
        parsed = [parse(body) for body in bodies]
        if turns is None or not parsed or not all(isinstance(body, dict) for body in parsed):
            return None
        made = _shared(turns, parsed)
        return orjson.dumps(made) if made is not None else None
    except (ValueError, TypeError, RecursionError):  # beyond what is compared or written: too deep, too large a number
        return None


def _shared(turns: str, parsed: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    made = dict(parsed[0])
    tools = _common([body.get("tools") for body in parsed])
    system = _common([body.get("system") for body in parsed])
    leading = _common([_leading(body.get(turns)) for body in parsed])
    told = _same([body.get("instructions") for body in parsed])
    for name, value in (("tools", tools), ("system", system), ("instructions", told)):
        made.pop(name, None)
        if value:
            made[name] = value
    if not (tools or system or leading or told):
        return None
    if not tools:
        made.pop("tool_choice", None)
    made[turns] = [*leading, *_ANYTHING]
    return made


def _common(values: Sequence[Any]) -> Any:
    """What lists all begin with; of anything else the value when it is the same for all."""
    if not all(isinstance(value, list) for value in values):
        return _same(values)
    first = values[0]
    size = 0
    while all(size < len(value) and value[size] == first[size] for value in values):
        size += 1
    return first[:size]


def _same(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _leading(turns: Any) -> list[Any]:
    """The system messages at the beginning of a conversation."""
    leading: list[Any] = []
    for item in turns if isinstance(turns, list) else ():
        if not isinstance(item, dict) or item.get("role") not in SYSTEM_ROLES:
            break
        leading.append(item)
    return leading
