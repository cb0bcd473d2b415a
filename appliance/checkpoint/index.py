"""The index of a sharded safetensors checkpoint, and whether it and the headers agree, both ways. Pure.

Rules:
- A shard's name is a relative path below the index's folder; any other is refused before it is used.
- `metadata.total_size` is a note when it differs: many published indexes are wrong, and nothing depends on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from appliance.checkpoint.faults import Fault, complaint, plain
from appliance.checkpoint.headers import REFETCH, Header
from appliance.errors import CheckpointError

REPAIR = "get the index and the shards from one revision: moe-appliance checkpoint fetch REPO@REV --to DIR"

INDEX_BYTES = 128 << 20
"""The longest index that is read: 188,245 entries take about 20 MB. JSON takes many times its length in memory."""


@dataclass(frozen=True, slots=True)
class Index:
    """Which file holds which tensor. `total_size`: what it says all tensors take, bytes; None without a usable one."""

    name: str
    sha256: str
    weight_map: dict[str, str]
    total_size: int | None

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the files, sorted."""
        return tuple(sorted(set(self.weight_map.values())))


def parse_index(origin: str, name: str, data: bytes) -> Index:
    """The index `name` of the checkpoint at `origin`. Raises CheckpointError."""

    def refused(text: str, remedy: str = REFETCH) -> CheckpointError:
        return complaint(origin, [Fault(name, text, remedy)])

    if data.startswith(b"version https://git-lfs"):
        raise refused("a Git LFS pointer, not the file that it points to", "git lfs pull   in its folder")
    if data.lstrip().startswith(b"<"):
        raise refused("an HTML or XML page in place of the index")
    try:
        index = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise refused(f"no JSON: {error}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise refused("no weight_map with tensors in it")
    unnamed = [Fault(name, f"tensor {plain(tensor)}: its file is {plain(file)!r}, no name", REPAIR)
               for tensor, file in weight_map.items() if not isinstance(file, str)]  # fmt: skip
    if unnamed:
        raise complaint(origin, unnamed)
    outside = [Fault(name, f"the shard name {plain(repr(file))} leaves the folder", REPAIR)
               for file in dict.fromkeys(weight_map.values()) if not is_inside(file)]  # fmt: skip
    if outside:
        raise complaint(origin, outside)
    return Index(name, sha256(data).hexdigest(), weight_map, _total_size(index.get("metadata")))


def is_inside(name: str) -> bool:
    """Whether a file's name is a plain relative path that stays below its folder."""
    parts = name.split("/")
    return name.isprintable() and "\\" not in name and not any(part in ("", ".", "..") for part in parts)


def disagreements(index: Index | None, headers: Sequence[Header], missing: Collection[str]) -> Iterator[Fault]:
    """What index and headers say differently, and tensors that are in two files. `missing`: shards without a header."""
    weight_map = {} if index is None else index.weight_map
    seen: dict[str, str] = {}
    for header in headers:
        file = header.shard.name
        for tensor in header.tensors:
            name = tensor.name
            other = seen.setdefault(name, file)
            if other != file:
                yield Fault(file, f"tensor {plain(name)}: also in {plain(other)}", REPAIR)
            elif index is not None and (said := weight_map.get(name)) != file:
                where = "is not in the index" if said is None else f"is in {plain(said)} by the index"
                yield Fault(file, f"tensor {plain(name)}: {where}", REPAIR)
    unread = {header.shard.name for header in headers if header.faults} | set(missing)
    for name, file in weight_map.items():
        if name not in seen and file not in unread:
            yield Fault(file, f"tensor {plain(name)}: in the index, not in the file", REPAIR)


def missing_shards(index: Index, missing: Collection[str]) -> Iterator[Fault]:
    """Files that the index names and that are not there."""
    counts = Counter(index.weight_map.values()) if missing else {}
    for file in sorted(missing):
        yield Fault(file, f"missing: the index puts {counts[file]:,} tensors there", REFETCH)


def size_note(index: Index | None, total_bytes: int) -> str | None:
    """A line when the index gives another sum than the headers."""
    if index is None or index.total_size is None or index.total_size == total_bytes:
        return None
    return f"{plain(index.name)}: total_size says {index.total_size:,} bytes, the tensors take {total_bytes:,}"


def _total_size(metadata: Any) -> int | None:
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(said, float) and said.is_integer():
        return int(said)
    return said if type(said) is int else None
