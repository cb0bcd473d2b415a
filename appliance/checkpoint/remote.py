"""Reads the headers of safetensors files on a server. Touches sockets through Transport, and the cache.

Rules:
- One request a shard is the rule: the first range is sized by FirstSpan; only a longer header takes another.
- A shard whose validator (the hub's hash, or an ETag by If-None-Match) is that of a kept header is not fetched.
- All headers together have a limit: a server of many shards must not fill the memory of who asks.
- A server that fails ends the reading; a shard that is missing or wrong does not, so that all of them are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from appliance.checkpoint.cache import HeaderCache, Kept
from appliance.checkpoint.faults import Fault, complaint, plain
from appliance.checkpoint.first_span import FirstSpan
from appliance.checkpoint.found import Found
from appliance.checkpoint.headers import LENGTH_BYTES, REFETCH, Header, header_length, parse_header
from appliance.checkpoint.index import INDEX_BYTES, parse_index
from appliance.checkpoint.layout import CONFIG, INDEX, SINGLE, Layout, alone_note, layout_of
from appliance.checkpoint.local import SMALL_FILE_BYTES
from appliance.checkpoint.sources import Remote
from appliance.checkpoint.transport import CONCURRENCY, NotThereError, Transport, TransportError
from appliance.errors import CheckpointError

ALL_HEADERS_BYTES = 512 << 20
"""The most that the headers of one checkpoint may take together: some 30 times those of 96,085 tensors (18 MB)."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a reading took. `requests`: redirects and a hub's listing counted; `header_bytes`: of shards;
    `bytes`: all that came, the index and the configuration included."""

    requests: int = 0
    header_bytes: int = 0
    bytes: int = 0


async def read_remote(
    remote: Remote, cache: HeaderCache, progress: Callable[[int, int], None]
) -> tuple[Found, Fetched]:
    """All headers of a checkpoint on a server. Raises CheckpointError when the server cannot be used."""
    async with Transport(remote.token, remote.token_variable) as transport:
        reading = _Reading(remote, cache, transport, progress)
        try:
            async with asyncio.TaskGroup() as tasks:
                config = tasks.create_task(reading.small(CONFIG))
                shards = await reading.shards()
                for name in shards:
                    tasks.create_task(reading.shard(name, len(shards)))
        except ExceptionGroup as group:
            raise _first(group) from None
        reading.found.config = config.result()
        requests = remote.requests + transport.requests
        return reading.found, Fetched(requests, reading.header_bytes, transport.received_bytes)


class _Reading:
    """One reading while it goes on."""

    def __init__(
        self, remote: Remote, cache: HeaderCache, transport: Transport, progress: Callable[[int, int], None]
    ) -> None:
        self.found = Found(remote.origin, names=tuple(remote.files or ()), revision=remote.revision)
        self.header_bytes = 0
        self._remote = remote
        self._cache = cache
        self._transport = transport
        self._progress = progress
        self._places = asyncio.Semaphore(CONCURRENCY)
        self._first = FirstSpan({})
        self._done = 0
        self._announced_bytes = 0

    async def small(self, name: str) -> bytes | None:
        """A small file; None when there is none."""
        if self._remote.files is not None and name not in self._remote.files:
            return None
        return await self._get(name, SMALL_FILE_BYTES)

    async def _get(self, name: str, limit_bytes: int) -> bytes | None:
        unlisted = self._remote.files is None
        return await self._transport.get(self._remote.url(name), limit_bytes, refused_is_absent=unlisted)

    async def shards(self) -> tuple[str, ...]:
        """The files of tensors, by the index where there is one."""
        remote, found = self._remote, self.found
        if remote.file is not None and remote.file.endswith(".safetensors"):
            note = alone_note(remote.file)
            found.notes += [note] if note else []
            return (remote.file,)
        listed = remote.files
        layout = Layout(index=remote.file or INDEX) if listed is None else layout_of(found.origin, listed)
        if layout.gguf:
            raise CheckpointError(
                f"{found.origin}: GGUF files are read from this machine only",
                f"download {plain(layout.gguf[0])}, then: moe-appliance checkpoint show FILE",
            )
        if layout.index is None:
            return layout.shards
        data = await self._get(layout.index, INDEX_BYTES)
        if data is None:
            if remote.files is not None or remote.file is not None:
                raise complaint(found.origin, [Fault(layout.index, "missing on the server", REFETCH)])
            return (SINGLE,)
        found.index = parse_index(found.origin, layout.index, data)
        self._first = FirstSpan(found.index.weight_map)
        return found.index.shards

    async def shard(self, name: str, shards: int) -> None:
        """One file's header, found or not."""
        async with self._places:
            try:
                header = await self._header(name)
            except NotThereError:
                self.found.missing.append(name)
            except TransportError:
                raise
            except CheckpointError as error:
                self.found.faults.append(Fault(name, error.message, error.remedy))
            else:
                if isinstance(header, Fault):
                    self.found.faults.append(header)
                else:
                    self.found.headers.append(header)
                    self._first.learn(name, header.shard.header_bytes)
        self._done += 1
        self._progress(self._done, shards)

    async def _header(self, name: str) -> Header | Fault:
        listed = None
        if self._remote.files is not None:
            listed = self._remote.files.get(name)
            if listed is None:
                raise NotThereError(f"{name}: not in the listing", REFETCH)
        if (fault := self._too_long(name, 0)) is not None:
            return fault
        place = self._remote.place + name
        kept = self._cache.find(place)
        if listed is not None:
            if kept is not None and (kept.validator, kept.size_bytes) == (listed.validator, listed.size_bytes):
                return self._kept_header(name, kept)
            kept = None
        fresh = await self._fetch(name, kept.validator if kept else None)
        if isinstance(fresh, Fault):
            return fresh
        if fresh is None:
            assert kept is not None
            return self._kept_header(name, kept)
        header = parse_header(name, fresh.data, fresh.size_bytes)
        if listed is not None and listed.size_bytes not in (None, fresh.size_bytes):
            said = f"{fresh.size_bytes:,} bytes on the server, {listed.size_bytes:,} in the hub's listing"
            return Fault(name, said, "try again; when it stays so, the hub's copy is damaged")
        validator = listed.validator if listed is not None else fresh.validator
        if validator and not header.faults:
            self._cache.keep(place, Kept(validator, fresh.size_bytes, fresh.data))
        return header

    def _kept_header(self, name: str, kept: Kept) -> Header | Fault:
        return self._too_long(name, len(kept.data)) or parse_header(name, kept.data, kept.size_bytes)

    def _too_long(self, name: str, more_bytes: int) -> Fault | None:
        """Count a header of `more_bytes`; a fault once all of them are over the limit, and then for every shard."""
        self._announced_bytes += more_bytes
        if self._announced_bytes <= ALL_HEADERS_BYTES:
            return None
        said = (
            f"the headers up to this one take {self._announced_bytes:,} bytes together, more than {ALL_HEADERS_BYTES:,}"
        )
        return Fault(name, said, "do not use this source: no honest checkpoint has such headers")

    async def _fetch(self, name: str, unless: str | None) -> Kept | Fault | None:
        """The JSON of a header with the file's ETag ("" without one); None when the ETag is still `unless`."""
        url = self._remote.url(name)
        span = await self._transport.span(url, 0, self._first.bytes_for(name) - 1, unless)
        if span is None:
            return None
        self.header_bytes += len(span.body)
        length = header_length(name, span.body, span.total_bytes)
        if isinstance(length, Fault):
            return length
        if (fault := self._too_long(name, length)) is not None:
            return fault
        data = span.body[LENGTH_BYTES : LENGTH_BYTES + length]
        if len(data) < length:
            rest = await self._transport.span(url, len(span.body), LENGTH_BYTES + length - 1)
            if rest is None or (rest.total_bytes, rest.etag) != (span.total_bytes, span.etag):
                return Fault(name, "changed on the server while it was read", "try again")
            self.header_bytes += len(rest.body)
            data += rest.body
        return Kept(span.etag or "", span.total_bytes, data)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to tell of several that came together."""
    return next((error for error in group.exceptions if isinstance(error, CheckpointError)), group.exceptions[0])
