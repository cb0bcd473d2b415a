"""The pairs of pairs.py in the state folder, and the plans that were chosen, as they were then. Touches both.

Rules:
- Written before the daemon acts on it: a daemon that is killed in the middle finds what it was about.
- A chosen plan is copied: its file may be edited or removed, and going back must lead to what served.
- A file that cannot be read is as good as none: appliance.toml holds then.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.engine.pairs import Pairs
from appliance.files import make_folder
from appliance.plan import planfile
from appliance.plan.schema import Plan
from gateway.files import read_small, replace_file
from gateway.state import Pair, Reverted

NAME = "pairs.json"
FOLDER = "plans"
SIZE_MAX = 1_000_000
PLANS_KEPT = 8
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


class _Kept(BaseModel):
    model_config = ConfigDict(extra="ignore")

    toml: Pair = Pair()
    current: Pair = Pair()
    before: Pair | None = None
    begun: bool = False
    prove: bool = False
    reverted: Reverted | None = None


def load(state_dir: Path) -> Pairs | None:
    """What was kept; None = nothing that can be read."""
    try:
        kept = _Kept.model_validate_json(read_small(state_dir / NAME, SIZE_MAX))
    except (OSError, ValueError, ValidationError):
        return None
    return Pairs(**{name: getattr(kept, name) for name in _Kept.model_fields})


def save(state_dir: Path, pairs: Pairs) -> None:
    """Keep `pairs`. Raises OSError."""
    kept = _Kept.model_validate(asdict(pairs))
    replace_file(state_dir / NAME, kept.model_dump_json(indent=1).encode() + b"\n", 0o600)


def keep_plan(state_dir: Path, plan: Plan, named: Path) -> Path:
    """A copy of `plan`, under its identity; `named`: the file that it is from, for the copy's name. The oldest copies
    go, but those that are in use. Raises OSError, ConfigError and PlanError."""
    folder = state_dir / FOLDER
    make_folder(folder, "state_dir")
    stem = _SAFE.sub("-", named.stem).strip("-.")[:60] or "plan"
    path = folder / f"{stem}-{plan.identity.removeprefix('sha256:')[:12]}.json"
    planfile.save(plan, path, overwrite=True)
    _tidy(folder, {path, *_in_use(state_dir)})
    return path


def _in_use(state_dir: Path) -> set[Path]:
    pairs = load(state_dir)
    if pairs is None:
        return set()
    return {Path(pair.plan_file) for pair in (pairs.current, pairs.before) if pair is not None and pair.plan_file}


def _tidy(folder: Path, in_use: set[Path]) -> None:
    plans = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in plans[PLANS_KEPT:]:
        if old not in in_use:
            old.unlink(missing_ok=True)
