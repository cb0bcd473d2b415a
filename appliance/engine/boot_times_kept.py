"""Keeps what the steps of the last good starts took. Touches boot-times.json in the state folder.

Rules:
- By a mark of what was started: another command, environment or KV tier has times of its own; `BOOTS_MAX` are kept,
  the latest.
- What cannot be read counts as not there: it costs an estimate and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.engine.adapter import Launch
from appliance.engine.boot_times import STEPS_MAX, Boot
from appliance.files import read_regular, write_private

NAME = "boot-times.json"
VERSION = 1
BOOTS_MAX = 8
NAME_MAX = 200
_LIMIT_BYTES = 262_144


def mark_of(launch: Launch, more: Sequence[str], key_file: Path) -> str:
    """What is started, in 16 letters. `launch`: with a port that is the same at every start; `more`: arguments that are
    added to it; `key_file`: of this start alone, and so left out."""
    told = json.dumps([launch.argv, sorted(launch.env.items()), tuple(more)]).replace(
        json.dumps(str(key_file))[1:-1], ""
    )
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def load(state_dir: Path, mark: str) -> Boot:
    """The last good start of this; () = there was none."""
    return _read(state_dir).get(mark, ())


def save(state_dir: Path, mark: str, boot: Boot) -> None:
    """Keep it as the latest. Raises OSError."""
    boots = {key: kept for key, kept in _read(state_dir).items() if key != mark}
    kept = dict([*boots.items(), (mark, boot)][-BOOTS_MAX:])
    shown = {key: [[name[:NAME_MAX], round(seconds, 3)] for name, seconds in steps] for key, steps in kept.items()}
    write_private(state_dir / NAME, json.dumps({"version": VERSION, "boots": shown}).encode())


def _read(state_dir: Path) -> dict[str, Boot]:
    try:
        kept = json.loads(read_regular(state_dir / NAME, _LIMIT_BYTES))
        if kept["version"] != VERSION:
            return {}
        return {str(mark): _boot(steps) for mark, steps in kept["boots"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _boot(steps: Any) -> Boot:
    """Raises ValueError, TypeError."""
    boot = tuple((str(name), float(seconds)) for name, seconds in steps)
    if len(boot) > STEPS_MAX or not all(math.isfinite(seconds) and seconds >= 0 for _, seconds in boot):
        raise ValueError("no boot of ours")
    return boot
