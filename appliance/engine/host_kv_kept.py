"""Why the KV tier in host RAM is off, kept in the state folder. Touches that one file.

Rule: what cannot be read counts as not there, and the tier is tried; nobody is refused an engine over it.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from appliance.engine.adapter import HostTier
from appliance.files import read_regular, write_private
from gateway.state import Cause

NAME = "host_kv.json"
_LIMIT_BYTES = 65_536


def load(state_dir: Path, tier: HostTier | None) -> Cause | None:
    """Why this tier is off; None = nobody has found that it does not work, as it is configured now."""
    if tier is None:
        return None
    try:
        kept = json.loads(read_regular(state_dir / NAME, _LIMIT_BYTES))
        return Cause.model_validate(kept["off"]) if kept["mark"] == tier.mark else None
    except (OSError, ValueError, ValidationError, KeyError, TypeError):
        return None


def save(state_dir: Path, tier: HostTier, off: Cause | None) -> None:
    """Keep it; None = the tier is to be tried. Raises OSError."""
    file = state_dir / NAME
    if off is None:
        file.unlink(missing_ok=True)
    else:
        write_private(file, json.dumps({"mark": tier.mark, "off": off.model_dump()}).encode())
