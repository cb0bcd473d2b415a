"""What the fake vLLM can be told to do wrong. Pure, but for a file that is named.

`at` names a moment of the boot: a text that the first line of that moment has, for instance "Starting to load model".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class VllmKnobs:
    """`boot_s`: the whole boot, its lines spread over it. `fail_at`: say `fail_log` there and exit with `exit_code`.
    `kill_core_at`: the core dies there of SIGKILL. `hang_at`: nothing more is said or done. `plugin_line`: said before
    the weights are loaded, "" = none. `orphans`: children outlive the server, as 0.32's do. `engine`: knobs of the fake
    engine."""

    boot_s: float = 0.3
    fail_at: str = ""
    fail_log: tuple[str, ...] = ()
    exit_code: int = 1
    kill_core_at: str = ""
    hang_at: str = ""
    plugin_line: str = ""
    orphans: bool = False
    engine: dict[str, Any] = field(default_factory=dict)


def read(text: str) -> VllmKnobs:
    """From JSON, or from the file behind an @. Raises ValueError on a name that there is not."""
    found: dict[str, Any] = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text or "{}")
    unknown = found.keys() - {one.name for one in fields(VllmKnobs)}
    if unknown:
        raise ValueError(f"no knob of the fake vLLM is called {sorted(unknown)[0]!r}")
    return VllmKnobs(**found | {"fail_log": tuple(found.get("fail_log", ()))})
