"""What is said when a process of vLLM is gone and none has said why. Pure.

Source: vLLM 0.26.0 and 0.32.0 measured: a process killed from outside leaves these lines and nothing else.
"""

from __future__ import annotations

import re
import signal

from appliance.engine.failures.context import Context
from appliance.engine.failures.ended import signal_name
from appliance.engine.failures.pattern import row
from gateway.state import Cause

_BY_KERNEL = "journalctl -k -b | grep -iE 'oom|xid|segfault'"
ILLEGAL_ID = "engine.illegal_instruction"
ILLEGAL_TITLE = "The processor does not know an instruction that the engine uses; most likely it lacks AVX2."
ILLEGAL_REMEDY = "lscpu | grep -o avx2 (nothing: use a machine with AVX2, or an engine built for this one)"
_SIGNALS = {
    signal.SIGILL: (ILLEGAL_ID, ILLEGAL_TITLE, ILLEGAL_REMEDY, False),
    signal.SIGBUS: (
        "engine.shm_small",
        "A process of the engine was ended by SIGBUS: mostly /dev/shm is too small, or a file was cut under it.",
        "df -h /dev/shm; larger: mount -o remount,size=32G /dev/shm, or: docker run --ipc host --shm-size 32g",
        True,
    ),
}
"""Signal -> what it says by itself: id, title, remedy, retry."""


def died(cause: Cause, match: re.Match[str], context: Context) -> Cause:
    """The exit code of a process, negative for a signal, in words."""
    code = match["code"]
    number = -int(code) if re.fullmatch(r"-\d+", code) else 0
    if number in _SIGNALS:
        id_, title, remedy, retry = _SIGNALS[signal.Signals(number)]
        return cause.model_copy(update={"id": id_, "title": title, "remedy": remedy, "retry": retry})
    if number:
        return cause.model_copy(update={"title": f"{cause.title[:-1]}: {signal_name(number)}."})
    return cause


ROWS = (
    row(
        r"Fatal Python error: Illegal instruction|^Illegal instruction",
        ILLEGAL_ID,
        ILLEGAL_TITLE,
        ILLEGAL_REMEDY,
        retry=False,
    ),
    row(
        r"(?:Worker proc|WorkerProc) (?P<process>\S+) died unexpectedly(?: \(exit code: (?P<code>[^)]*)\))?",
        "engine.worker_died",
        "The engine's process {process} was ended from outside or crashed, and said nothing.",
        _BY_KERNEL,
        refine=died,
    ),
    row(
        r"WorkerProc initialization failed",
        "engine.worker_died",
        "A worker process of the engine was ended from outside or crashed while it loaded, and said nothing.",
        _BY_KERNEL,
    ),
    row(
        r"RPC call to (?P<method>\w+) timed out",
        "engine.worker_silent",
        "A worker of the engine did not answer {method} in time.",
        "moe-appliance preflight --deep (whether the cards reach each other); nvidia-smi",
    ),
    row(
        r"EngineDeadError|engine core exited unexpectedly|Engine core initialization failed"
        r"|EngineCore encountered an issue|[Ee]ngine core proc(?:ess)? \S+ died unexpectedly",
        "engine.core_died",
        "The engine's core process was ended from outside or crashed, and said nothing.",
        _BY_KERNEL,
    ),
)
