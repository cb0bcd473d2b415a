"""Whether the headers in a folder are those of one checkpoint. Touches the folder; a child process for GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from appliance.checkpoint.read import read
from appliance.checkpoint.sources import Folder


def headers_sound(folder: Path, environ: Mapping[str, str]) -> bool:
    """Read all headers. False when nothing here can read them: GGUF without the package gguf.

    Raises CheckpointError with all that is wrong.
    """
    if not any(folder.glob("*.safetensors")) and find_spec("gguf") is None:
        return False
    read(Folder(folder), environ=environ)
    return True
