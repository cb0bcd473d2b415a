"""The endpoints that count a prompt without running it. Pure.

Rules: they say the number that usage says for the same request.
"""

from __future__ import annotations

from typing import Any

from tests.fake_engine.asks import fields_of, parse, tokens_of
from tests.fake_engine.cache import BYTES_PER_TOKEN
from tests.fake_engine.knobs import COUNT_PATHS, Knobs
from tests.fake_engine.refusal import Refusal
from tests.fake_engine.render import CHAT_PATH

TOKENIZE = COUNT_PATHS[0]


def count(body: bytes, path: str, knobs: Knobs) -> dict[str, Any] | Refusal:
    """The answer of a count path."""
    if path == TOKENIZE:
        return _tokenize(body, knobs)
    ask = parse(body, path.rpartition("/")[0], knobs)
    if isinstance(ask, Refusal):
        return ask
    answer = {"input_tokens": ask.prompt_tokens}
    return answer if path.endswith("/count_tokens") else answer | {"object": "response.input_tokens"}


def _tokenize(body: bytes, knobs: Knobs) -> dict[str, Any] | Refusal:
    """Text (`content` as llama.cpp, `prompt` as vLLM) or a chat body."""
    fields = fields_of(body)
    if isinstance(fields, Refusal):
        return fields
    text = fields.get("content", fields.get("prompt"))
    if isinstance(text, str):
        prompt = text.encode("utf-8", "surrogatepass")
    else:
        ask = parse(body, CHAT_PATH, knobs)
        if isinstance(ask, Refusal):
            return ask
        prompt = ask.prompt
    starts = range(0, tokens_of(prompt) * BYTES_PER_TOKEN, BYTES_PER_TOKEN)
    tokens = [int.from_bytes(prompt[start : start + BYTES_PER_TOKEN], "little") for start in starts]
    return {"count": len(tokens), "max_model_len": knobs.context_tokens, "tokens": tokens}
