"""A request body of any dialect, understood. Pure.

Rules: unknown fields, roles, block and tool types are accepted, as real engines accept them. No body makes
`parse` raise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fake_engine import refusal, told
from tests.fake_engine.cache import BYTES_PER_TOKEN
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.refusal import Refusal, bad
from tests.fake_engine.render import CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH, Rendered, render
from tests.fake_engine.tools import ToolCall, due_call

MAX_SEQUENCES = 128
_LIMIT_FIELDS = {RESPONSES_PATH: ("max_output_tokens",)}
_OTHER_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `max_tokens` is None when it has none; `call` is the tool call that answers it, `text` the
    text, if one of them does."""

    path: str
    stream: bool
    include_usage: bool
    prompt: bytes
    max_tokens: int | None
    sequences: int
    call: ToolCall | None = None
    text: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Bytes / 4, at least 1."""
        return tokens_of(self.prompt)


def tokens_of(prompt: bytes) -> int:
    """Bytes / 4, at least 1: what usage and every count say."""
    return max(len(prompt) // BYTES_PER_TOKEN, 1)


def fields_of(body: bytes) -> dict[str, Any] | Refusal:
    """The JSON object of a body."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        return bad(f"Invalid JSON: {error}")
    return fields if isinstance(fields, dict) else bad("The body must be a JSON object")


def parse(body: bytes, path: str, knobs: Knobs) -> Ask | Refusal:
    """Understand the body of a request to one of the four inference paths."""
    fields = fields_of(body)
    if isinstance(fields, Refusal):
        return fields
    prompts = _prompts(fields, path, knobs)
    if isinstance(prompts, Refusal):
        return prompts
    limits = (fields.get(name) for name in _LIMIT_FIELDS.get(path, _OTHER_LIMIT_FIELDS))
    limit = next((value for value in limits if value is not None), None)
    n = fields.get("n") or 1
    if not isinstance(n, int) or n < 1 or not (limit is None or (isinstance(limit, int) and limit >= 0)):
        return bad("'n' and 'max_tokens' must be positive integers")
    if n * len(prompts) > MAX_SEQUENCES:
        return bad(f"'n' must be at most {MAX_SEQUENCES}")
    if path == CHAT_PATH and (no_tools := told.refused(fields, knobs)) is not None:
        return no_tools
    options = fields.get("stream_options")
    return Ask(
        path=path,
        stream=bool(fields.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        prompt=b"".join(prompts),
        max_tokens=limit,
        sequences=n * len(prompts) if path.endswith("/completions") else 1,
        call=_call(fields, path, knobs),
        text=told.text(fields, knobs) if path == CHAT_PATH else "",
    )


def _call(fields: Mapping[str, Any], path: str, knobs: Knobs) -> ToolCall | None:
    if path == COMPLETIONS_PATH:
        return None
    due = due_call(fields, knobs.tool_rules)
    return told.call(fields, knobs) if due is None and path == CHAT_PATH else due


def _prompts(fields: Mapping[str, Any], path: str, knobs: Knobs) -> list[bytes] | Refusal:
    if path == COMPLETIONS_PATH:
        prompts = completion_prompts(fields.get("prompt"))
        known = [prompt for prompt in prompts if prompt is not None]
        return known if prompts and prompts[0] is not None else bad("'prompt' is required")
    told_to_continue = knobs.style == "vllm" and fields.get("continue_final_message") is True
    if told_to_continue and fields.get("add_generation_prompt") is not False:
        return bad("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    try:
        rendered: Rendered | None = render(fields, path, continues=knobs.continues, style=knobs.style)
    except RecursionError:
        return bad("The body is nested too deeply")
    if rendered is None:
        return bad(f"'{'input' if path == RESPONSES_PATH else 'messages'}' is required")
    if rendered.images and not knobs.images:
        return refusal.no_images(knobs.style, knobs.model)
    return [rendered.prompt]


def completion_prompts(prompt: object) -> list[bytes | None]:
    """The prompts of a /v1/completions request: text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt.encode("utf-8", "surrogatepass")]
    if not isinstance(prompt, list):
        return [None]
    if all(isinstance(token, int) for token in prompt):
        ids = ((int(token) & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "little") for token in prompt)
        return [b"".join(ids) or None]
    return [one for item in prompt for one in completion_prompts(item)]


def admit(ask: Ask, knobs: Knobs) -> Ask | Refusal:
    """The request, or why it does not fit the context."""
    return refusal.too_long(knobs.style, ask.prompt_tokens, ask.max_tokens, knobs.context_tokens) or ask
