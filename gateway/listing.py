"""The models of the box as /v1/models lists them, in the form of OpenAI or of Anthropic. Pure.

The context window stands under the names that agents and tools look for; it is the engine's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.state import EngineState


def listed(engine: EngineState, *, anthropic: bool) -> dict[str, Any]:
    """The whole list."""
    rows = [_row(engine, id, anthropic=anthropic) for id in engine.models]
    if not anthropic:
        return {"object": "list", "data": rows}
    ends = {"first_id": engine.models[0], "last_id": engine.models[-1]} if rows else {"first_id": None, "last_id": None}
    return {"data": rows, "has_more": False, **ends}


def one(engine: EngineState, id: str, *, anthropic: bool) -> dict[str, Any] | None:
    """One model, None when it is not served."""
    return _row(engine, id, anthropic=anthropic) if id in engine.models else None


def is_anthropic(headers: Mapping[str, str]) -> bool:
    """True for a client that speaks Anthropic's API: it always names a version of it."""
    return "anthropic-version" in headers


def _row(engine: EngineState, id: str, *, anthropic: bool) -> dict[str, Any]:
    window = engine.context_tokens
    if anthropic:
        made = datetime.fromtimestamp(int(engine.since_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        row: dict[str, Any] = {"type": "model", "id": id, "display_name": id, "created_at": made, "lifecycle": "active"}
        return row | ({"max_input_tokens": window} if window else {})
    row = {"id": id, "object": "model", "created": int(engine.since_s), "owned_by": "moe-appliance"}
    return row | ({"max_model_len": window, "context_length": window, "context_window": window} if window else {})
