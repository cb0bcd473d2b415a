"""Edits a JSON object's bytes without touching the rest of them. Pure.

The gateway forwards the bytes that the client sent; what it must add or change is spliced in, so that
key order, number spelling and white space, and so the engine's prefix, stay the client's.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def value_span(body: bytes, key: str) -> tuple[int, int] | None:
    """(start, end) of the value of a top-level `key`; the last one where it is repeated; None if absent.

    `body` must be a valid JSON object whose keys are spelled without escapes in the case of `key`.
    """
    wanted = b'"' + key.encode() + b'"'
    depth = 0
    found: tuple[int, int] | None = None
    start: int | None = None
    end = 0
    at_key, pending = False, False
    for token in _TOKEN.finditer(body):
        text = token.group()
        if depth == 1 and text in (b",", b"}") and start is not None:
            found, start = (start, end), None
        if text in (b"{", b"["):
            depth += 1
            at_key = depth == 1
            if depth == 1:
                continue
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and text == b",":
            at_key = True
            continue
        elif depth == 1 and at_key:
            pending, at_key = text == wanted, False
            continue
        elif depth == 1 and text == b":":
            continue
        if pending:
            start, pending = token.start(), False
        end = token.end()
    return found


def replace_value(body: bytes, key: str, value: bytes) -> bytes:
    """`body` with the value of top-level `key` replaced; the key is added in front when it is absent."""
    span = value_span(body, key)
    if span is not None:
        return body[: span[0]] + value + body[span[1] :]
    brace = body.index(b"{") + 1
    comma = b"" if body[brace:].lstrip().startswith(b"}") else b","
    return body[:brace] + b'"' + key.encode() + b'":' + value + comma + body[brace:]
