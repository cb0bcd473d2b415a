"""Finds what the kernel's log of this boot says about NVIDIA's cards. Touches /dev/kmsg, else a journalctl child.

/dev/kmsg gives one record a read and forgets old ones; a container or dmesg_restrict closes it to others than root.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

from appliance.box.child import OneChild
from appliance.box.host import Xid

MOST = 64
"""Distinct (number, card) pairs that are kept; a sick card says the same thousands of times."""
_JOURNAL_S = 3.0
_RECORD_BYTES = 8192
"""Longest record. Source: CONSOLE_EXT_LOG_MAX of the kernel."""
_LOG_BYTES = 32 * 1024**2
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)[^\n]*")


def xids(root: Path) -> tuple[Xid, ...] | None:
    """The Xids of this boot, the last line of each number and card; None when the log cannot be read."""
    text = _kmsg(root / "dev/kmsg")
    if text is None and root == Path("/"):
        text = _journal()
    return None if text is None else found_in(text.splitlines())


def found_in(lines: Iterable[str]) -> tuple[Xid, ...]:
    """The Xids in lines of a kernel's log."""
    found: dict[tuple[int, str], Xid] = {}
    for line in lines:
        match = _XID.search(line)
        if match is not None:
            key = (int(match[2]), match[1].lower())
            if key in found or len(found) < MOST:
                found[key] = Xid(number=key[0], bus_id=key[1], line=match[0].strip())
    return tuple(found.values())


def _kmsg(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    records: list[bytes] = []
    size = 0
    try:
        while size < _LOG_BYTES:
            try:
                record = os.read(fd, _RECORD_BYTES)
            except BrokenPipeError:  # overwritten while we read: the next read goes on behind it
                continue
            except OSError as error:
                if error.errno == errno.EAGAIN:  # the end of the log
                    break
                return None
            if not record:
                break
            records.append(record)
            size += len(record)
    finally:
        os.close(fd)
    return b"".join(records).decode(errors="replace")


def _journal() -> str | None:
    argv = ["journalctl", "-k", "-b", "-o", "cat", "--no-pager", "-q", "-g", "NVRM: Xid"]
    try:
        answer = OneChild().ask(argv, os.environ, _JOURNAL_S)
    except OSError:
        return None
    if answer.code not in (0, 1) or answer.err.strip():  # 1 = nothing matched
        return None
    return answer.out
