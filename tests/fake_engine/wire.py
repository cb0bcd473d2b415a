"""The OpenAI wire form: requests in, chunks and bodies out, as vLLM and llama.cpp send them. Pure.

Rules: one reply token is one word of four bytes and a prompt has bytes / 4 tokens, so a reply that comes back
in the next prompt has as many tokens as it had, and its blocks are in the cache. Words depend on the prompt
and the sequence only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fake_engine.cache import BYTES_PER_TOKEN

DONE = b"data: [DONE]\n\n"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion request, understood. `max_tokens` is None when the request has none."""

    chat: bool
    stream: bool
    include_usage: bool
    prompt: bytes
    max_tokens: int | None
    sequences: int

    @property
    def prompt_tokens(self) -> int:
        """Bytes / 4, at least 1."""
        return max(len(self.prompt) // BYTES_PER_TOKEN, 1)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP error with an OpenAI body."""

    status: int
    message: str
    type: str
    param: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        error: dict[str, Any] = {"message": self.message, "type": self.type, "code": self.status}
        if self.param is not None:
            error["param"] = self.param
        return {"error": error}


def dump(value: object) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def event(value: object) -> bytes:
    """One SSE event."""
    return b"data: " + dump(value) + b"\n\n"


def parse(body: bytes, *, chat: bool) -> Ask | Refusal:
    """Understand a request body."""
    try:
        fields = json.loads(body)
    except ValueError as error:
        return _bad(f"Invalid JSON: {error}")
    if not isinstance(fields, dict):
        return _bad("The body must be a JSON object")
    prompts = [render(fields)] if chat else completion_prompts(fields.get("prompt"))
    if not prompts or prompts[0] is None:
        return _bad(f"'{'messages' if chat else 'prompt'}' is required")
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    n = fields.get("n") or 1
    if not isinstance(n, int) or n < 1 or not (limit is None or (isinstance(limit, int) and limit >= 0)):
        return _bad("'n' and 'max_tokens' must be positive integers")
    options = fields.get("stream_options")
    return Ask(
        chat=chat,
        stream=bool(fields.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        prompt=b"".join(p for p in prompts if p is not None),
        max_tokens=limit,
        sequences=n * len(prompts),
    )


def _bad(message: str) -> Refusal:
    return Refusal(400, message, "invalid_request_error")


def render(fields: Mapping[str, Any]) -> bytes | None:
    """The prompt of a chat request: tools, messages, and the start of the reply; None without messages."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return None
    parts = [dump(fields["tools"]).decode()] if fields.get("tools") else []
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else "" if content is None else dump(content).decode()
        rest = {name: value for name, value in message.items() if name not in {"role", "content"}}
        parts.append(f"<|{message.get('role')}|>\n{text}{dump(rest).decode() if rest else ''}\n")
    parts.append("<|assistant|>\n")
    return "".join(parts).encode("utf-8", "surrogatepass")


def completion_prompts(prompt: object) -> list[bytes | None]:
    """The prompts of a /v1/completions request: text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt.encode("utf-8", "surrogatepass")]
    if not isinstance(prompt, list):
        return [None]
    if all(isinstance(token, int) for token in prompt):
        return [b"".join(int(token).to_bytes(BYTES_PER_TOKEN, "little") for token in prompt) or None]
    return [one for item in prompt for one in completion_prompts(item)]


def too_long(ask: Ask, context_tokens: int) -> Refusal | None:
    """vLLM's 400 for a prompt and reply that do not fit together."""
    wanted = ask.prompt_tokens + (ask.max_tokens or 0)
    if wanted <= context_tokens and ask.prompt_tokens < context_tokens:
        return None
    return Refusal(
        400,
        f"This model's maximum context length is {context_tokens} tokens. However, you requested {wanted} tokens "
        f"({ask.prompt_tokens} in the messages, {ask.max_tokens or 0} in the completion). "
        "Please reduce the length of the messages or completion.",
        "BadRequestError",
        "input_tokens",
    )


def reply_length(ask: Ask, reply_tokens: int, context_tokens: int) -> tuple[int, str]:
    """How many tokens one sequence gets, and its finish_reason. An asked-for limit ends in "length"."""
    if ask.max_tokens is not None:
        return ask.max_tokens, "length"
    room = context_tokens - ask.prompt_tokens
    return (reply_tokens, "stop") if reply_tokens <= room else (room, "length")


def words(prompt: bytes, sequence: int, start: int, count: int) -> str:
    """Tokens `start` ... `start + count - 1` of a reply: four bytes each."""
    seed = zlib.crc32(prompt) + 104_729 * sequence
    return "".join(_word(seed + 7919 * index) for index in range(start, start + count))


def _word(number: int) -> str:
    high, low = divmod(number % 26**3, 26)
    return " " + _LETTERS[high // 26] + _LETTERS[high % 26] + _LETTERS[low]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of one reply have in common. `created` is Unix seconds."""

    id: str
    model: str
    created: int
    chat: bool

    def _wrap(self, kind: str, choices: list[dict[str, Any]], used: dict[str, Any] | None) -> dict[str, Any]:
        name = f"chat.completion{kind}" if self.chat else "text_completion"
        body = {"id": self.id, "object": name, "created": self.created, "model": self.model, "choices": choices}
        return body if used is None else body | {"usage": used}

    def role(self, sequence: int) -> bytes:
        """The first chunk of a chat sequence; nothing for the completions form."""
        if not self.chat:
            return b""
        choice = {"index": sequence, "delta": {"role": "assistant", "content": None}, "finish_reason": None}
        return event(self._wrap(".chunk", [choice], None))

    def text(self, sequence: int, text: str) -> bytes:
        """A chunk with tokens."""
        piece: dict[str, Any] = {"delta": {"content": text}} if self.chat else {"text": text}
        return event(self._wrap(".chunk", [{"index": sequence} | piece | {"finish_reason": None}], None))

    def finish(self, sequence: int, reason: str) -> bytes:
        """The chunk that ends a sequence."""
        piece: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        return event(self._wrap(".chunk", [{"index": sequence} | piece | {"finish_reason": reason}], None))

    def used(self, used: dict[str, Any]) -> bytes:
        """The chunk without choices that `stream_options.include_usage` asks for."""
        return event(self._wrap(".chunk", [], used))

    def whole(self, texts: list[str], reason: str, used: dict[str, Any]) -> bytes:
        """The body of a reply that is not streamed."""
        choices: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            piece: dict[str, Any] = {"text": text}
            if self.chat:
                piece = {"message": {"role": "assistant", "content": text}}
            choices.append({"index": index} | piece | {"finish_reason": reason})
        return dump(self._wrap("", choices, used))
