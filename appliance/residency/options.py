"""What the environment tells the plugin. Pure.

A variable that is not set has its default; one that cannot be read stops the engine with its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .document import FILE
from .errors import ResidencyError

RESIDENCY = "MOE_RESIDENCY_"
"""How all of the variables begin."""
FOLDER = "MOE_RESIDENCY_STATE"
STAGING = "MOE_RESIDENCY_STAGING_TOKENS"
FOLLOW = "MOE_RESIDENCY_FOLLOW_MIB_PER_S"
FOLLOW_MIB_PER_S = 2048
"""4 % of a link of 50 GB/s."""


@dataclass(frozen=True, slots=True)
class Options:
    """`file`: the document; `folder`: for what the plugin writes, None = nothing. `staging_tokens`: steps of more
    tokens read cold rows from staging, 0 = none does, None = as staging.py says. `follow_mib_per_s`: MiB/s of the link
    for exchanging rows, 0 = residency stays as the document says."""

    file: Path
    folder: Path | None
    staging_tokens: int | None
    follow_mib_per_s: int


def options(environment: Mapping[str, str]) -> Options:
    """Raises ResidencyError."""
    if not (file := environment.get(FILE)):
        raise ResidencyError(f"{FILE} is not set; it names the file of moe-appliance plan export --to residency")
    folder = environment.get(FOLDER)
    return Options(
        Path(file),
        Path(folder) if folder else None,
        _count(environment, STAGING, 0) if environment.get(STAGING) else None,
        _count(environment, FOLLOW, FOLLOW_MIB_PER_S),
    )


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    said = environment.get(name) or str(default)
    if not (said.isascii() and said.isdecimal() and len(said) <= 9):
        raise ResidencyError(f"{name} is {said!r}, not a whole number from 0; set it so, or leave it out")
    return int(said)
