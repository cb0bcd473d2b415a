"""Which files of a folder are the checkpoint, by their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from appliance.checkpoint.faults import plain
from appliance.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.safetensors|\.gguf)")


@dataclass(frozen=True, slots=True)
class Layout:
    """What to read: an index, which names the rest; or safetensors files; or GGUF files of one model."""

    index: str | None = None
    shards: tuple[str, ...] = ()
    gguf: tuple[str, ...] = ()


def layout_of(origin: str, names: Collection[str]) -> Layout:
    """The checkpoint in a folder with files of these names; sub-folders do not count.

    1. The index of the usual name, or the only one. 2. model.safetensors alone: others beside it are variants.
    3. All safetensors files. 4. GGUF: one model. Raises CheckpointError when there is none, or more than one.
    """
    here = sorted(name for name in names if "/" not in name)
    indexes = [name for name in here if name.endswith(".safetensors.index.json")]
    if INDEX in indexes:  # 1
        return Layout(index=INDEX)
    if indexes:
        return Layout(index=_only(origin, "indexes", indexes))
    if SINGLE in here:  # 2
        return Layout(shards=(SINGLE,))
    shards = tuple(name for name in here if name.endswith(".safetensors"))
    if shards:  # 3
        return Layout(shards=shards)
    models = {model_of(name): name for name in here if name.endswith(".gguf")}
    if models:  # 4
        first = models[_only(origin, "GGUF models", list(models))]
        return Layout(gguf=parts_of(first))
    raise CheckpointError(
        f"{plain(origin)}: no .safetensors and no .gguf file is there",
        "give the folder that holds the model's files: moe-appliance checkpoint show PATH|URL|ORG/NAME[@REV]",
    )


def parts_of(name: str) -> tuple[str, ...]:
    """All files of the split that a file belongs to (`m-00001-of-00003.gguf`), itself when it is whole."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[3]) <= 10_000:
        return (name,)
    return tuple(f"{match[1]}-{part:05d}-of-{match[3]}{match[4]}" for part in range(1, int(match[3]) + 1))


def model_of(name: str) -> str:
    """A file's name without its place in a split."""
    match = _PART.fullmatch(name)
    return name if match is None else f"{match[1]}{match[4]}"


def alone_note(name: str) -> str | None:
    """A line when a single file that was asked for is one of several."""
    parts = parts_of(name)
    if len(parts) == 1:
        return None
    return f"{plain(name)} is one of {len(parts)} files: give the folder, or the index, to see all of them"


def strays(names: Collection[str], indexed: Collection[str]) -> Iterator[str]:
    """A line for tensors' files beside an index that does not name them."""
    others = sorted({name for name in names if "/" not in name and name.endswith(".safetensors")} - set(indexed))
    if others:
        more = "" if len(others) == 1 else f" and {len(others) - 1} more"
        yield f"{plain(others[0])}{more}: not in the index, not counted"


def _only(origin: str, what: str, found: list[str]) -> str:
    if len(found) > 1:
        some = ", ".join(plain(name) for name in found[:5])
        raise CheckpointError(f"{plain(origin)}: {len(found)} {what} ({some})", "give the path or URL of one of them")
    return found[0]
