"""Whether a checkpoint's folder is what its SHA256SUMS says. Touches the folder, and its headers through sound.py.

1. Every file that has a sum is hashed, also those that a size gives away elsewhere: all that is wrong is told at once.
2. Weights without a sum are wrong: engines load what they find. Other extra files are told, and are not.
3. Only when all sums are right are the headers read: they say whether the files belong together.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from appliance.checkpoint import provenance
from appliance.checkpoint.faults import plain, typed
from appliance.checkpoint.folder import sha256_of
from appliance.checkpoint.progress import OnProgress, Tally
from appliance.checkpoint.read import headers_sound
from appliance.checkpoint.sums import BAD, PART, SUMS, SUMS_BYTES, format_sums, is_ours, parse_sums, safe_name
from appliance.checkpoint.threads import Report, reporting, together
from appliance.checkpoint.wanted import WEIGHTS
from appliance.errors import CheckpointError
from appliance.files import read_regular
from gateway.files import replace_file

AT_ONCE = 2
"""Files that are hashed at the same time: more only make a disk seek."""
_MODE = 0o644


class Trouble(StrEnum):
    """What is the matter with a file."""

    DIFFERS = "differs"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    EXTRA_WEIGHTS = "extra weights"
    UNFINISHED = "unfinished"
    HEADERS = "headers"
    EXTRA = "extra"
    LEFT_OVER = "left over"

    @property
    def harmless(self) -> bool:
        """Whether the checkpoint is good in spite of it."""
        return self in (Trouble.EXTRA, Trouble.LEFT_OVER)


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that was found: the file ("" for the whole folder), what, and how it shows."""

    file: str
    trouble: Trouble
    detail: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found. `files`, `total_bytes`: that were hashed; `wrote`: SHA256SUMS was written by it, so
    that no sum could be compared; `headers`: they were read, and are in `found` when they are not sound;
    `address`: what the files were fetched from, when the folder says it."""

    folder: Path
    files: int
    total_bytes: int
    found: tuple[Found, ...]
    wrote: bool = False
    headers: bool = False
    address: str | None = None

    @property
    def good(self) -> bool:
        """Whether the checkpoint may be used."""
        return all(one.trouble.harmless for one in self.found)


async def verify(folder: Path, *, environ: Mapping[str, str], on_progress: OnProgress, write: bool = False) -> Verified:
    """Hash every file of a folder and compare. `write`: adopt what is there instead, once its headers are sound.

    Raises CheckpointError when there is no folder, no SHA256SUMS (with `write`: when there is one), or none that can
    be read; what is wrong with files is in the result.
    """
    if not await asyncio.to_thread(folder.is_dir):
        raise CheckpointError(f"{plain(folder)} is not a folder", "name the folder that checkpoint fetch wrote")
    try:
        if write:
            return await _adopt(folder, environ, on_progress)
        return await _compare(folder, environ, on_progress)
    except OSError as error:
        raise CheckpointError(
            f"{plain(error.filename or folder)}: {error.strerror or error}", f"ls -la {typed(folder)}; dmesg | tail"
        ) from error


async def _compare(folder: Path, environ: Mapping[str, str], on_progress: OnProgress) -> Verified:
    known = provenance.load(folder)
    sums = _sums(folder, known)
    there = dict(_files(folder))
    listed = {name: there[name] for name in sums if name in there}
    found = [Found(name, Trouble.MISSING, "it is not there") for name in sums if name not in there]
    hashed = await _hash(folder, listed, on_progress)
    for name, result in hashed.items():
        if isinstance(result, OSError):
            found.append(Found(name, Trouble.UNREADABLE, str(result.strerror or result)))
        elif result != sums[name]:
            kept = known.files.get(name) if known else None
            length = f", {listed[name]:,} bytes of {kept.size_bytes:,}" if kept else ""
            found.append(Found(name, Trouble.DIFFERS, f"its SHA-256 is {result}, {SUMS} says {sums[name]}{length}"))
    found += _beyond(there, sums)
    if known is not None and not known.complete:
        found.append(Found("", Trouble.UNFINISHED, "its fetch was not finished: run the same checkpoint fetch again"))
    headers = False
    if all(one.trouble.harmless for one in found):
        headers, faults = await _headers(folder, environ)
        found += faults
    found.sort(key=lambda one: one.file)
    return Verified(
        folder,
        len(hashed),
        sum(listed.values()),
        tuple(found),
        headers=headers,
        address=known.address if known else None,
    )


async def _adopt(folder: Path, environ: Mapping[str, str], on_progress: OnProgress) -> Verified:
    if (folder / SUMS).exists():
        raise CheckpointError(
            f"{plain(folder / SUMS)} is there: to write it anew would call good whatever is there now",
            f"moe-appliance checkpoint verify {typed(folder)}   compares; "
            f"rm {typed(folder / SUMS)}   lets it be written",
        )
    there = {name: size for name, size in _files(folder) if not is_ours(name)}
    if not there:
        raise CheckpointError(f"{plain(folder)} has no files", "name the folder of a checkpoint")
    headers, faults = await _headers(folder, environ)
    if faults:
        return Verified(folder, 0, 0, faults, headers=True)
    hashed = await _hash(folder, there, on_progress)
    for result in hashed.values():
        if isinstance(result, OSError):
            raise result
    text = format_sums({safe_name(name, str(folder)): str(digest) for name, digest in hashed.items()})
    replace_file(folder / SUMS, text.encode(), _MODE)
    return Verified(folder, len(hashed), sum(there.values()), (), wrote=True, headers=headers)


def _sums(folder: Path, known: provenance.Provenance | None) -> dict[str, str]:
    path = folder / SUMS
    try:
        raw = read_regular(path, SUMS_BYTES)
    except FileNotFoundError:
        origin = typed(known.address) if known else "REPO@REV|URL"
        raise CheckpointError(
            f"{plain(folder)} has no {SUMS}: nothing says what its files should be",
            f"moe-appliance checkpoint fetch {origin} --to {typed(folder)}   compares with the source and fetches what "
            "lacks; "
            f"moe-appliance checkpoint verify {typed(folder)} --write   writes one from what is there",
        ) from None
    sums = parse_sums(raw.decode("utf-8", "replace"), str(path))
    if not sums:
        raise CheckpointError(f"{plain(path)} is empty", "fetch the checkpoint again with the same command")
    return {safe_name(name, str(path)): digest for name, digest in sums.items()}


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Every file and its size, by its name within the folder; hidden ones are left out."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root) / name
            if not name.startswith(".") and path.exists() and stat.S_ISREG(path.stat().st_mode):
                yield path.relative_to(folder).as_posix(), path.stat().st_size


def _beyond(there: Mapping[str, int], sums: Mapping[str, str]) -> Iterator[Found]:
    for name, size in there.items():
        if name in sums or (is_ours(name) and not name.endswith((PART, BAD))):
            continue
        if is_ours(name):
            yield Found(name, Trouble.LEFT_OVER, f"{size:,} bytes of a fetch")
        elif name.endswith(WEIGHTS):
            yield Found(name, Trouble.EXTRA_WEIGHTS, f"{SUMS} does not know it, and an engine may load it")
        else:
            yield Found(name, Trouble.EXTRA, f"{SUMS} does not know it")


async def _hash(folder: Path, sizes: Mapping[str, int], on_progress: OnProgress) -> dict[str, str | OSError]:
    tally = Tally(on_progress, sum(sizes.values()), len(sizes))
    places = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> str | OSError:
        async with places:
            result = await reporting(partial(_try, folder / name), tally.hashed)
            tally.finished()
            return result

    async with together() as group:
        tasks = {name: group.create_task(one(name)) for name in sizes}
    return {name: task.result() for name, task in tasks.items()}


def _try(path: Path, report: Report) -> str | OSError:
    try:
        return sha256_of(path, report)
    except OSError as error:
        return error


async def _headers(folder: Path, environ: Mapping[str, str]) -> tuple[bool, tuple[Found, ...]]:
    try:
        return await asyncio.to_thread(headers_sound, folder, environ), ()
    except CheckpointError as error:
        return True, (Found("", Trouble.HEADERS, error.message),)
