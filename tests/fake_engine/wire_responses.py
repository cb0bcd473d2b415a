"""The form of /v1/responses, the OpenAI Responses wire. Pure.

Rules: each event has the next sequence_number. llama.cpp leaves out the numbers and indices that OpenAI sends
(measured, b11549): `bare` does as well. There is no [DONE].
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.fake_engine.refusal import Refusal
from tests.fake_engine.wire import Head, Usage, dump, named_event

_NUMBERS = {"sequence_number", "output_index", "content_index"}


class ResponsesForm:
    """One response with one item. `error_event` says a failure with `error` instead of `response.failed`."""

    opens = True
    half = b'{"id":"resp_cut","object":"response","status":"completed","output":[{"type":"mess'

    def __init__(self, head: Head, *, error_event: bool, bare: bool, max_output_tokens: int | None) -> None:
        self._head = head
        self._error_event = error_event
        self._bare = bare
        self._limit = max_output_tokens
        self._number = 0
        self._item_id = f"{'msg' if head.call is None else 'fc'}_{uuid4().hex}"
        self._call_id = f"call_{uuid4().hex}"
        self._output: list[dict[str, Any]] = []

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        if self._bare:
            value = {name: item for name, item in value.items() if name not in _NUMBERS}
        return named_event(value)

    def _response(self, status: str, used: Usage | None = None, error: dict[str, str] | None = None) -> dict[str, Any]:
        head = self._head
        return {
            "id": f"resp_{head.id}",
            "object": "response",
            "created_at": head.created,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "max_output_tokens": self._limit,
            "metadata": {},
            "model": head.model,
            "output": self._output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None if used is None else _usage(used),
        }

    def _item(self, text: str, status: str) -> dict[str, Any]:
        call = self._head.call
        if call is None:
            content = [] if status == "in_progress" else [_part(text)]
            return {
                "id": self._item_id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": content,
            }
        namespace = {"namespace": call.namespace} if call.namespace else {}
        return {
            "id": self._item_id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": call.name,
            "arguments": text,
            **namespace,
        }

    @property
    def _status(self) -> str:
        return "incomplete" if self._head.reason == "length" else "completed"

    def opening(self, used: Usage) -> bytes:
        """response.created and response.in_progress."""
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=self._response("in_progress")) for kind in kinds)

    def start(self, sequence: int) -> bytes:
        """The item, and its part when it is text."""
        item = self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
        if self._head.call is not None:
            return item
        return item + self._of_item("response.content_part.added", content_index=0, part=_part(""))

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, **fields)

    def piece(self, sequence: int, text: str) -> bytes:
        """A delta."""
        if self._head.call is not None:
            return self._of_item("response.function_call_arguments.delta", delta=text)
        return self._of_item("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def finish(self, sequence: int, text: str) -> bytes:
        """The same again, whole: text or arguments, part, item."""
        item = self._item(text, self._status)
        self._output = [item]
        if self._head.call is not None:
            name = self._head.call.name
            parts = self._of_item("response.function_call_arguments.done", name=name, arguments=text)
        else:
            parts = self._of_item("response.output_text.done", content_index=0, text=text, logprobs=[])
            parts += self._of_item("response.content_part.done", content_index=0, part=_part(text))
        return parts + self._event("response.output_item.done", output_index=0, item=item)

    def closing(self, used: Usage) -> bytes:
        """response.completed, or response.incomplete when max_output_tokens cut it."""
        return self._event(f"response.{self._status}", response=self._response(self._status, used))

    def failure(self, refusal: Refusal) -> bytes:
        """response.failed, or an error event."""
        if self._error_event:
            return self._event("error", code="server_error", message=refusal.message, param=None)
        error = {"code": "server_error", "message": refusal.message}
        return self._event("response.failed", response=self._response("failed", error=error))

    def whole(self, texts: list[str], used: Usage) -> bytes:
        """The body of a reply that is not streamed."""
        self._output = [self._item(texts[0], self._status)]
        return dump(self._response(self._status, used))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(used: Usage) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }
