"""What was read of a safetensors checkpoint becomes a Checkpoint, or everything that is wrong with it. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

from appliance.checkpoint.faults import Fault, complaint, plain
from appliance.checkpoint.headers import REFETCH, Header
from appliance.checkpoint.index import Index, disagreements, missing_shards, size_note
from appliance.checkpoint.layout import CONFIG, strays
from appliance.checkpoint.tensors import Checkpoint, Format


@dataclass(slots=True, repr=False)  # asyncio.run makes the text of its result, which would take half a second
class Found:
    """What a reader has so far. `config`: the bytes of config.json, None without one; `names`: of all files, where they
    can be listed; `missing`: files that are not there; `faults`: of files of which there is no header."""

    origin: str
    index: Index | None = None
    config: bytes | None = None
    headers: list[Header] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: Collection[str] = ()
    revision: str | None = None


def checkpoint_of(found: Found) -> Checkpoint:
    """The checkpoint. Raises CheckpointError with all that is wrong."""
    headers = sorted(found.headers, key=lambda header: header.shard.name)
    config, config_faults = _config(found.config)
    faults = [*_faults(found, headers), *config_faults]
    if faults:
        raise complaint(found.origin, faults)
    total_bytes = sum(header.shard.size_bytes - header.shard.header_bytes for header in headers)
    said = size_note(found.index, total_bytes)
    left_out = strays(found.names, found.index.shards) if found.index else ()
    return Checkpoint(
        origin=found.origin,
        format=Format.SAFETENSORS,
        shards=tuple(header.shard for header in headers),
        tensors=tuple(chain.from_iterable(header.tensors for header in headers)),
        config=config,
        revision=found.revision,
        index_sha256=found.index.sha256 if found.index else None,
        notes=(*found.notes, *left_out, *((said,) if said else ())),
    )


def _faults(found: Found, headers: Sequence[Header]) -> list[Fault]:
    """Files that are not there first, then what is wrong inside files, then what they and the index disagree on."""
    if found.index is not None:
        faults = list(missing_shards(found.index, found.missing))
    else:
        faults = [Fault(name, "missing", REFETCH) for name in sorted(found.missing)]
    faults += sorted(found.faults, key=attrgetter("file"))
    faults += chain.from_iterable(header.faults for header in headers)
    unread = {*found.missing, *(fault.file for fault in found.faults)}
    faults += disagreements(found.index, headers, unread)
    return faults


def _config(data: bytes | None) -> tuple[dict[str, Any], list[Fault]]:
    """config.json, which unlike a header may hold NaN and Infinity: Python programs write them."""
    if data is None:
        return {}, []
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        return {}, [Fault(CONFIG, f"no JSON: {plain(error)}", REFETCH)]
    if not isinstance(config, dict):
        return {}, [Fault(CONFIG, "no JSON object", REFETCH)]
    return config, []
