"""The pairs of pairs.py in the state folder, and the plans that were chosen, as they were then. Touches both.

Rules:
- Written before the daemon acts on it: a daemon that is killed in the middle finds what it was about.
- A chosen plan is copied: its file may be edited or removed, and going back must lead to what served.
- A file that cannot be read is as good as none: appliance.toml holds then. A copy is found in the state folder that
  there is now: a backup may have been brought back to another place.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from appliance.backup_members import PLANS as FOLDER
from appliance.engine.pairs import Pairs
from appliance.engine.reach import file_barred
from appliance.files import make_folder
from appliance.plan import planfile
from appliance.plan.schema import Plan
from gateway.files import read_small, replace_file
from gateway.state import Pair

NAME = "pairs.json"
SIZE_MAX = 1_000_000
PLANS_KEPT = 8
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_PAIRS: TypeAdapter[Pairs] = TypeAdapter(Pairs)


def load(state_dir: Path) -> Pairs | None:
    """What was kept; None = nothing that can be read."""
    try:
        found = _PAIRS.validate_json(read_small(state_dir / NAME, SIZE_MAX))
    except (OSError, ValueError):
        return None
    before = None if found.before is None else _here(state_dir, found.before)
    return replace(found, current=_here(state_dir, found.current), before=before)


def _here(state_dir: Path, pair: Pair) -> Pair:
    if pair.plan_file is None:
        return pair
    copy = state_dir / FOLDER / Path(pair.plan_file).name
    moved = file_barred(copy) is None and file_barred(Path(pair.plan_file)) is not None
    return pair.model_copy(update={"plan_file": str(copy)}) if moved else pair


def save(state_dir: Path, pairs: Pairs) -> None:
    """Keep `pairs`. Raises OSError."""
    replace_file(state_dir / NAME, _PAIRS.dump_json(pairs, indent=1) + b"\n", 0o600)


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


def environments(state_dir: Path) -> frozenset[str]:
    """Names and ids of what may be started next: the present environment, the one that a trial goes back to, and the
    one that served last."""
    pairs = load(state_dir)
    last = frozenset({pairs.served} if pairs is not None and pairs.served else ())
    return last.union(pair.environment for pair in _needed(state_dir) if pair.environment)


def _in_use(state_dir: Path) -> set[Path]:
    return {Path(pair.plan_file) for pair in _needed(state_dir) if pair.plan_file}


def _needed(state_dir: Path) -> tuple[Pair, ...]:
    pairs = load(state_dir)
    return () if pairs is None else tuple(pair for pair in (pairs.current, pairs.before) if pair is not None)


def _tidy(folder: Path, in_use: set[Path]) -> None:
    plans = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in plans[PLANS_KEPT:]:
        if old not in in_use:
            old.unlink(missing_ok=True)
