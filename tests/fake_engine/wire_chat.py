"""The forms of /v1/chat/completions and /v1/completions, as vLLM and llama.cpp send them. Pure."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.fake_engine.refusal import Refusal
from tests.fake_engine.render import CHAT_PATH
from tests.fake_engine.wire import DONE, Head, Usage, dump, event, usage


class ChatForm:
    """Either form. `include_usage` asks for the chunk with usage, `error_then_done` for [DONE] after an error."""

    opens = False
    half = b'{"id":"cut","choices":[{"index":0,"message":{"role":"assis'

    def __init__(self, head: Head, *, include_usage: bool, error_then_done: bool) -> None:
        self._head = head
        self._chat = head.path == CHAT_PATH
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{head.id}"
        self._include_usage = include_usage
        self._error_then_done = error_then_done

    def _wrap(self, kind: str, choices: list[dict[str, Any]], used: Usage | None) -> dict[str, Any]:
        name = f"chat.completion{kind}" if self._chat else "text_completion"
        head = self._head
        body = {"id": self._id, "object": name, "created": head.created, "model": head.model, "choices": choices}
        if used is None:
            return body
        told = usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens)
        return body | {"usage": told if head.tells_cached else told | {"prompt_tokens_details": None}}

    def _chunk(self, sequence: int, piece: dict[str, Any], reason: str | None) -> bytes:
        return event(self._wrap(".chunk", [{"index": sequence} | piece | {"finish_reason": reason}], None))

    def opening(self, used: Usage) -> bytes:
        """Nothing: the first chunk comes with the first token."""
        return b""

    def start(self, sequence: int) -> bytes:
        """The role, and the name of a call; nothing for the completions form."""
        if not self._chat:
            return b""
        role = self._chunk(sequence, {"delta": {"role": "assistant", "content": None}}, None)
        if self._head.call is None:
            return role
        return role + self._chunk(sequence, {"delta": {"tool_calls": [{"index": 0} | self._call("")]}}, None)

    def _call(self, arguments: str) -> dict[str, Any]:
        assert self._head.call is not None
        function = {"name": self._head.call.name, "arguments": arguments}
        return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}

    def piece(self, sequence: int, text: str) -> bytes:
        """A chunk with tokens."""
        if not self._chat:
            return self._chunk(sequence, {"text": text}, None)
        if self._head.call is None:
            return self._chunk(sequence, {"delta": {"reasoning" if self._head.thinks else "content": text}}, None)
        calls = [{"index": 0, "function": {"arguments": text}}]
        return self._chunk(sequence, {"delta": {"tool_calls": calls}}, None)

    def finish(self, sequence: int, text: str) -> bytes:
        """The chunk that ends a sequence."""
        return self._chunk(sequence, {"delta": {}} if self._chat else {"text": ""}, self._head.reason)

    def closing(self, used: Usage) -> bytes:
        """Usage, when asked for, and [DONE]."""
        return (event(self._wrap(".chunk", [], used)) if self._include_usage else b"") + DONE

    def failure(self, refusal: Refusal) -> bytes:
        """An error chunk."""
        done = DONE if self._error_then_done else b""
        return event(refusal.body(self._head.style, self._head.path)) + done

    def whole(self, texts: list[str], used: Usage) -> bytes:
        """The body of a reply that is not streamed."""
        choices: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            piece: dict[str, Any] = {"text": text}
            if self._head.call is not None:
                message = {"role": "assistant", "content": None, "tool_calls": [self._call(text)]}
                piece = {"message": message}
            elif self._chat:
                said = {"content": None, "reasoning": text} if self._head.thinks else {"content": text}
                piece = {"message": {"role": "assistant", **said}}
            choices.append({"index": index} | piece | {"finish_reason": self._head.reason})
        return dump(self._wrap("", choices, used))
