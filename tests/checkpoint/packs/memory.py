"""A pack as the value that reading its headers gives, without a file. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from appliance.checkpoint.tensors import Checkpoint, Format, Shard, Tensor
from tests.checkpoint.packs.writer import Shards, header


def checkpoint_of(shards: Shards, config: Mapping[str, Any], format: Format = Format.SAFETENSORS) -> Checkpoint:
    """The headers of `shards` as they would be read from files; digests and offsets are true for safetensors."""
    files: list[Shard] = []
    tensors: list[Tensor] = []
    for name, specs in shards.items():
        head, data_bytes = header(specs)
        files.append(Shard(name, len(head) + data_bytes, len(head), hashlib.sha256(head[8:]).hexdigest(), len(specs)))
        begin = len(head)
        for spec in specs:
            tensors.append(Tensor(spec.name, spec.dtype, spec.shape, name, begin, spec.nbytes))
            begin += spec.nbytes
    return Checkpoint("memory", format, tuple(files), tuple(tensors), config)
