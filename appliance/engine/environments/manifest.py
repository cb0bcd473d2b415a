"""What is installed in an environment, as its manifest.json says. Pure, but for `load`, which reads the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from gateway.files import read_small

MANIFEST = "manifest.json"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BuiltFrom:
    """One source of the operator's, as it was when the environment was made. `sha256`: of the archive or the patch, or
    of a folder's names and contents; `commit`: as the sources file said, "" for a patch; `to`: the source that a patch
    was for, else ""."""

    key: str
    path: str
    sha256: str
    commit: str = ""
    to: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`set`: name in `sets.SETS`; `identity`: twelve digits, as the folder ends; `packages`: name -> version;
    `installed_at_s`: seconds since the epoch; `took_s`: from the first wheel on; `size_bytes`: on disk; `tool`: version
    of moe-appliance."""

    set: str
    identity: str
    lock_sha256: str
    python: str
    packages: dict[str, str]
    installed_at_s: float
    took_s: float
    size_bytes: int
    tool: str
    sources: tuple[BuiltFrom, ...] = field(default=())
    schema: Literal["moe-appliance.environment/1"] = "moe-appliance.environment/1"


_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def to_json(manifest: Manifest) -> bytes:
    """For manifest.json, and for programs."""
    return _MANIFEST.dump_json(manifest, indent=2) + b"\n"


def as_dict(manifest: Manifest) -> dict[str, Any]:
    """For JSON that holds more than the manifest."""
    found: dict[str, Any] = _MANIFEST.dump_python(manifest, mode="json")
    return found


def load(folder: Path) -> Manifest | None:
    """The manifest of an environment's folder; None when there is none that is ours: then it is not whole."""
    try:
        return _MANIFEST.validate_json(read_small(folder / MANIFEST, _MAX_BYTES))
    except (OSError, ValueError, ValidationError):
        return None
