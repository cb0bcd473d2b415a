"""What a server's status and headers say about the file that was asked for. Pure.

`headers` look up names without regard to case. Every function takes the URL for its message only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from appliance.checkpoint.faults import shown_url
from appliance.errors import CheckpointError

MOVED = frozenset({301, 302, 303, 307, 308})
MISSING = frozenset({404, 410})
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be another one after a while."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
"""A server that asks for a longer pause is not waited for."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,19})")


class TransportError(CheckpointError):
    """A server cannot be used. `pause_s`: how long to wait before another try; None when none would help."""

    def __init__(self, message: str, remedy: str, pause_s: float | None = None) -> None:
        super().__init__(message, remedy)
        self.pause_s = pause_s


class NotThereError(CheckpointError):
    """A server has no such file; it may have others."""


class PageError(CheckpointError):
    """A server sends a page for people in place of the file: many do so for files that they do not have."""


def refusal(url: str, status: int, token_variable: str, token_sent: bool) -> CheckpointError | None:
    """The error that a status is for good, None for one that brings data. Statuses in AGAIN are the caller's."""
    where = shown_url(url)
    if status in (200, 206):
        return None
    if status in (401, 403):
        lacks = "the one sent was not enough" if token_sent else "none was sent"
        return TransportError(
            f"{where}: the server answered {status}: access refused",
            f"export {token_variable}=...   with a token that may read it ({lacks})",
        )
    if status in MISSING:
        return NotThereError(f"{where}: the server has no such file ({status})", "check the URL, or publish the file")
    return TransportError(f"{where}: the server answered {status}", "check the URL with: curl -I URL")


def extent(url: str, status: int, headers: Mapping[str, str], first: int, last: int | None) -> tuple[int, int, int]:
    """First byte, last byte and the file's length of an answer to the range `first` to `last` (None: the end).

    Raises TransportError when it is another range, or all of a longer file; PageError when it is a page.
    """
    if status == 206:
        return _content_range(url, headers, first, last)
    length = body_length(headers)
    if first == 0 and length is not None and (last is None or length <= last + 1):
        return 0, length - 1, length
    if "text/html" in headers.get("Content-Type", "").lower():
        raise PageError(
            f"{shown_url(url)}: the server sends an HTML page in place of the file",
            "give the URL of the raw file: a page about it, or a login page, holds no tensors",
        )
    size = "a body of unknown length" if length is None else f"all {length:,} bytes"
    raise TransportError(
        f"{shown_url(url)}: the server ignores ranges and would send {size}",
        "use a server that supports range requests (nginx, caddy, an object store), or copy the files here",
    )


def past_the_end(status: int, headers: Mapping[str, str]) -> int | None:
    """The file's length when a range began after its end, None for every other answer."""
    match = _UNSATISFIED.fullmatch(headers.get("Content-Range", "").strip())
    return int(match[1]) if status == 416 and match else None


def body_length(headers: Mapping[str, str]) -> int | None:
    """Length of a body that comes as it is stored, bytes; None when the server does not say."""
    said = headers.get("Content-Length", "")
    coded = headers.get("Content-Encoding", "identity").lower() != "identity"
    return int(said[:19]) if said.isascii() and said.isdigit() and not coded else None


def strong_etag(headers: Mapping[str, str]) -> str | None:
    """The ETag, when it promises the same bytes; a weak one does not."""
    etag = headers.get("ETag", "").strip()
    return etag if len(etag) > 2 and etag.startswith('"') and etag.endswith('"') else None


def pause_s(attempt: int, retry_after: str | None, now: datetime, chance: float) -> float:
    """How long to wait after try `attempt`, counted from 0, seconds: what the server asked for in Retry-After, or
    0.5, 1, 2 .. 16, a quarter more or less by `chance` in 0..1: clients that failed together must not come together."""
    asked = None if retry_after is None else _retry_after_s(retry_after.strip(), now)
    return asked if asked is not None else min(FIRST_PAUSE_S * 2.0**attempt, 16.0) * (0.75 + chance / 2)


def _retry_after_s(said: str, now: datetime) -> float | None:
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        when = parsedate_to_datetime(said)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds())


def _content_range(url: str, headers: Mapping[str, str], first: int, last: int | None) -> tuple[int, int, int]:
    said = headers.get("Content-Range", "").strip()
    if match := _CONTENT_RANGE.fullmatch(said):
        begin, end, total = int(match[1]), int(match[2]), int(match[3])
        wanted = total - 1 if last is None else min(last, total - 1)
        if begin == first and end == wanted and begin <= end:
            return begin, end, total
    asked = f"bytes {first}-{'' if last is None else last}"
    raise TransportError(
        f"{shown_url(url)}: asked for {asked}, the server answered with the range {said[:80]!r}",
        "the server or a proxy before it is broken: check with curl -r 0-99 -D - -o /dev/null URL",
    )
