"""How a prompt relates to the one before it, and where and how it changed if it should have continued it. Pure.

1. It begins with all of the other's segments: it CONTINUES. It is a beginning of the other: a turn is asked AGAIN.
2. It is much shorter: NEW, a compaction.
3. The tools changed. The same in another order, or half of them the same: CHANGED, if messages are the same; else NEW.
4. The system prompt changed. A part of a block, or a block came or went: CHANGED, if messages are the same; else NEW.
5. A message changed. At least half of those behind it are as they were: CHANGED. Or only a part of the message did and
   the conversation went on behind it: CHANGED. Else NEW: another conversation, or a person who went back a turn, which
   leaves nothing behind the change.

The shape of what changed is letters as `a+`, digits as `9+`, a mixture of both as `x+`; bytes that structure a text
stay and all others are `*`. So it shows that there is a date or a number, and never which.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import orjson

from gateway.dialects.rewrite import BILLING
from gateway.learning.prompt import CanonicalPrompt, alike, first_difference

SHORTER_SHARE = 0.6
"""Source: clients compact to 30K of 160K tokens, see facts/simulation-model.md; a turn never takes two fifths away."""
SHAPE_BYTES = 24
_SHAPE_BEFORE = 8
_LEAD_BYTES, _BEHIND_BYTES = 80, 32
"""How far around the change a mark says what it is of."""
_CLOCK = re.compile(
    rb"\d{4}-\d\d-\d\d|\d{1,2}:\d\d|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\b"
    rb"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d|\b1[5-9]\d{8}(?:\d{3})?\b"
)
_TOKENS = re.compile(rb"total_tokens|token[_ ](?:usage|budget)|tokens? (?:left|remaining|used)", re.IGNORECASE)
_WORD = re.compile(rb"[A-Za-z0-9\x80-\xff]+")
_KEPT = frozenset(b" -:/.,_=()[]{}<>\"';|\\+*")


class Relation(StrEnum):
    """See above."""

    NEW = "new"
    CONTINUES = "continues"
    AGAIN = "again"
    CHANGED = "changed"


class Origin(StrEnum):
    """What changed, as far as it is known; it decides the remedy."""

    BILLING = "billing"
    TOKENS = "tokens"
    CLOCK = "clock"
    TOOL_ORDER = "tool_order"
    TOOL_SET = "tool_set"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first byte that changed, counted in the canonical prompt; the segment that it is in; the shape of the new
    bytes around it. No text."""

    offset: int
    segment: str
    shape: str
    origin: Origin


def relation(before: CanonicalPrompt, after: CanonicalPrompt) -> tuple[Relation, int]:
    """How `after` relates to `before`, and how many bytes both begin with."""
    if after.continues(before):
        return Relation.CONTINUES, len(before.data)
    common = first_difference(before.data, after.data)
    if common == len(after.data):
        return Relation.AGAIN, common
    if len(after.data) < SHORTER_SHARE * len(before.data):
        return Relation.NEW, common
    old, new = before.index_at(common), after.index_at(common)
    if old < before.tools or new < after.tools:
        changed = _same_messages(before, after) and _tools_stayed(before, after, old, new)
    elif old < before.heads or new < after.heads:
        changed = _same_messages(before, after) and _system_stayed(before, after, old, new)
    else:
        changed = _went_on(before, after, old, new)
    return (Relation.CHANGED if changed else Relation.NEW), common


def divergence(before: CanonicalPrompt, after: CanonicalPrompt, common: int) -> Divergence:
    """What changed between two prompts that begin with the same `common` bytes and were found CHANGED."""
    old, new = before.index_at(common), after.index_at(common)
    name = before.name(old) if old < before.tools else after.name(new)
    return Divergence(common, name, shape(after.data, common), _origin(before, after, common))


def shape(data: bytes, at: int) -> str:
    """The form of at most SHAPE_BYTES bytes around `at`. Nothing of a word or a number can be read back from it."""
    begin = max(0, at - _SHAPE_BEFORE)
    return _WORD.sub(_collapsed, data[begin : begin + SHAPE_BYTES]).translate(_TABLE).decode("latin-1")


