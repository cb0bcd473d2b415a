"""How a run of the engine ended, as the guard and the system tell it. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

Stage = Literal["", "record", "exec", "guard"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended. `code` or `signal`, whichever applies; both None when the guard was lost.

    `stage` is empty for an engine that ran; "record" or "exec" when it never did, "guard" when the guard
    ended before it could tell; `error` is the system's text for these. `killed_by_us`: the guard was
    told to end it.
    """

    code: int | None
    signal: int | None
    stage: Stage = ""
    error: str = ""
    errno: int = 0
    killed_by_us: bool = False


def normalised(exit_: Exit) -> tuple[int | None, int | None]:
    """(code, signal), with a shell's 128 + N read as signal N."""
    if exit_.code is not None and exit_.code - 128 in set(signal.valid_signals()):
        return None, exit_.code - 128
    return exit_.code, exit_.signal


def signal_name(number: int) -> str:
    """SIGSEGV for 11; SIG60 for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
