"""Brings one remote file into its part, however often the connection breaks. Touches sockets, the part, the clock.

1. What is asked for begins where the part ends, and only of the version that the part belongs to (If-Range).
2. A server that ignores ranges begins again at 0, and so does the part; also after a break, when the source tells
   neither a validator nor a sum by which two halves could be known to belong together.
3. Another version than the one that was listed ends the fetch: sizes and sums were checked against that one.
4. Tries count as failed only when no byte came; then pauses grow.
5. A file too large for one answer comes in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from appliance.checkpoint.answers import TransportError
from appliance.checkpoint.faults import plain
from appliance.checkpoint.partfile import PartFile, RemoteFile
from appliance.checkpoint.threads import in_thread
from appliance.checkpoint.transport import Body, Transport
from appliance.errors import CheckpointError

RETRIES = 6
"""Tries in a row that bring nothing: with their pauses about half a minute."""
LONGEST_PAUSE_S = 60.0
LARGEST_BODY_BYTES = 50_000_000_000
"""Files over it are asked for in pieces: the network in front of a hub refuses to send one in one answer.
Source: MAX_HTTP_DOWNLOAD_SIZE of huggingface_hub; issue 238 of xet-core says that ranges of such a file are served."""
PIECE_BYTES = 64 << 20
"""One piece. It is held in memory, AT_ONCE of them at a time."""
_WRITE_BYTES = 1 << 20
"""Hashed and written at once: large enough that the change of threads is lost in it (about 0.1 ms in 1 ms)."""


async def download(
    transport: Transport,
    part: PartFile,
    advance: Callable[[int], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Append to `part` until it is whole; `advance` gets how many bytes came, below 0 when some were dropped.

    Raises CheckpointError when the source fails for good or changed, OSError of the disk.
    """
    failed = 0
    while part.bytes < part.remote.size_bytes or not part.remote.size_bytes:
        before = part.bytes
        try:
            await _continue(transport, part, advance)
            return
        except TransportError as error:
            failed = failed + 1 if part.bytes <= before else 0
            if error.pause_s is None or error.pause_s > LONGEST_PAUSE_S or failed > RETRIES:
                again = "then run the same command again: it goes on with what came"
                raise CheckpointError(error.message, f"{error.remedy}; {again}") from error
            pause_s = max(error.pause_s, min(16.0, 0.5 * 2.0**failed))
        await sleep(pause_s)


async def _continue(transport: Transport, part: PartFile, advance: Callable[[int], None]) -> None:
    remote, first = part.remote, part.bytes
    if first and remote.validator is None and remote.sha256 is None:
        await in_thread(part.restart)
        advance(-first)
        first = 0
    if remote.size_bytes > LARGEST_BODY_BYTES:
        await _in_pieces(transport, part, advance)
        return
    async with transport.stream(remote.url, first, remote.etag) as body:
        _same_version(remote, body.total_bytes, body.etag)
        if body.first != first:
            await in_thread(part.restart)
            advance(-first)
        await _append(body, part, advance)
    if part.bytes != remote.size_bytes:
        raise _changed(remote, f"{part.bytes:,} bytes came, {remote.size_bytes:,} were announced")


async def _in_pieces(transport: Transport, part: PartFile, advance: Callable[[int], None]) -> None:
    remote = part.remote
    while (first := part.bytes) < remote.size_bytes:
        span = await transport.span(remote.url, first, first + PIECE_BYTES - 1)
        if span is None or not span.body:
            raise _changed(remote, f"it ends after {first:,} bytes")
        _same_version(remote, span.total_bytes, span.etag)
        await in_thread(partial(part.write, span.body))
        advance(len(span.body))


async def _append(body: Body, part: PartFile, advance: Callable[[int], None]) -> None:
    held = bytearray()
    try:
        async for piece in body.aiter():
            held += piece
            if part.bytes + len(held) > part.remote.size_bytes:  # nothing says how long it is: it may fill the disk
                held.clear()
                dropped = part.bytes
                await in_thread(part.restart)
                advance(-dropped)
                raise _changed(part.remote, f"more than its {part.remote.size_bytes:,} bytes came")
            if len(held) >= _WRITE_BYTES:
                data, held = bytes(held), bytearray()
                await in_thread(partial(part.write, data))
                advance(len(data))
    finally:  # a broken connection: what came before is good
        if held:
            part.write(bytes(held))
            advance(len(held))


def _same_version(remote: RemoteFile, total_bytes: int | None, etag: str | None) -> None:
    if total_bytes not in (None, remote.size_bytes):
        raise _changed(remote, f"it has {total_bytes:,} bytes now, and had {remote.size_bytes:,}")
    if remote.etag is not None and etag not in (None, remote.etag):
        raise _changed(remote, "its ETag is another one now")


def _changed(remote: RemoteFile, how: str) -> CheckpointError:
    return CheckpointError(
        f"{plain(remote.name)} changed at its source while it was fetched: {how}",
        "run the same command again: it keeps the files that did not change",
    )
