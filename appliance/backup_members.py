"""What a backup holds, and where each part of it belongs. Pure.

Rules:
- A list of what is taken, never a folder: keys of engines, models, logs, sockets, locks, admins' first token and the
  secret that signs logins are not in it. After a restore admins log in anew.
- What is learned is kept as small files at the top of `state_dir`, .json or .toml: whatever is there is taken, and so
  are the plans that were chosen, in `plans/`. Environments of engines are gigabytes that `engine install` makes again.
- A name in an archive is one of these or it is refused; no path in it is ever followed.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from appliance.config import Config, Paths

FORMAT = 1
MANIFEST = "manifest.json"
CONFIG = "config/appliance.toml"
SEATS = "config/seats.toml"
ADMINS = "config/admins.toml"
PLAN = "config/plan.json"
LEDGER = "state/ledger.db"
PLANS = "plans"
"""Folder in `state_dir` of the plans that were chosen."""
SMALL_MAX_BYTES = 16 * 1024 * 1024
"""The largest of the small files; a plan has 200 KiB."""
_LEARNED = re.compile(rf"state/((?:{PLANS}/)?[A-Za-z0-9][A-Za-z0-9._-]{{0,99}}\.(?:json|toml))")


class Member(BaseModel):
    """One file of an archive."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    bytes: int
    sha256: str


class Manifest(BaseModel):
    """What an archive says of itself: it comes first in it. `made_at`: ISO 8601, UTC."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    version: str
    made_at: str
    members: tuple[Member, ...]


def is_known(name: str) -> bool:
    """Whether an archive may hold it."""
    return name in (CONFIG, SEATS, ADMINS, PLAN, LEDGER) or _LEARNED.fullmatch(name) is not None


def target(name: str, config_file: Path, config: Config, paths: Paths) -> Path | None:
    """Where a member belongs on this box; None when this configuration has no place for it: a plan without `[plan]
    file`. `config_file`: where appliance.toml is, or goes."""
    match name:
        case "config/appliance.toml":
            return config_file
        case "config/seats.toml":
            return paths.seats_file
        case "config/admins.toml":
            return paths.admins_file
        case "config/plan.json":
            return config.plan.file
        case _:
            return paths.state_dir / name.removeprefix("state/")


def is_learned(name: str) -> bool:
    """Whether a member is one of those that are taken whatever they are."""
    return _LEARNED.fullmatch(name) is not None
