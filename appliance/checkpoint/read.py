"""Reads a checkpoint's headers, wherever it is, and never a weight. Touches the file system and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from appliance.checkpoint.cache import HeaderCache, cache_folder
from appliance.checkpoint.faults import plain, typed
from appliance.checkpoint.found import checkpoint_of
from appliance.checkpoint.gguf_headers import read_gguf
from appliance.checkpoint.layout import Layout, layout_of, model_of, parts_of
from appliance.checkpoint.local import read_local, read_one
from appliance.checkpoint.remote import Fetched, read_remote
from appliance.checkpoint.sources import Folder, Source, remote_of
from appliance.checkpoint.tensors import Checkpoint
from appliance.errors import CheckpointError

OnHeader = Callable[[int, int], None]
"""Is told how many files were read, of how many."""


def _silent(_done: int, _all: int) -> None:
    return


def read(
    origin: Source,
    *,
    environ: Mapping[str, str],
    progress: OnHeader = _silent,
    cache: HeaderCache | None = None,
) -> Checkpoint:
    """All headers of the checkpoint, verified against each other and against its index.

    `environ`: tokens and the hub's address (sources.py), and where the cache is when `cache` is None. Runs an event
    loop of its own for what is remote. Raises CheckpointError with all that is wrong.
    """
    return read_counted(origin, environ=environ, progress=progress, cache=cache)[0]


def read_counted(
    origin: Source,
    *,
    environ: Mapping[str, str],
    progress: OnHeader = _silent,
    cache: HeaderCache | None = None,
) -> tuple[Checkpoint, Fetched]:
    """`read`, and what was fetched for it: nothing for a folder."""
    with _collector_paused():
        if isinstance(origin, Folder):
            return _read_folder(origin.path, progress), Fetched()
        kept = HeaderCache(cache_folder(environ)) if cache is None else cache
        found, fetched = asyncio.run(read_remote(remote_of(origin, environ), kept, progress))
        return checkpoint_of(found), fetched


def headers_sound(folder: Path, environ: Mapping[str, str]) -> bool:
    """Read all headers of a folder. False when nothing here can read them: GGUF without the package gguf.

    Raises CheckpointError with all that is wrong.
    """
    if not any(folder.glob("*.safetensors")) and find_spec("gguf") is None:
        return False
    read(Folder(folder), environ=environ)
    return True


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: it would go through some 190,000 new objects again and again, a third of the
    time, and none of them is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_folder(path: Path, progress: OnHeader) -> Checkpoint:
    folder = path if path.is_dir() else path.parent
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise CheckpointError(
            f"{plain(folder)}: cannot be read: {error.strerror}", f"ls -ld {typed(folder)}   shows why"
        ) from error
    if path.is_dir():
        layout = layout_of(str(path), names)
    elif path.name.endswith(".json"):
        layout = Layout(index=path.name)
    elif path.name.endswith(".gguf"):
        layout = Layout(gguf=parts_of(path.name))
    else:
        return checkpoint_of(read_one(path))
    if layout.gguf:
        return read_gguf(folder, model_of(layout.gguf[0]), layout.gguf, progress)
    return checkpoint_of(read_local(folder, layout, names, progress))
