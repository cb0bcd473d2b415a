"""Whether a disk holds what is to come, and what a full one says. Touches statvfs and /proc/self/mountinfo."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from appliance.checkpoint.faults import plain, typed
from appliance.errors import CheckpointError

RESERVE_BYTES = 1 << 30
"""What a fetch leaves free: other programs write to the same disk meanwhile, and its own records need room."""
FreeBytes: TypeAlias = Callable[[Path], int]
_MOUNTS = Path("/proc/self/mountinfo")


def free_bytes(folder: Path) -> int:
    """What this user may still write to the disk of `folder`; quotas are not part of it. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Where the disk of `folder` is mounted, its type and device, for an error: `/data (xfs, /dev/nvme0n1p1)`."""
    path, best, said = folder.resolve(), Path(), ""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return str(path)
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 2:
            continue
        mount = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        if path.is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, said = mount, f"{mount} ({kinds[0]}, {kinds[1]})"
    return said or str(path)


def need_space(folder: Path, needed_bytes: int, free: FreeBytes = free_bytes) -> None:
    """Raise CheckpointError when `needed_bytes` and the reserve do not fit on the disk of `folder`."""
    there = free(folder)
    if needed_bytes == 0 or there >= needed_bytes + RESERVE_BYTES:
        return
    short = needed_bytes + RESERVE_BYTES - there
    raise CheckpointError(
        f"{plain(folder)} has {amount(there)} free on {file_system(folder)}; the files still to be fetched need "
        f"{amount(needed_bytes)}, and {amount(RESERVE_BYTES)} stay free",
        f"free {amount(short)} more there (df -h {typed(folder)}; du -xsh {typed(folder)}/*), "
        "or use --to on another disk",
    )


def became_full(
    error: OSError, name: str, folder: Path, missing_bytes: int, free: FreeBytes = free_bytes
) -> CheckpointError:
    """What to say when a write fails: the disk became full (or a quota, or a limit of file sizes), or broke.
    `missing_bytes`: of all files, what is not there yet."""
    where = file_system(folder)
    again = "then run the same command again: it goes on with what is there"
    try:
        there = f"{amount(free(folder))} free"
    except OSError:
        there = "how much is free cannot be read"
    if error.errno == errno.EFBIG:
        return CheckpointError(
            f"{name}: {where} takes no file of that size ({error.strerror}); {amount(missing_bytes)} are still missing",
            f"ulimit -f   must say unlimited, and the file system must not be FAT; {again}",
        )
    if error.errno == errno.EDQUOT:
        return CheckpointError(
            f"{name}: the quota on {where} is used up; {amount(missing_bytes)} are still missing",
            f"quota -s   shows it; free some space or have it raised, {again}",
        )
    if error.errno == errno.ENOSPC:
        return CheckpointError(
            f"{name}: the disk became full: {where}, {there}; {amount(missing_bytes)} are still missing",
            f"free that much and {amount(RESERVE_BYTES)} more (df -h {typed(folder)}; df -i {typed(folder)}), {again}",
        )
    return CheckpointError(
        f"{name}: it cannot be written: {error.strerror or error} ({where})",
        f"ls -ld {typed(folder)}; dmesg | tail; {again}",
    )


def amount(size_bytes: int) -> str:
    """A size with its exact bytes, for errors that people act on: `9.3 GiB (9,985,798,144 bytes)`."""
    if size_bytes < 1 << 10:
        return f"{size_bytes} bytes"
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size_bytes >= 1 << power:
            return f"{size_bytes / (1 << power):.1f} {unit} ({size_bytes:,} bytes)"
    return f"{size_bytes / 1024:.1f} KiB ({size_bytes:,} bytes)"
