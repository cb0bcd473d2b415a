"""What the engine says when it says no, in the shape of llama.cpp or vLLM. Pure.

Rules: a refusal carries llama.cpp's type name; `body` translates it. llama.cpp has one shape for every path;
vLLM has another for /v1/messages. Sources: facts/engine-embedded.md section 7, facts/engine-vllm.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_VLLM_TYPES = {
    "invalid_request_error": "BadRequestError",
    "unavailable_error": "Service Unavailable",
    "server_error": "InternalServerError",
    "not_found_error": "NotFoundError",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP error; `more` is added to llama.cpp's error object."""

    status: int
    message: str
    type: str
    param: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self, style: str, path: str) -> dict[str, Any]:
        """The JSON body of `style` ("llama" or "vllm") on `path`."""
        if style == "llama":
            param = {} if self.param is None else {"param": self.param}
            return {"error": {"code": self.status, "message": self.message, "type": self.type, **param, **self.more}}
        if self.type == "not_found_error":
            return {"detail": "Not Found"}
        if self.type == "authentication_error":
            return {"error": "Unauthorized"}
        kind = _VLLM_TYPES.get(self.type, self.type)
        if path.startswith("/v1/messages"):
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


LOADING = Refusal(503, "Loading model", "unavailable_error")
BAD_KEY = Refusal(401, "Invalid API Key", "authentication_error")
NOT_FOUND = Refusal(404, "File Not Found", "not_found_error")
CRASH = Refusal(500, "EngineCore encountered an issue.", "InternalServerError")


def bad(message: str) -> Refusal:
    """A request that cannot be understood."""
    return Refusal(400, message, "invalid_request_error")


def no_images(style: str, model: str) -> Refusal:
    """An image for a model that has no eyes."""
    if style == "llama":
        hint = "hint: if this is unexpected, you may need to provide the mmproj"
        return Refusal(500, f"image input is not supported - {hint}", "server_error")
    return bad(f"{model} is not a multimodal model")


def too_long(style: str, prompt_tokens: int, max_tokens: int | None, context_tokens: int) -> Refusal | None:
    """The 400 for what does not fit; llama.cpp looks at the prompt only, vLLM at prompt and max_tokens."""
    if style == "llama":
        if prompt_tokens < context_tokens:
            return None
        return Refusal(
            400,
            f"request ({prompt_tokens} tokens) exceeds the available context size ({context_tokens} tokens), "
            "try increasing it",
            "exceed_context_size_error",
            more={"n_prompt_tokens": prompt_tokens, "n_ctx": context_tokens},
        )
    asked = max_tokens or 0
    if asked > context_tokens:
        message = f"max_tokens={asked} cannot be greater than max_model_len={context_tokens}."
        return Refusal(400, message, "invalid_request_error", "max_tokens")
    if prompt_tokens < context_tokens and prompt_tokens + asked <= context_tokens:
        return None
    start = f"This model's maximum context length is {context_tokens} tokens. However, "
    # vLLM stops counting one token above what fits, so its message never has the real length.
    if prompt_tokens >= context_tokens:
        text = f"your request has at least {context_tokens + 1} input tokens. "
    else:
        least = context_tokens - asked + 1
        text = (
            f"you requested {asked} output tokens and your prompt contains at least {least} input tokens, "
            f"for a total of at least {context_tokens + 1} tokens. "
        )
    message = start + text + "Please reduce the length of the input messages."
    return Refusal(400, message, "invalid_request_error", "input_tokens")
