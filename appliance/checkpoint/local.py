"""Reads the headers of safetensors files on this machine. Touches the file system.

What is in a folder may be links (a hub's download cache has nothing else); what the index names is below the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.checkpoint.faults import Fault, complaint, plain
from appliance.checkpoint.found import Found
from appliance.checkpoint.headers import LENGTH_BYTES, REFETCH, SNIFF_BYTES, Header, header_length, parse_header
from appliance.checkpoint.index import INDEX_BYTES, parse_index
from appliance.checkpoint.layout import CONFIG, Layout, alone_note
from appliance.errors import CheckpointError
from appliance.files import NotRegularError, open_regular, read_regular

SMALL_FILE_BYTES = 16 << 20
_REGULAR = "put the file itself, or a link to it, there"
_PERMISSION = "check the owner and the mode of the file, and the disk: ls -l"


def read_local(folder: Path, layout: Layout, names: list[str], progress: Callable[[int, int], None]) -> Found:
    """All headers of the files that `layout` says, of a folder with `names`. Raises CheckpointError."""
    found = Found(str(folder), names=names)
    shards = layout.shards
    if layout.index is not None:
        data = _small(folder, layout.index, INDEX_BYTES)
        if data is None:
            raise complaint(found.origin, [Fault(layout.index, "missing", REFETCH)])
        found.index = parse_index(found.origin, layout.index, data)
        shards = found.index.shards
    found.config = _small(folder, CONFIG, SMALL_FILE_BYTES)
    for done, name in enumerate(shards, start=1):
        match _header(folder / name, name):
            case Header() as header:
                found.headers.append(header)
            case Fault() as fault:
                found.faults.append(fault)
            case None:
                found.missing.append(name)
        progress(done, len(shards))
    return found


def read_one(path: Path) -> Found:
    """One file of tensors, without an index. Raises CheckpointError."""
    found = read_local(path.parent, Layout(shards=(path.name,)), [], lambda _done, _all: None)
    found.origin = str(path)
    note = alone_note(path.name)
    found.notes += [note] if note else []
    return found


def _header(path: Path, name: str) -> Header | Fault | None:
    """None: there is no such file."""
    try:
        with open_regular(path) as file:
            size_bytes = file.seek(0, 2)
            file.seek(0)
            start = file.read(SNIFF_BYTES)
            length = header_length(name, start, size_bytes)
            if isinstance(length, Fault):
                return length
            file.seek(LENGTH_BYTES)
            data = file.read(length)
    except FileNotFoundError:
        return None
    except NotRegularError:
        return Fault(name, "not a regular file", _REGULAR)
    except OSError as error:
        return Fault(name, f"cannot be read: {error.strerror or error}", _PERMISSION)
    if len(data) < length:
        return Fault(name, "became shorter while it was read", "wait until it is written, then look again")
    return parse_header(name, data, size_bytes)


def _small(folder: Path, name: str, limit_bytes: int) -> bytes | None:
    path = folder / name
    try:
        data = read_regular(path, limit_bytes)
    except FileNotFoundError:
        return None
    except NotRegularError:
        raise CheckpointError(f"{plain(path)}: not a regular file", _REGULAR) from None
    except OSError as error:
        raise CheckpointError(f"{plain(path)}: cannot be read: {error.strerror or error}", _PERMISSION) from error
    if len(data) > limit_bytes:
        raise CheckpointError(f"{plain(path)}: longer than {limit_bytes:,} bytes", "check that it is the right file")
    return data
