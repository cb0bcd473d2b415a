"""Why a request waits, in the words of the person who waits and of the operator. Pure.

Rules:
- Seconds are predictions and prompt lengths are estimates: `about` or `~` stands before each.
- The person is never told whose prompt it is, nor its length but in thousands. The operator is.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.admission_types import Wait, WaitKind

_ROUND_TOKENS = 1000


def said(wait: Wait) -> str:
    """For the person: `a ~128K prompt of another seat is read first, about 14 s`. No full stop."""
    return _clause(wait, _Words("your seat", "your own seat", "another seat"))


def told(wait: Wait, seat: str) -> str:
    """For the operator, where the wait is about a prompt of `seat`: `a ~128K prompt of ana is read first`."""
    return _clause(wait, _Words("its seat", seat or "its own seat", seat or "another seat"))


def prompt_of(tokens: int | None, whose: str) -> str:
    """`a ~128K prompt of ana`."""
    if tokens is None:
        return f"a long prompt of {whose}"
    return f"a ~{max(1, round(tokens / _ROUND_TOKENS))}K prompt of {whose}"


@dataclass(frozen=True, slots=True)
class _Words:
    """How the seat of the request, and the seat of the prompt that is in its way, are called."""

    seat: str
    own: str
    other: str


def _clause(wait: Wait, words: _Words) -> str:
    about = f", about {max(1, round(wait.seconds))} s" if wait.seconds is not None else ""
    next_long = about and f"; the next long one may follow in{about[1:]}"
    prompt = prompt_of(wait.tokens, words.own if wait.own else words.other)
    match wait.kind:
        case WaitKind.HELD:
            return "the operator paused this box"
        case WaitKind.SEAT_BUSY:
            return f"{words.seat} has as many streams as it may"
        case WaitKind.STREAMS_BUSY:
            return f"all streams are busy{about and f', the next is free in{about[1:]}'}"
        case WaitKind.READING:
            return f"it is long, and {prompt} is being read{next_long}"
        case WaitKind.SPACING:
            return f"it is long, and the last long prompt was not long ago{next_long}"
        case WaitKind.QUIET:
            return f"it is long and comes next: running answers end first{about}"
        case WaitKind.GATE:
            return f"{prompt} is read first{about}"
        case WaitKind.COLD_LINE:
            return f"it is long, and {prompt} is read first{about}"
        case WaitKind.PACE:
            return "a running answer would fall behind its pace"
        case WaitKind.ORDER:
            return "others go first"
