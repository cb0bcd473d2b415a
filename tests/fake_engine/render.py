"""What the chat template makes of a request: one text for counts and cache, in every dialect. Pure.

Rules: what engines do not render is left out (cache_control, ids, signatures, empty fields); all else is in,
in the order in which it came, tools first. A string and one text block give the same text, and a reply that
comes back in the next request gives the text it had.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tests.fake_engine.tools import dicts

IMAGE_TOKENS = 256
CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
MESSAGES_PATH, RESPONSES_PATH = "/v1/messages", "/v1/responses"
_NOT_RENDERED = {"cache_control", "id", "call_id", "tool_call_id", "tool_use_id", "signature", "encrypted_content"}
_TURN_FIELDS = _NOT_RENDERED | {"role", "content", "tool_calls", "type", "status", "annotations"}
_IMAGES = {"image", "image_url", "input_image"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. `open` is whether the model could go on writing it: an assistant's plain text."""

    role: str
    text: str
    open: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and how many images are in it (IMAGE_TOKENS each)."""

    prompt: bytes
    images: int = 0


class _Page:
    """Renders parts and counts the images among them."""

    def __init__(self) -> None:
        self.images = 0

    def content(self, content: object) -> str:
        if content is None:
            return ""
        if not isinstance(content, list):
            return content if isinstance(content, str) else json_text(content)
        return "".join(self.part(part) for part in content)

    def part(self, part: object) -> str:
        if not isinstance(part, dict):
            return part if isinstance(part, str) else json_text(part)
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"):
            return str(part.get("text", part.get("refusal", "")))
        if isinstance(kind, str) and kind in _IMAGES:
            self.images += 1
            # As many bytes as the tokens stand for, and others for another picture, so that the cache sees it.
            digest = blake2b(json_text(_clean(part)).encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
            return digest * (IMAGE_TOKENS * 4 // len(digest))
        if kind == "tool_use":
            return call_text(str(part.get("name")), part.get("input"))
        if kind == "tool_result":
            return f"<tool_result>{self.content(part.get('content'))}</tool_result>"
        if kind == "thinking":
            return f"<think>{part.get('thinking', '')}</think>"
        return json_text(_clean(part))

    def message(self, message: Mapping[str, Any]) -> Turn:
        role = str(message.get("role"))
        calls = ""
        for call in dicts(message.get("tool_calls")):
            function = call.get("function")
            holder = function if isinstance(function, dict) else call
            calls += call_text(str(holder.get("name")), holder.get("arguments"))
        rest = {name: value for name, value in _clean(message).items() if name not in _TURN_FIELDS and value}
        text = self.content(message.get("content")) + calls + (json_text(rest) if rest else "")
        called = bool(calls) or any(part.get("type") == "tool_use" for part in dicts(message.get("content")))
        return Turn(role, text, open=role == "assistant" and not called)

    def item(self, item: object) -> Turn | None:
        """One item of a Responses input; None for what leaves no trace."""
        if not isinstance(item, dict):
            return Turn("user", self.content(item))
        kind = str(item.get("type", "message"))
        if kind == "message":
            return self.message(item)
        if kind in ("function_call", "custom_tool_call"):
            return Turn("assistant", call_text(str(item.get("name")), item.get("arguments", item.get("input"))))
        if kind.endswith("_call_output"):
            return Turn("tool", self.content(item.get("output")))
        if kind == "reasoning":
            thought = self.content(item.get("content")) or self.content(item.get("summary"))
            return Turn("assistant", f"<think>{thought}</think>") if thought else None
        return Turn(kind, json_text(_clean(item)))


def render(fields: Mapping[str, Any], path: str, *, continues: bool = True, style: str = "llama") -> Rendered | None:
    """The prompt of a chat request of a dialect; None when it has no conversation.

    `continues`: a final assistant message is left open instead of being closed and followed by a new header.
    """
    page = _Page()
    turns = _responses(fields, page) if path == RESPONSES_PATH else _messages(fields, page)
    if turns is None:
        return None
    tools = [_clean(tool) for tool in dicts(fields.get("tools"))]
    parts = [json_text(tools)] if tools else []
    parts += [f"<|{turn.role}|>\n{turn.text}\n" for turn in turns]
    if continues and turns[-1].open and _continued(fields, path, style):
        parts[-1] = parts[-1][:-1]
    elif not (continues and fields.get("add_generation_prompt") is False):
        parts.append("<|assistant|>\n")
    return Rendered("".join(parts).encode("utf-8", "surrogatepass"), page.images)


def _messages(fields: Mapping[str, Any], page: _Page) -> list[Turn] | None:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return None
    system = page.content(fields.get("system"))
    return ([Turn("system", system)] if system else []) + [page.message(message) for message in messages]


def _responses(fields: Mapping[str, Any], page: _Page) -> list[Turn] | None:
    items = fields.get("input")
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, list) or not items:
        return None
    system = page.content(fields.get("instructions"))
    turns = [Turn("system", system)] if system else []
    turns += [turn for item in items if (turn := page.item(item)) is not None]
    return turns or None


def _continued(fields: Mapping[str, Any], path: str, style: str) -> bool:
    """Whether the engine goes on with a final assistant message: llama.cpp always, vLLM when it is told to."""
    if style == "llama" or path == MESSAGES_PATH:
        return True
    if path == RESPONSES_PATH:
        last = fields["input"][-1]
        return isinstance(last, dict) and last.get("status") in ("in_progress", "incomplete")
    return fields.get("continue_final_message") is True and fields.get("add_generation_prompt") is False


def call_text(name: str, arguments: object) -> str:
    """A tool call as the template writes it; arguments may be an object or its JSON."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return f"<tool_call>{json_text({'name': name, 'arguments': arguments})}</tool_call>"


def json_text(value: object) -> str:
    """Compact JSON, lone surrogates and all."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _clean(item) for name, item in value.items() if name not in _NOT_RENDERED}
    return [_clean(item) for item in value] if isinstance(value, list) else value
