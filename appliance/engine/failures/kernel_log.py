"""What the kernel said: Xids of the cards, and whom it killed for memory. Pure.

Xids that tell of the card decide before any log line; those that a program of its own brings about are told where the
log says nothing that is known. Source: NVIDIA's catalogue of Xid errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.box.host import Xid
from appliance.engine.failures.context import OomKill
from appliance.engine.failures.pattern import EVIDENCE_CHARS
from appliance.printable import printable
from appliance.units import gib
from gateway.state import Cause

_KILL = re.compile(
    r"(?P<group>Memory cgroup out of memory|Out of memory): Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)"
)
_HELD = re.compile(r"(?:anon|file|shmem)-rss:(\d+)kB")


@dataclass(frozen=True, slots=True)
class _Meaning:
    """`card`: it is the card's, not a program's. `retry`: whether the same start may go well."""

    what: str
    remedy: str
    card: bool = True
    retry: bool = True


_RESET = "with the engine stopped: nvidia-smi --gpu-reset, or reboot; then: moe-appliance preflight"
_REBOOT = "reboot; then: moe-appliance preflight"
_PROGRAM = "moe-appliance restart; when it comes again, another version of the engine"
_MEMORY_ERROR = _Meaning("a memory error", _RESET)
_STOPPED = _Meaning("the card's controller or firmware stopped", _REBOOT, retry=False)
_MISTAKE = _Meaning("a mistake of a program, mostly the engine", _PROGRAM, card=False)
_XIDS = {
    13: _MISTAKE,
    31: _MISTAKE,
    43: _MISTAKE,
    48: _MEMORY_ERROR,
    62: _STOPPED,
    63: _MEMORY_ERROR,
    64: _MEMORY_ERROR,
    74: _Meaning("an error on NVLink", _RESET),
    79: _Meaning("the card fell off the bus", "power off, reseat the card and its plug, start", retry=False),
    94: _MEMORY_ERROR,
    95: _MEMORY_ERROR,
    109: _MISTAKE,
    119: _STOPPED,
    120: _STOPPED,
    154: _Meaning("the card wants a reset or a reboot", _RESET, retry=False),
}
_OTHER = _Meaning("an error of the card or of a program", "moe-appliance preflight", card=False)


def card_fault(xids: Iterable[Xid]) -> Cause | None:
    """The first Xid that is the card's own; the others follow from it."""
    return next((_xid(xid) for xid in xids if _XIDS.get(xid.number, _OTHER).card), None)


def program_fault(xids: Iterable[Xid]) -> Cause | None:
    """The first of any other Xid."""
    return next((_xid(xid) for xid in xids if not _XIDS.get(xid.number, _OTHER).card), None)


def _xid(xid: Xid) -> Cause:
    meaning = _XIDS.get(xid.number, _OTHER)
    return Cause(
        id="engine.xid",
        title=f"The kernel reports Xid {xid.number} of the card at {printable(xid.bus_id)}: {meaning.what}.",
        remedy=meaning.remedy,
        evidence=printable(xid.line, EVIDENCE_CHARS),
        retry=meaning.retry,
    )


def oom_kills(lines: Iterable[str]) -> tuple[OomKill, ...]:
    """The processes that the kernel killed for memory, by lines of its log."""
    found = []
    for line in lines:
        if match := _KILL.search(line):
            held = sum(int(size) for size in _HELD.findall(line)) * 1024
            found.append(OomKill(int(match["pid"]), match["name"], held, match["group"].startswith("Memory")))
    return tuple(found)


def oom_killed(kill: OomKill) -> Cause:
    """The kernel killed a process of the engine."""
    held = f" with {gib(kill.resident_bytes)}" if kill.resident_bytes else ""
    whose = "the engine's memory limit was reached" if kill.cgroup else "the machine ran out of memory"
    raised = "raise MemoryMax of the unit, or " if kill.cgroup else ""
    return Cause(
        id="engine.oom_kill",
        title=f"The kernel killed the engine's process {kill.pid} ({printable(kill.process)}){held}: {whose}.",
        remedy=f"{raised}pin less: moe-appliance plan make --max-host-gib GIB, and [engine] host_kv_gib; then: "
        "moe-appliance preflight",
    )
