"""Say in one sentence why an engine ended, and what to type, from its exit, its last log lines and the kernel. Pure.

Order of evidence in `diagnose`; the first that speaks decides:
1. It was never run, or the guard was lost: the process side knows better than any log.
2. The kernel's word: a process that it killed for memory, an Xid of the card's own, SIGILL and SIGKILL. The log before
   them is about something else, or about what followed.
3. The log (from_log.py). Of vLLM's processes the one that failed first (root.py), its newest line that a table knows;
   of any other log the newest line that a table knows.
4. An Xid that a program brought about: it explains what the log only reports.
5. The exit itself: 0, 126, 127, a signal by name, a code with the words of what failed first.

Ids are stable: lifecycle.py counts equal ones, and the operator's notes refer to them. `Cause.retry` is False only
where the same start would end the same way. The tables are rows_*.py; what others measured becomes a cause in
observed.py.
"""

from __future__ import annotations

from appliance.engine.failures.context import Context, OomKill, PlanFigures, VramHolder
from appliance.engine.failures.diagnosis import diagnose
from appliance.engine.failures.ended import Exit, normalised, signal_name
from appliance.engine.failures.from_log import PATTERNS, from_log
from appliance.engine.failures.pattern import Pattern

__all__ = [
    "PATTERNS",
    "Context",
    "Exit",
    "OomKill",
    "Pattern",
    "PlanFigures",
    "VramHolder",
    "diagnose",
    "from_log",
    "normalised",
    "signal_name",
]
