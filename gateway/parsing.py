"""Parses request bodies: which ones are worth it, and what agents send that strict parsers refuse. Pure."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import orjson

LARGE_BYTES = 1024 * 1024
LARGE_VALUES = 20_000
BRACKETS_MAX = 200_000
COMMAS_MAX = 1_000_000
MEMBERS_MAX = 300_000
_MEMBER = re.compile(rb'"\s*+:')
_NO_MARKS = bytes(set(range(256)) - set(b"[{,:"))


def takes_long(raw: bytes) -> bool:
    """True for a body that is read for longer than a token takes: it is large, or of many values."""
    return len(raw) >= LARGE_BYTES or raw.count(b",") + raw.count(b"{") + raw.count(b"[") > LARGE_VALUES


def too_intricate(raw: bytes) -> bool:
    """True for a body of so many values that reading it would stop every stream for long: 64 MiB of `[],` take
    8 s (measured), a prompt of a million tokens of code has a tenth of these bounds."""
    if len(raw) <= BRACKETS_MAX:
        return False
    marks = raw.translate(None, _NO_MARKS)  # one pass over the body in place of four
    if marks.count(b"[") + marks.count(b"{") > BRACKETS_MAX or marks.count(b",") > COMMAS_MAX:
        return True
    if marks.count(b":") <= MEMBERS_MAX:
        return False
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # each quote that is left begins or ends a string
    return sum(1 for _ in islice(_MEMBER.finditer(plain), MEMBERS_MAX + 1)) > MEMBERS_MAX


def parse(raw: bytes) -> Any:
    """The JSON value of a body. Raises ValueError. Lone surrogates, which agents send when they cut a string in
    the middle of a character, are taken, as engines in Python take them; orjson alone would refuse them. Both take
    UTF-8 only: `json` guesses at UTF-16 when it is given bytes, the splices do not."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in str(error):
            raise
        try:
            return json.loads(raw.decode(), parse_constant=_no_constant)
        except RecursionError:
            raise error from None


def _no_constant(name: str) -> Any:
    """`json` alone would take NaN and Infinity."""
    raise ValueError(f"{name} is no JSON")