def _collapsed(match: re.Match[bytes]) -> bytes:
    word = match.group()
    if word.isdigit():
        return b"9+"
    return b"x+" if any(48 <= byte <= 57 for byte in word) else b"a+"


_TABLE = bytes(byte if byte in _KEPT or (chr(byte).isalnum() and byte < 128) else ord("*") for byte in range(256))


def _same_messages(before: CanonicalPrompt, after: CanonicalPrompt) -> bool:
    """At least half of the other's messages are in this one."""
    old = _segments(before, before.heads, len(before.ends))
    return bool(old) and 2 * len(_shared(old, _segments(after, after.heads, len(after.ends)))) >= len(old)


def _tools_stayed(before: CanonicalPrompt, after: CanonicalPrompt, old: int, new: int) -> bool:
    """Half of the longer list of tools is in both, or a part of one tool changed."""
    was, now = _segments(before, 0, before.tools), _segments(after, 0, after.tools)
    if 2 * len(_shared(was, now)) >= max(len(was), len(now)) or _same_values(was, now):
        return True
    return old < len(was) and new < len(now) and alike(was[old], now[new])


def _system_stayed(before: CanonicalPrompt, after: CanonicalPrompt, old: int, new: int) -> bool:
    """A part of a block changed, or a block came or went."""
    was, now = _segments(before, old, before.heads), _segments(after, new, after.heads)
    return not was or not now or alike(was[0], now[0]) or was[0] in now or now[0] in was


def _went_on(before: CanonicalPrompt, after: CanonicalPrompt, old: int, new: int) -> bool:
    """Rule 5."""
    behind = _segments(before, old + 1, len(before.ends))
    if behind and 2 * len(_shared(behind, _segments(after, new + 1, len(after.ends)))) >= len(behind):
        return True
    grew = len(after.ends) - after.heads > len(before.ends) - before.heads
    return grew and alike(before.segment(old), after.segment(new))


def _origin(before: CanonicalPrompt, after: CanonicalPrompt, at: int) -> Origin:
    old, new = before.index_at(at), after.index_at(at)
    if old >= before.tools and new >= after.tools:
        return _marked(before, after, at)
    was, now = _segments(before, 0, before.tools), _segments(after, 0, after.tools)
    if Counter(was) == Counter(now) or _same_values(was, now):
        return Origin.TOOL_ORDER
    inside = old < len(was) and new < len(now) and alike(was[old], now[new])
    return _marked(before, after, at) if inside else Origin.TOOL_SET


def _marked(before: CanonicalPrompt, after: CanonicalPrompt, at: int) -> Origin:
    """By what stands at the change and just before it."""
    lead = after.data[max(after.begin(after.index_at(at)), at - _LEAD_BYTES) : at]
    pair = [lead + prompt.data[at : at + _BEHIND_BYTES] for prompt in (before, after)]
    if any(BILLING.encode() in text for text in pair):
        return Origin.BILLING
    if any(_TOKENS.search(text) for text in pair):
        return Origin.TOKENS
    clocks = all(any(m.start() <= len(lead) <= m.end() for m in _CLOCK.finditer(text)) for text in pair)
    return Origin.CLOCK if clocks else Origin.UNKNOWN


def _same_values(old: list[bytes], new: list[bytes]) -> bool:
    """The same tools with the names inside them in another order."""
    try:
        return [orjson.loads(tool) for tool in old] == [orjson.loads(tool) for tool in new]
    except orjson.JSONDecodeError:
        return False


def _segments(prompt: CanonicalPrompt, begin: int, end: int) -> list[bytes]:
    return [prompt.segment(index) for index in range(begin, end)]


def _shared(old: list[bytes], new: list[bytes]) -> list[bytes]:
    there = set(new)
    return [segment for segment in old if segment in there]
