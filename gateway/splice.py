"""Edits a JSON object's bytes without touching the rest of them. Pure.

The gateway forwards the bytes that the client sent; what it must add or change is spliced in, so that
key order, number spelling and white space, and so the engine's prefix, stay the client's.

Rules:
- A body must be a valid JSON object: whoever calls has parsed it.
- A key is of ASCII letters, digits and underscores. In the body it may be spelled with escapes.
- A body may be 64 MiB of anything: whatever is done for each string or bracket of it is done in C, and what is
  done in Python is bounded (VALUE_MAX_BYTES) or done for each place where the key is spelled.
"""

from __future__ import annotations

import functools
import re

VALUE_MAX_BYTES = 64 * 1024
"""A value that is replaced may be so long; `stream_options` has some fifty bytes."""
_PIECE_BYTES = 128 * 1024
_SCALAR = re.compile(rb'"[^"]*+"|[^\s",{}\[\]]++')
_EMPTY = re.compile(rb"\s*+}")
_COMMA_BEHIND = re.compile(rb"\s*+,\s*+")
_NESTING = re.compile(rb'"[^"]*+"|[{}\[\]"]')


def value_span(body: bytes, key: str) -> tuple[int, int] | None:
    """(start, end) of the value of a top-level `key`; the last one where it is repeated; None if absent.

    Raises ValueError when that value is longer than VALUE_MAX_BYTES.
    """
    plain = _plain(body)
    members = _members(plain, body, (key,))
    return (members[-1][1], _value_end(plain, members[-1][1])) if members else None


def value_start(body: bytes, key: str) -> int | None:
    """Where the value of a top-level `key` begins, however long it is; the last one where it is repeated."""
    members = _members(_plain(body), body, (key,))
    return members[-1][1] if members else None


def drop_members(body: bytes, keys: tuple[str, ...]) -> bytes:
    """`body` without these top-level keys, each time that one is there: of a repeated one an engine might take
    either. Raises ValueError as `value_span` does."""
    plain = _plain(body)
    kept, at = b"", 0
    pieces: list[bytes] = []
    for start, value in _members(plain, body, keys):
        pieces.append(body[at:start])
        at = _value_end(plain, value)
        behind = _COMMA_BEHIND.match(plain, at)
        if behind is not None:
            at = behind.end()
        else:  # it is the last member: the comma in front of it goes
            kept = b"".join(pieces).rstrip().removesuffix(b",")
            pieces.clear()
    return kept + b"".join(pieces) + body[at:]


def replace_value(body: bytes, key: str, value: bytes) -> bytes:
    """`body` with the value of top-level `key` replaced; the key is added in front when it is absent. Raises
    ValueError as `value_span` does."""
    return put_value(body, key, value_span(body, key), value)


def put_value(body: bytes, key: str, span: tuple[int, int] | None, value: bytes) -> bytes:
    """The same when the span of the old value is known; None = `key` is absent."""
    if span is not None:
        return body[: span[0]] + value + body[span[1] :]
    brace = body.index(b"{") + 1
    comma = b"" if _EMPTY.match(body, brace) else b","
    return body[:brace] + b'"' + key.encode() + b'":' + value + comma + body[brace:]


def _plain(body: bytes) -> bytes:
    """As long as the body, and each quote that is left begins or ends a string."""
    return body.replace(b"\\\\", b"..").replace(b'\\"', b"..") if b"\\" in body else body


def _members(plain: bytes, body: bytes, keys: tuple[str, ...]) -> list[tuple[int, int]]:
    """(start, start of the value) of each top-level member of these keys, in order."""
    found: list[tuple[int, int]] = []
    if not _may_hold(body, keys):
        return found
    depth, before = 0, 0
    for member in _member(keys).finditer(plain):
        depth += _deeper(plain, before, member.start())
        before = member.end()
        if depth == 1:
            found.append((member.start(), before))
    return found


def _may_hold(body: bytes, keys: tuple[str, ...]) -> bool:
    """False when surely none of the keys is in the body: none is spelled out, and no letter of one is escaped.

    This is the usual answer, at a hundredth of the cost of reading the body member by member.
    """
    if any(b'"' + key.encode() + b'"' in body for key in keys):
        return True
    return b"\\u00" in body and _member(keys).search(body) is not None


@functools.cache
def _member(keys: tuple[str, ...]) -> re.Pattern[bytes]:
    """Finds one of `keys` in front of its colon, each letter plain or escaped."""
    spelled = ("".join(rf"(?:{letter}|\\u00(?i:{ord(letter):02x}))" for letter in key) for key in keys)
    return re.compile(rf'"(?:{"|".join(spelled)})"[ \t\r\n]*+:[ \t\r\n]*+'.encode())


def _deeper(plain: bytes, start: int, end: int) -> int:
    """How much deeper in brackets `end` is than `start`, which is not inside a string."""
    deeper = inside = 0
    for at in range(start, end, _PIECE_BYTES):
        parts = plain[at : min(end, at + _PIECE_BYTES)].split(b'"')
        between = b"".join(parts[inside::2])
        deeper += between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")
        inside ^= (len(parts) - 1) & 1
    return deeper


def _value_end(plain: bytes, start: int) -> int:
    """Offset behind the value that begins at `start`."""
    end = start + VALUE_MAX_BYTES
    scalar = _SCALAR.match(plain, start, end)
    if scalar is not None and scalar.end() < end:
        return scalar.end()
    depth = 0
    for token in _NESTING.finditer(plain, start, end):
        text = token.group()
        if text == b'"':  # a string that ends beyond the bound: what is in it are no brackets
            break
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    raise ValueError(f"the value is longer than {VALUE_MAX_BYTES} bytes")
