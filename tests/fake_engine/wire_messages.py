"""The form of /v1/messages, the Anthropic wire, as llama.cpp and vLLM send it. Pure."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from tests.fake_engine.refusal import Refusal
from tests.fake_engine.wire import Head, Usage, dump, named_event

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesForm:
    """One message with one block."""

    opens = True
    half = b'{"id":"msg_cut","type":"message","role":"assistant","content":[{"type":"te'

    def __init__(self, head: Head) -> None:
        self._head = head
        self._told: dict[str, int] = {}

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None, used: Usage) -> dict[str, Any]:
        return {
            "id": f"msg_{self._head.id}",
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": _input(used) | {"output_tokens": used.completion_tokens},
        }

    def opening(self, used: Usage) -> bytes:
        """message_start, with what is known of the prompt."""
        self._told = _input(used)
        return named_event({"type": "message_start", "message": self._message([], None, used)})

    def start(self, sequence: int) -> bytes:
        """content_block_start."""
        block = {"type": "text", "text": ""} if self._head.call is None else self._block("{}")
        return named_event({"type": "content_block_start", "index": 0, "content_block": block})

    def _block(self, text: str) -> dict[str, Any]:
        call = self._head.call
        if call is None:
            return {"type": "text", "text": text}
        # What max_tokens cut is no JSON, and the block wants an object.
        arguments = json.loads(text) if self._head.reason == "tool_calls" else {}
        return {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": call.name, "input": arguments}

    def piece(self, sequence: int, text: str) -> bytes:
        """content_block_delta."""
        delta = {"type": "text_delta", "text": text}
        if self._head.call is not None:
            delta = {"type": "input_json_delta", "partial_json": text}
        return named_event({"type": "content_block_delta", "index": 0, "delta": delta})

    def finish(self, sequence: int, text: str) -> bytes:
        """content_block_stop."""
        return named_event({"type": "content_block_stop", "index": 0})

    def closing(self, used: Usage) -> bytes:
        """message_delta and message_stop; the prompt is told again by vLLM, or when it had been told wrong."""
        told = _input(used) if self._head.style == "vllm" or self._told != _input(used) else {}
        delta = {"stop_reason": _STOP_REASONS[self._head.reason], "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": told | {"output_tokens": used.completion_tokens}}
        return named_event(end) + named_event({"type": "message_stop"})

    def failure(self, refusal: Refusal) -> bytes:
        """An error event."""
        return named_event({"type": "error", "error": {"type": refusal.type, "message": refusal.message}})

    def whole(self, texts: list[str], used: Usage) -> bytes:
        """The body of a reply that is not streamed."""
        return dump(self._message([self._block(texts[0])], _STOP_REASONS[self._head.reason], used))


def _input(used: Usage) -> dict[str, int]:
    return {
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "cache_read_input_tokens": used.cached_tokens,
        "cache_creation_input_tokens": 0,
    }
