"""Puts the residency plugin and its document where an engine's Python finds them.

Touches the state folder. Rules:
- Both are named by what they hold, so that a look knows their paths before they are there, one that is there and whole
  is never changed, and a start after an upgrade has the plugin of the appliance that starts it.
- Nothing is installed into the engine's environment: the folder comes first on its PYTHONPATH, and holds nothing else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from appliance import residency
from appliance.files import make_folder, write_private

NAME = "moe_residency"
FOLDER = "residency"
PRIVATE_MODE = 0o700


@cache
def _sources() -> Mapping[str, bytes]:
    found = sorted(Path(residency.__file__).parent.glob("*.py"))
    return {file.name: file.read_bytes() for file in found}


def plugin_in(state_dir: Path) -> Path:
    """The folder for PYTHONPATH, whether it is there or not."""
    digest = hashlib.sha256()
    for name, source in _sources().items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(source).digest())
    return state_dir / FOLDER / digest.hexdigest()[:12]


def document_in(state_dir: Path, document: Mapping[str, object]) -> Path:
    """The file of a document, whether it is there or not."""
    return state_dir / FOLDER / f"{hashlib.sha256(_text(document)).hexdigest()[:12]}.json"


def written_in(state_dir: Path) -> Path:
    """The folder for what the plugin writes while the engine runs, whether it is there or not."""
    return state_dir / FOLDER / "now"


def put(state_dir: Path, document: Mapping[str, object]) -> None:
    """Write both, where they are not there yet. Raises ConfigError, OSError."""
    make_folder(state_dir / FOLDER, "state_dir", PRIVATE_MODE)
    make_folder(written_in(state_dir), "state_dir", PRIVATE_MODE)
    write_private(document_in(state_dir, document), _text(document))
    wanted = plugin_in(state_dir)
    if _is_whole(wanted / NAME):
        return
    shutil.rmtree(wanted, ignore_errors=True)
    made = Path(tempfile.mkdtemp(dir=wanted.parent))
    try:
        (made / NAME).mkdir()
        for name, source in _sources().items():
            (made / NAME / name).write_bytes(source)
        made.rename(wanted)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not _is_whole(wanted / NAME):  # else somebody else was faster
            raise


def _is_whole(folder: Path) -> bool:
    """What Python compiles there goes by the sources; else it holds them alone."""
    try:
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == _sources()
    except OSError:
        return False


def _text(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode()
