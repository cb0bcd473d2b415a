"""The OpenAI forms /v1/chat/completions and /v1/completions. Pure.

Rules:
- The client's bytes are forwarded; `stream_options.include_usage` is the only thing spliced in, and the chunk
  that it brings is dropped again when the client did not ask for it.
- Heartbeats are comments: several clients break on an event that is not a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.dialects import Prepared, fields, rewrite, traits
from gateway.dialects.traits import Traits
from gateway.meter import chat_usage
from gateway.problem import Problem, bad_request
from gateway.splice import put_value, replace_value, value_span
from gateway.taps import ChatTap, JsonTap, Tap, chat_ended

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}

_AGAIN = {429: "Rate limit: ", 503: "Service unavailable: "}
"""Inside a stream there is no status: pi tries again when it finds such words in the message. Source: pi 0.73.1."""


@dataclass(frozen=True, slots=True)
class OpenAI:
    """Either form; `prompt_field` is the field that holds the prompt and must be there."""

    path: str
    prompt_field: str

    def prepare(self, raw: bytes, body: dict[str, Any]) -> Prepared | Problem:
        """Checks in the order in which a person would want to hear of them."""
        problem = self._check(body) or fields.check(body)
        if problem is not None:
            return problem
        stream = body.get("stream") is True
        options = body.get("stream_options")
        asked = isinstance(options, dict) and options.get("include_usage") is True
        running = isinstance(options, dict) and options.get("continuous_usage_stats") is True
        try:
            if stream and not asked:
                raw = _asking_for_usage(raw, body)
            raw = rewrite.without_control(raw, body, *(("echo",) if self is CHAT else ()))
            if self is CHAT:
                raw = rewrite.without_empty_tools(raw, body)
        except ValueError as error:
            return bad_request(f"A field of the body cannot be read: {error}.")
        return Prepared(raw, stream, body.get("model"), self._traits(body), fields.max_tokens(body), not asked, running)

    def _check(self, body: dict[str, Any]) -> Problem | None:
        if not isinstance(body.get("stream_options"), dict | None):
            return bad_request("'stream_options' must be an object.", "stream_options")
        if self.prompt_field == "messages":
            return fields.check_list(body, "messages")
        prompt = body.get("prompt")
        if prompt is None:
            return bad_request("'prompt' is missing.", "prompt")
        if _prompts(prompt) > 1:
            return fields.several("prompt", "a list of several prompts")
        return None

    def _traits(self, body: dict[str, Any]) -> Traits:
        if self.prompt_field == "prompt":
            return Traits(first_text=traits.first_user_text(body["prompt"]))
        messages, form = body["messages"], body.get("response_format")
        key = body.get("prompt_cache_key")
        return Traits(
            first_text=traits.first_user_text(messages),
            image_at=traits.image_at(messages, "messages"),
            continues_at=traits.continues_at(messages),
            continues_asked=body.get("continue_final_message") is True,
            tools=bool(body.get("tools") or body.get("functions")),
            json_output=isinstance(form, dict) and form.get("type") == "json_schema",
            prompt_key=key if isinstance(key, str) else "",
        )

    def tap(self, prepared: Prepared, status: int, is_stream: bool) -> Tap:
        if status == 200 and is_stream:
            return ChatTap(prepared.strip_usage, prepared.running_usage)
        return JsonTap(status, chat_usage, chat_ended)

    def error(self, problem: Problem) -> bytes:
        return openai_error(problem)

    def stream_error(self, problem: Problem, tap: Tap | None) -> bytes:
        told = replace(problem, message=_AGAIN.get(problem.status, "Server error: ") + problem.message)
        return b"data: " + openai_error(told if problem.heals else problem) + b"\n\n"

    def opening(self, request_id: str) -> bytes:
        return b""

    def heartbeat(self, position: int, depth: int, why: str = "") -> bytes:
        if not position:
            return b": reading the prompt\n\n"
        return f": queued position={position} of={depth}{why and f', {why}'}\n\n".encode()


CHAT = OpenAI("/v1/chat/completions", "messages")
COMPLETIONS = OpenAI("/v1/completions", "prompt")


def _asking_for_usage(raw: bytes, body: dict[str, Any]) -> bytes:
    """`raw`, which parses to `body`, with `include_usage`; what else its options say stays. Raises ValueError when they
    are too long."""
    span = value_span(raw, "stream_options") if "stream_options" in body else None  # a search of all of `raw`
    old = raw[span[0] : span[1]] if span is not None and body["stream_options"] is not None else b"{}"
    return put_value(raw, "stream_options", span, replace_value(old, "include_usage", b"true"))


def openai_error(problem: Problem) -> bytes:
    """The error body of all OpenAI forms."""
    kind = _TYPES.get(problem.status, "server_error")
    error = {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}
    return orjson.dumps({"error": error})


def _prompts(prompt: Any) -> int:
    """How many sequences a `prompt` starts: a string or a list of token ids is one."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1
