"""The same request with an answer of one token, in one piece: its whole prompt is read, next to nothing written. Pure.

Rules:
- Only members that say how to answer are replaced: what the prompt is rendered from keeps its bytes.
- ValueError is raised for a value beyond splice.VALUE_MAX_BYTES.
"""

from __future__ import annotations

from gateway.splice import drop_members, put_value

_HOW_TO_ANSWER = (
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "n_predict",
)
"""`stream_options` without `stream`, and `min_tokens` above the longest answer, are refused by vLLM; `n_predict` is
llama.cpp's own word for the longest answer."""
RESPONSES = "/v1/responses"
LEAST_OUTPUT_TOKENS = 16
"""The least that OpenAI's own server takes as max_output_tokens; 16 tokens are a third of a second at most."""


def brief(path: str, body: bytes, sequence: int | None = None) -> bytes:
    """`body` of the dialect at `path` for reading alone. `sequence`: which of llama.cpp's is to hold it; /v1/messages
    and /v1/responses do not hear of that (measured)."""
    made = drop_members(body, _HOW_TO_ANSWER)
    field, tokens = ("max_output_tokens", LEAST_OUTPUT_TOKENS) if path == RESPONSES else ("max_tokens", 1)
    if sequence is not None:
        made = put_value(made, "id_slot", None, b"%d" % sequence)
    return put_value(put_value(made, field, None, b"%d" % tokens), "stream", None, b"false")
