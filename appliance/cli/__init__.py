"""The command line: `moe-appliance VERB`. One module per group of verbs; app.py puts them together.

Touches signals, standard output and error. Errors are printed here, with their remedy.

Rule: nothing of ours is imported before `main` runs: it takes half a second, and Ctrl-C in it must be quiet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

STOPPED = 130


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not running, 78 configuration, 130 Ctrl-C."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not with nohup or `&`
            signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))  # nothing runs yet that had to be ended
        from appliance.cli.app import run

        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:
        code = STOPPED
    if code == STOPPED:
        _leave()
    sys.exit(code)


def _leave() -> None:
    """End without the interpreter's own end: an import that Ctrl-C broke off can make that crash."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stdout.flush()
    os._exit(STOPPED)
