"""Fetches the files of a checkpoint into a folder, whole or not at all. Touches sockets, the folder, the clock.

1. One fetch at a time has the folder. It stays with one origin; another revision replaces its files one by one.
2. What is there already counts: files by the folder's record or by the sum that the source tells, parts by theirs. A
   file whose size, time and inode are as recorded is not hashed again; one that was touched is, and fetched if it
   differs.
3. The space is checked before the first byte. A disk that becomes full ends the fetch; what came is kept.
4. A file whose sum is wrong is kept as NAME.bad, and the other files go on.
5. At the end the headers are read: a login page in place of a shard may come whole, and its sum be right.
6. A hub's files come by ranges too, from the addresses of one commit, both told by huggingface_hub. Its own downloads
   begin anew after a kill (its pull request 4306), which is too much to lose of a file of 100 GB.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from appliance.checkpoint.download import download
from appliance.checkpoint.faults import plain, typed
from appliance.checkpoint.folder import alone, inside, sha256_of
from appliance.checkpoint.listing import Listing, fetchable, listing_of
from appliance.checkpoint.partfile import PartFile, RemoteFile, begun_bytes, boot_id, forget, placed
from appliance.checkpoint.progress import OnProgress, Tally
from appliance.checkpoint.provenance import Kept, Provenance, load
from appliance.checkpoint.read import headers_sound
from appliance.checkpoint.sources import Folder, source_of
from appliance.checkpoint.space import FreeBytes, became_full, free_bytes, need_space
from appliance.checkpoint.threads import Report, in_thread, reporting, together
from appliance.checkpoint.transport import Transport
from appliance.errors import CheckpointError
from appliance.unwaited import unwaited

AT_ONCE = 4
"""Files that are fetched at the same time."""


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A whole file. `told_by`: who told its sum beforehand; None when the sum is only what came. `how`: fetched,
    resumed (a part was there), or kept (it was there). `hashed`: by this fetch; else only its size, time and inode were
    compared with those of the fetch that hashed it."""

    name: str
    size_bytes: int
    sha256: str
    told_by: str | None
    how: str
    hashed: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """A finished fetch. `received_bytes` came over the network in `seconds`."""

    origin: str
    revision: str | None
    folder: Path
    files: tuple[FetchedFile, ...]
    received_bytes: int
    seconds: float

    @property
    def total_bytes(self) -> int:
        """What all files take."""
        return sum(file.size_bytes for file in self.files)


async def fetch(
    text: str,
    folder: Path,
    *,
    environ: Mapping[str, str],
    on_progress: OnProgress,
    free: FreeBytes = free_bytes,
) -> Fetched:
    """Fetch what `text` (REPO[@REV] or a URL) names into `folder`, which is made; parts that are there go on.

    `free` says what a disk takes. Raises CheckpointError; may be cancelled, and keeps what came.
    """
    source = source_of(text)
    if isinstance(source, Folder):
        raise CheckpointError(
            f"{plain(text)} is on this machine already", f"moe-appliance checkpoint verify {typed(text)}"
        )
    began_s = time.monotonic()
    remote = await unwaited(partial(fetchable, source, environ))
    async with Transport(remote.token, remote.token_variable) as transport:
        listing = await listing_of(remote, transport)
        tally = Tally(on_progress, sum(file.size_bytes for file in listing.files), len(listing.files))
        run = _Fetch(listing, folder, transport, tally, free)
        try:
            with alone(folder):
                files = await run.all()
                await asyncio.to_thread(headers_sound, folder, environ)
        except OSError as error:
            raise became_full(error, str(error.filename or folder), folder, tally.missing_bytes, free) from error
    return Fetched(
        origin=listing.origin,
        revision=listing.revision,
        folder=folder,
        files=files,
        received_bytes=tally.now.received_bytes,
        seconds=time.monotonic() - began_s,
    )


