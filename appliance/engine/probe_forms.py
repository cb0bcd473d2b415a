"""What the warm-up probes ask an engine, and what its answers show. Pure.

Source of the forms: xllamacpp 2026.10.11549, measured; vLLM 0.32, measured; OpenAI's and Anthropic's references.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
TOKENIZE = "/tokenize"
COUNTERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        CHAT: ("/v1/chat/completions/input_tokens", TOKENIZE),
        COMPLETIONS: (TOKENIZE,),
        RESPONSES: ("/v1/responses/input_tokens",),
        MESSAGES: ("/v1/messages/count_tokens",),
    }
)
"""Paths that may count a dialect's body, the more exact one first."""
FLAGGED = f"{CHAT}#continue_final_message"
"""How EngineAbilities.continuation names the form that asks for it with FLAGS."""
FLAGS: Mapping[str, bool] = MappingProxyType({"continue_final_message": True, "add_generation_prompt": False})
PARTIALS = ("red", "red red")
"""Partial answers; the second has one ` red` more."""
RESPONSES_TOKENS = 16
"""The least that OpenAI's own server accepts as max_output_tokens."""
_QUESTION = "Which color is a ripe tomato? Answer with one word."
_ABSENT = (404, 405, 501)
_BUSY = (408, 425, 429, 502, 503, 504)
_PIXELS = 64
_CACHE_CONFIG = "vllm:cache_config_info{"
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SAMPLE = re.compile(r'(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+(\S+)')
"""What follows a metric's name: its labels, and its value."""


class Verdict(Enum):
    """ABSENT: the engine says that it has no such path. UNCLEAR: anything else that is no answer."""

    SERVED = "served"
    ABSENT = "absent"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `status` 0: nothing did, and `why` says what happened. `body`: its JSON, None = not JSON."""

    status: int
    body: Any = None
    why: str = ""


# Questions


def question(path: str, model: str, partial: str = "", flags: Mapping[str, bool] | None = None) -> dict[str, Any]:
    """The shortest request of a dialect; with `partial` (chat and messages only) its last turn is an unfinished
    answer."""
    if path == COMPLETIONS:
        return {"model": model, "prompt": _QUESTION, "max_tokens": 1}
    if path == RESPONSES:
        return {"model": model, "input": _QUESTION, "max_output_tokens": RESPONSES_TOKENS}
    turns = [{"role": "user", "content": _QUESTION}]
    if partial:
        turns.append({"role": "assistant", "content": partial})
    return {"model": model, "messages": turns, "max_tokens": 1, **(flags or {})}


def image_question(model: str) -> dict[str, Any]:
    """The chat question with a small picture beside it."""
    parts = [{"type": "text", "text": _QUESTION}, {"type": "image_url", "image_url": {"url": _picture()}}]
    return {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def _picture() -> str:
    """A grey PNG as data URL. Not 1 x 1: vision models refuse what is smaller than one of their patches, 28
    pixels for Qwen's, and an engine that refuses the size is taken for one that refuses pictures."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", _PIXELS, _PIXELS, 8, 2, 0, 0, 0)  # 8 bits, RGB
    rows = (b"\0" + b"\x80\x80\x80" * _PIXELS) * _PIXELS
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


# Judgement


def verdict(path: str, answer: Answer) -> Verdict:
    """Whether the engine serves the dialect `path`."""
    if answer.status == 200:
        return Verdict.SERVED if _has_form(path, answer.body) else Verdict.ABSENT
    return Verdict.ABSENT if absent(answer) else Verdict.UNCLEAR


def absent(answer: Answer) -> bool:
    """Whether the engine says that it does not know the path."""
    return answer.status in _ABSENT or (answer.status == 400 and "not found" in str(answer.body).lower())


def _has_form(path: str, body: Any) -> bool:
    if not isinstance(body, dict):
        return False
    if path == RESPONSES:
        return isinstance(body.get("output"), list)
    if path == MESSAGES:
        return body.get("type") == "message" and isinstance(body.get("content"), list)
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return False
    return isinstance(first.get("message"), dict) if path == CHAT else isinstance(first.get("text"), str)


def prompt_tokens(path: str, answer: Answer) -> int | None:
    """The whole prompt's tokens by the answer's usage, those from the cache included; None = it does not say."""
    usage = answer.body.get("usage") if answer.status == 200 and isinstance(answer.body, dict) else None
    if not isinstance(usage, dict):
        return None
    if path in (CHAT, COMPLETIONS):
        return _tokens(usage.get("prompt_tokens"))
    read = _tokens(usage.get("input_tokens"))
    if read is None or path == RESPONSES:
        return read
    cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return read + sum(_tokens(usage.get(name)) or 0 for name in cached)


def counted(counter: str, answer: Answer) -> int | None:
    """What a counter answered; None = it does not count such a body. llama.cpp's /tokenize says {"tokens": []}."""
    if answer.status != 200 or not isinstance(answer.body, dict):
        return None
    return _tokens(answer.body.get("count" if counter == TOKENIZE else "input_tokens"))


def _tokens(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def continues(prompt: int | None, one: int | None, two: int | None) -> bool:
    """Whether an unfinished answer is continued: `prompt` tokens without it, `one` and `two` with PARTIALS.

    What surrounds the partial answer is one - (two - one). Continued, that is the prompt itself, which ends
    with the head of an answer. Answered anew, an end of turn and a second head come on top. An engine that
    drops the partial answer counts the same for both.
    """
    if prompt is None or one is None or two is None:
        return False
    return prompt < one < two and 2 * one - two == prompt


def sees_images(answer: Answer, prompt: int | None) -> bool | None:
    """Whether a picture is read; None = cannot be told. `prompt`: tokens of the same question without it."""
    if answer.status == 0 or answer.status in _BUSY:
        return None
    if verdict(CHAT, answer) is not Verdict.SERVED:
        return None if answer.status == 200 else False
    read = prompt_tokens(CHAT, answer)
    return read is None or prompt is None or read > prompt  # else it was dropped without a word


def kv_tokens(metrics: str) -> int | None:
    """What the cache holds by vLLM's metrics: blocks on the card times tokens a block; None = they do not say."""
    line = next((line for line in metrics.splitlines() if line.startswith(_CACHE_CONFIG)), "")
    labels = dict(_LABEL.findall(line))
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    tokens = int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else 0
    return tokens or None


def counter(metrics: str, name: str) -> float | None:
    """The sum of a Prometheus counter, or gauge, over all of its labels. None = it is not there, or one of its samples
    is no finite number: the sum of the others would be another figure."""
    samples = re.findall(rf"^{re.escape(name)}(?=[{{ \t])(.*)", metrics, re.MULTILINE)
    try:
        values = [float(match[1]) if (match := _SAMPLE.match(sample)) else math.nan for sample in samples]
    except ValueError:
        return None
    total = sum(values)
    return total if values and math.isfinite(total) else None


def parsed(body: bytes) -> Any:
    """JSON; None when it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def message(body: Any) -> str:
    """The error's message in OpenAI's form or one near it, from parsed JSON; "" where there is none."""
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, str):
            return error
        if isinstance(error, dict):
            for name in ("message", "detail"):
                if isinstance(error.get(name), str):
                    return str(error[name])
    return ""
