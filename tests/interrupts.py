"""For tests: what a process that is to be interrupted is started with."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """`preexec_fn` of a process that heeds SIGINT as one that a terminal starts: a script's `&` leaves it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
