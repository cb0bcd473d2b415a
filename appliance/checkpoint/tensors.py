"""A checkpoint as its headers describe it: tensors, shards, configuration. Pure.

One value for safetensors and GGUF, wherever it was read. Nothing here says what a tensor is for: catalogue.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Any


class Format(StrEnum):
    """How the files are laid out."""

    SAFETENSORS = "safetensors"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor. `dtype` as the format spells it (`F8_E4M3`, `Q4_K`); `file`: the shard's name; `nbytes`: what its
    data takes in that shard, from `begin`, an offset from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    begin: int
    nbytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file. `header_bytes`: length of what was read to know its tensors (the 8 bytes of the length included);
    `header_sha256`: of the header's JSON as it stands in the file."""

    name: str
    size_bytes: int
    header_bytes: int
    header_sha256: str
    tensors: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All headers of one checkpoint, verified against each other and against the index.

    `origin`: where it was read, without credentials. `revision`: the commit of a hub, when known. `config`:
    config.json, or a GGUF file's metadata; empty when there is none. `index_sha256`: of the index file, None without
    one. `notes`: what is odd about it and keeps nobody from using it, one line each.
    """

    origin: str
    format: Format
    shards: tuple[Shard, ...]
    tensors: tuple[Tensor, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None
    index_sha256: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def tensor_count(self) -> int:
        """How many tensors there are."""
        return len(self.tensors)

    @property
    def total_bytes(self) -> int:
        """What all tensors take, headers not counted."""
        return sum(tensor.nbytes for tensor in self.tensors)
