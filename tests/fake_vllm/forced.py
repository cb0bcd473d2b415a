"""The fake engine with usage in every chunk, as `--enable-force-include-usage` has it in vLLM 0.26.0."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

from starlette.types import Receive, Scope, Send

from tests.fake_engine.asks import Ask, parse
from tests.fake_engine.server import FakeEngine

PATHS = ("/v1/chat/completions", "/v1/completions")


class Counted:
    """One stream: how many tokens it had so far."""

    def __init__(self, engine: FakeEngine, path: str) -> None:
        self._engine = engine
        self._path = path
        self.body = bytearray()
        self._so_far = 0

    def told(self, data: bytes) -> bytes:
        """The events, each chunk with its count."""
        return b"".join(self._event(event) for event in data.split(b"\n\n") if event)

    def _event(self, event: bytes) -> bytes:
        try:
            chunk = json.loads(event.removeprefix(b"data: "))
            choices = chunk["choices"]
        except (ValueError, TypeError, KeyError):
            return event + b"\n\n"
        if not choices:
            return event + b"\n\n"
        delta = choices[0].get("delta") or {"content": choices[0].get("text")}
        if delta.get("content") or delta.get("tool_calls"):
            self._so_far += self._engine.knobs.tokens_per_chunk
        ask = parse(bytes(self.body), self._path, self._engine.knobs)
        prompt = ask.prompt_tokens if isinstance(ask, Ask) else 0
        total = prompt + self._so_far
        chunk["usage"] = {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": self._so_far}
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


class ForcedUsage(FakeEngine):
    """See above; replies that are no streams stay as they are."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope.get("path") not in PATHS:
            await super().__call__(scope, receive, send)
            return
        counted = Counted(self, scope["path"])

        async def heard() -> MutableMapping[str, Any]:
            message = await receive()
            counted.body.extend(message.get("body", b""))
            return message

        async def told(message: MutableMapping[str, Any]) -> None:
            data = message.get("body", b"")
            if message["type"] == "http.response.body" and data.startswith(b"data: {") and data.endswith(b"\n\n"):
                message = {**message, "body": counted.told(data)}
            await send(message)

        await super().__call__(scope, heard, told)
