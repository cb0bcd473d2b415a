"""How much of a model a vLLM put into host RAM, by what its processes log. Pure.

Each process logs its own sum, in GiB with two decimals, again whenever it has grown: the last of each one counts.
Source: vLLM 0.26.0 and 0.32.0, model_executor/offloader/uva.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from appliance.units import GIB

_LINE = re.compile(r"Total CPU offloaded parameters: (\d+(?:\.\d+)?)")
_PROCESS = re.compile(r"\((\w+ pid=\d+)\)")


@dataclass(slots=True)
class HostBytes:
    """Takes the lines of one start as they come."""

    _gib: dict[str, float] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """One line of the log."""
        found = _LINE.search(line)
        if found:
            process = _PROCESS.search(line)
            self._gib[process.group(1) if process else ""] = float(found.group(1))

    def total(self) -> int | None:
        """Over all processes, bytes; None = no line said so."""
        return int(sum(self._gib.values()) * GIB) if self._gib else None
