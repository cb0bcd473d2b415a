"""An event stream such as engines send, with everything in it that could mislead a reader of bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
}
CONTENTS = (
    'say "usage" and "error"',
    'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\ndata: [DONE]\n\n',
    "data: [DONE]",
    '"finish_reason":"stop"',
    '{"error":{"message":"not one"}}\r\n\r\n',
    "\u00e9\U0001f600\u2028",
)


def chunk(delta: dict[str, object], finish: str | None = None, *, spaced: bool = False) -> bytes:
    """One chunk with `"usage":null`, as the OpenAI form has it when usage was asked for."""
    body = {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}
    return json.dumps(body, separators=None if spaced else (",", ":"), ensure_ascii=False).encode()


USED = json.dumps({**HEAD, "choices": [], "usage": USAGE}, separators=(",", ":")).encode()
DONE = b"data: [DONE]\n\n"


def recorded() -> list[bytes]:
    """The events in order; the last two are the usage chunk and the ending."""
    events = [b": ping\n\n", b"data: " + chunk({"role": "assistant", "content": ""}) + b"\n\n", b":\n\n"]
    for number, text in enumerate(CONTENTS):
        piece = chunk({"content": text}, spaced=number % 2 == 1)
        events.append((b"data:" if number == 2 else b"data: ") + piece + b"\n\n")
    # one event whose data is cut into lines between two members, with the other fields that a stream may have
    first, second = chunk({"content": "lines"}).split(b',"choices"', 1)
    events.append(b"event: chunk\nid: 7\ndata: " + first + b"\ndata: ," + b'"choices"' + second + b"\nretry: 9\n\n")
    events.append(b"data: " + chunk({}, "stop") + b"\n\n")
    return [*events, b"data: " + USED + b"\n\n", DONE]


def crlf(events: Sequence[bytes]) -> list[bytes]:
    """The same events with CR LF line ends."""
    return [event.replace(b"\n", b"\r\n") for event in events]


def cut(data: bytes, places: Sequence[int]) -> Iterator[bytes]:
    """`data` in pieces, cut at `places`."""
    ends = [*sorted({place for place in places if 0 < place < len(data)}), len(data)]
    start = 0
    for end in ends:
        yield data[start:end]
        start = end
