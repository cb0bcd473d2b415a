"""The bytes that client and upstream of the benchmark agree on. Pure.

Each content chunk says its number and when it was sent (CLOCK_MONOTONIC, ns), inside the text, where no proxy
looks. What the upstream is to do travels in the request body, since a proxy need not pass headers on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PATH = b"/v1/chat/completions"
CHUNK_BYTES = 230
"""Size of a content event. Source: shared/facts/gateway-peers.md section 3, what vLLM sends for one token."""
DONE = b"data: [DONE]\n\n"
STAMP = re.compile(rb'"content":"#(\d+) (\d+) ')
_ORDER = re.compile(rb'"bench":\{"id":(\d+),"chunks":(\d+),"interval_ms":(\d+),"silent_ms":(\d+)\}')
_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
_EDGE_BYTES = 1024
_HEAD = b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1764000000,"model":"fake","choices":'
_ROLE = b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
_CONTENT = b'[{"index":0,"delta":{"content":"#%d %d %s"},"logprobs":null,"finish_reason":null}]}\n\n'
_FINISH = b'[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n'
_FRAME_BYTES = len(_HEAD) + len(_CONTENT % (0, 0, b""))


@dataclass(frozen=True, slots=True)
class Order:
    """What one request asks of the upstream: `chunks` content chunks, one each `interval_ms` (0 = all at once),
    after `silent_ms` without a byte. `id` names it in the upstream's reports."""

    id: int
    chunks: int
    interval_ms: int
    silent_ms: int = 0


def body_of(order: Order, pad_bytes: int = 0) -> bytes:
    """The request body, with a prompt of `pad_bytes` characters."""
    prompt = b"word " * (pad_bytes // 5) or b"hello"
    return (
        b'{"bench":{"id":%d,"chunks":%d,"interval_ms":%d,"silent_ms":%d},"model":"fake","stream":true,'
        b'"messages":[{"role":"user","content":"%s"}]}'
        % (order.id, order.chunks, order.interval_ms, order.silent_ms, prompt)
    )


def request_of(body: bytes, port: int, key: str) -> bytes:
    """The whole request as the client writes it."""
    return (
        b"POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
        b"accept: text/event-stream\r\nuser-agent: bench\r\ncontent-length: %d\r\n\r\n"
        % (PATH, port, key.encode("ascii"), len(body))
    ) + body


def order_of(body: bytes) -> tuple[Order, bool] | None:
    """(order, whether usage was asked for) as the upstream reads them; None when it is no benchmark request."""
    edges = body if len(body) <= 2 * _EDGE_BYTES else body[:_EDGE_BYTES] + body[-_EDGE_BYTES:]
    found = _ORDER.search(edges)
    if found is None:
        return None
    id, chunks, interval_ms, silent_ms = map(int, found.groups())
    return Order(id, chunks, interval_ms, silent_ms), _USAGE.search(edges) is not None


def role_event() -> bytes:
    """The first event of a stream."""
    return _HEAD + _ROLE


def content_event(number: int, stamp_ns: int) -> bytes:
    """Content chunk `number`, about CHUNK_BYTES long."""
    numbers = b"#%d %d " % (number, stamp_ns)
    pad = b"." * max(0, CHUNK_BYTES - _FRAME_BYTES - len(numbers) + len(b"#0 0 "))
    return _HEAD + _CONTENT % (number, stamp_ns, pad)


def ending_events(chunks: int, with_usage: bool) -> list[bytes]:
    """What follows the last content chunk."""
    usage = b'[],"usage":{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d}}\n\n' % (9 + chunks, chunks)
    return [_HEAD + _FINISH, *([_HEAD + usage] if with_usage else []), DONE]


def framed(event: bytes) -> bytes:
    """`event` as one chunk of a chunked HTTP body."""
    return b"%x\r\n%s\r\n" % (len(event), event)