@dataclass(slots=True)
class _Fetch:
    """One run: what is known of the folder. All but hashing and writing is on the loop."""

    listing: Listing
    folder: Path
    transport: Transport
    tally: Tally
    free: FreeBytes
    known: Provenance = field(init=False)
    _boot: str = field(default_factory=boot_id)
    _how: dict[str, str] = field(default_factory=dict)
    _unhashed: set[str] = field(default_factory=set)
    _bad: list[str] = field(default_factory=list)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def all(self) -> tuple[FetchedFile, ...]:
        """Every file of the listing, whole. Raises CheckpointError, OSError."""
        files = self.listing.files
        before = self._known_before()
        kept = await reporting(partial(self._survey, before), self.tally.hashed)
        self.tally.finished(len(kept))
        missing = [file for file in files if file.name not in kept]
        begun = sum(begun_bytes(self.folder / file.name, file, self._boot) for file in missing)
        need_space(self.folder, self.tally.missing_bytes - begun, self.free)
        self._how = dict.fromkeys(kept, "kept")
        older = {} if before is None else dict(before.files)
        self.known = Provenance(self.listing.origin, self.listing.revision, _now(), files=older | kept)
        if missing or before is None or not before.complete or before.files != kept:
            self.known.save(self.folder)
            await self._fetch_all(missing)
            whole = {file.name: self.known.files[file.name] for file in files}
            self.known = replace(self.known, complete=True, fetched_at=_now(), files=whole)
            self.known.save(self.folder)
        for file in files:
            forget(self.folder / file.name)
        return tuple(self._told(file.name) for file in files)

    def _told(self, name: str) -> FetchedFile:
        kept, hashed = self.known.files[name], name not in self._unhashed
        return FetchedFile(name, kept.size_bytes, kept.sha256, kept.told_by, self._how[name], hashed)

    # -- what is there ---------------------------------------------------------------------------------------

    def _known_before(self) -> Provenance | None:
        known = load(self.folder)
        if known is not None and known.origin != self.listing.origin:
            raise CheckpointError(
                f"{plain(self.folder)} holds files from {plain(known.origin)}, not from {plain(self.listing.origin)}",
                "use another --to DIR, so that no file of one is taken for a file of the other",
            )
        return known

    def _survey(self, before: Provenance | None, report: Report) -> dict[str, Kept]:
        """The files that need not be fetched. Raises CheckpointError for what may not be overwritten."""
        known = {} if before is None else before.files
        found = {}
        for file in self.listing.files:
            path = inside(self.folder, file.name)
            if path.is_file():
                kept = self._kept(file, path, known.get(file.name), report)
                if kept is not None:
                    found[file.name] = kept
        return found

    def _kept(self, file: RemoteFile, path: Path, known: Kept | None, report: Report) -> Kept | None:
        status = path.stat()
        same = known is not None and known.size_bytes == file.size_bytes and _unchanged(known, file)
        ours = known.sha256 if known is not None and same else placed(path, file)
        if known is not None and same and known.untouched(status):
            report(file.size_bytes)
            self._unhashed.add(file.name)
            return replace(known, told_by=file.told_by, validator=file.validator)
        right = file.sha256 if ours is None and known is None else ours
        if right is not None and status.st_size == file.size_bytes and _has_sum(path, right, report):
            return _record(file, right, status)
        if known is None and ours is None:
            raise CheckpointError(
                f"{plain(path)} is there already, and nothing says that it is the file of {plain(self.listing.origin)}",
                f"move it away: mv {typed(path)} {typed(f'{path}.old')}; or use another --to DIR",
            )
        return None

    # -- what is fetched -------------------------------------------------------------------------------------

    async def _fetch_all(self, missing: list[RemoteFile]) -> None:
        async with together() as group:
            for file in missing:
                group.create_task(self._fetch_one(file))
        if self._bad:
            raise CheckpointError(
                "\n  ".join(self._bad),
                "run the same command again: it fetches only these anew. If that repeats, the source is at fault, or "
                "this machine's memory or disk",
            )

    async def _fetch_one(self, file: RemoteFile) -> None:
        path = self.folder / file.name
        async with self._places:
            try:
                with contextlib.closing(PartFile(path, file, self._boot)) as part:
                    await reporting(part.hash_begun, self.tally.hashed)
                    resumed = part.bytes > 0
                    await download(self.transport, part, self.tally.received)
                    if file.sha256 not in (None, part.sum()):
                        self._set_aside(file, part, resumed)
                        return
                    status = await in_thread(part.place)
                    self._finish(_record(file, part.sum(), status), file.name, "resumed" if resumed else "fetched")
            except OSError as error:
                raise became_full(error, plain(file.name), self.folder, self.tally.missing_bytes, self.free) from error

    def _set_aside(self, file: RemoteFile, part: PartFile, resumed: bool) -> None:
        bad = part.set_aside()
        sums = f"its SHA-256 is {part.sum()}, {file.told_by} says {file.sha256}"
        why = "; its beginning was here before this run and may have been damaged here" if resumed else ""
        self._bad.append(f"{plain(file.name)}: {sums}; kept as {plain(bad.name)}{why}")

    def _finish(self, kept: Kept, name: str, how: str) -> None:
        self._how[name] = how
        self.known = self.known.having(name, kept, _now())
        self.known.save(self.folder)
        forget(self.folder / name)
        self.tally.finished()


def _unchanged(known: Kept, file: RemoteFile) -> bool:
    """Whether the source still has the file that is here: by its sum, else by its validator; a server that tells
    neither is believed when the size is the same, or every run would fetch everything again."""
    return known.sha256 == file.sha256 if file.sha256 is not None else known.validator == file.validator


def _has_sum(path: Path, digest: str, report: Report) -> bool:
    """Hash a file; what was reported of one that differs is taken back, as it is still to be fetched."""
    read = 0

    def counted(count: int) -> None:
        nonlocal read
        read += count
        report(count)

    if sha256_of(path, counted) == digest:
        return True
    report(-read)
    return False


def _record(file: RemoteFile, digest: str, status: os.stat_result) -> Kept:
    return Kept(file.size_bytes, digest, file.told_by, file.validator, status.st_mtime_ns, status.st_ino)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
