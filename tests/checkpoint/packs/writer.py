"""Writes checkpoints that have headers and no weights. Touches files.

Each shard is its header followed by a hole of the data's length, so that a checkpoint of 475 GiB takes 12 MB of disk.
Such files are never committed: many tools that copy files fill the holes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

INDEX = "model.safetensors.index.json"

WIDTHS = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "F64": 8,
}
"""Bytes of one element, by the dtype's name in a header."""


class Spec(NamedTuple):
    """One tensor that is to be in a header; `dtype` is a key of WIDTHS."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """What its data takes."""
        return prod(self.shape) * WIDTHS[self.dtype]


Shards = Mapping[str, Sequence[Spec]]
"""File name -> its tensors in the order of their data."""


def header(tensors: Sequence[Spec], metadata: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """The first bytes of a shard (length and JSON, padded to 8), and the length of the data that follows."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata if metadata is not None else {"format": "pt"})}
    end = 0
    for spec in tensors:
        begin, end = end, end + spec.nbytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (begin, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def write(folder: Path, shards: Shards, config: Mapping[str, Any] | None = None, index: bool = True) -> Path:
    """Writes the shards, config.json when there is a `config`, and the index unless told not to. Returns the folder,
    which is made when it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, str] = {}
    total = 0
    for name, tensors in shards.items():
        head, data_bytes = header(tensors)
        with (folder / name).open("wb") as file:
            file.write(head)
            file.truncate(len(head) + data_bytes)
        weights.update(dict.fromkeys((spec.name for spec in tensors), name))
        total += data_bytes
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    if index:
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weights}))
    return folder


def shard_name(number: int, of: int) -> str:
    """The usual name of a shard, counted from 1."""
    return f"model-{number:05d}-of-{of:05d}.safetensors"
