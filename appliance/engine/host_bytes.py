"""How much of a model a vLLM put into host RAM, by what its processes log. Pure.

Each process logs its own sum, vLLM's own offload in GiB with two decimals, again whenever it has grown, the residency
plugin in bytes: the last of each one counts.
Source: vLLM 0.26.0 and 0.32.0, model_executor/offloader/uva.py; appliance/residency/worker.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from appliance.units import GIB

_LINE = re.compile(r"Total CPU offloaded parameters: (\d+(?:\.\d+)?)")
PLACED = re.compile(r"moe-residency: rank (\d+): placed: \d+ bytes in VRAM, (\d+) bytes in host RAM")
"""What the residency plugin says once of each rank."""
_PROCESS = re.compile(r"\((\w+ pid=\d+)\)")


@dataclass(slots=True)
class HostBytes:
    """Takes the lines of one start as they come."""

    _bytes: dict[str, float] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """One line of the log."""
        found = _LINE.search(line)
        if found:
            process = _PROCESS.search(line)
            self._bytes[process.group(1) if process else ""] = float(found.group(1)) * GIB
        if placed := PLACED.search(line):
            self._bytes[f"rank {placed.group(1)}"] = float(placed.group(2))

    def total(self) -> int | None:
        """Over all processes, bytes; None = no line said so."""
        return int(sum(self._bytes.values())) if self._bytes else None
