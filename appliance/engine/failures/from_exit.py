"""What the guard, the kernel and the exit itself say of an end. Pure."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence

from appliance.engine.failures.context import Context
from appliance.engine.failures.ended import Exit, signal_name
from appliance.engine.failures.from_log import booted, last_words
from appliance.engine.failures.pattern import EVIDENCE_CHARS
from appliance.engine.failures.rows_ends import ILLEGAL_ID, ILLEGAL_REMEDY, ILLEGAL_TITLE
from appliance.printable import printable, quoted
from gateway.state import Cause

LOG_REMEDY = "moe-appliance status (shows the engine's last log lines)"
_ENOENT = 2
_EACCES = 13


def not_run(exit_: Exit, context: Context) -> Cause:
    """Of an engine that was never run, or whose guard was lost."""
    if exit_.stage == "guard":
        return Cause(
            id="engine.guard_lost",
            title=f"The process that guards the engine ended first ({exit_.error}), so the engine was ended too.",
            remedy=LOG_REMEDY,
        )
    if exit_.stage == "record":
        where = shlex.quote(printable(context.runtime_dir))
        return Cause(
            id="engine.record_failed",
            title=f"The engine was not started: its record cannot be written ({exit_.error}).",
            remedy=f"df -h {where}; ls -ld {where}   shows why; or set another runtime_dir",
        )
    if exit_.errno == _ENOENT:  # the program, or the interpreter in its first line
        return Cause(
            id="engine.not_found",
            title=f"The program {context.command} was not found.",
            remedy="install it, or correct the command in appliance.toml",
        )
    if exit_.errno == _EACCES:
        return Cause(
            id="engine.not_executable",
            title=f"The program {context.command} may not be executed ({exit_.error}).",
            remedy=f"chmod +x {context.command}, and check that its folder is not mounted noexec",
        )
    return Cause(
        id="engine.exec_failed",
        title=f"The program {context.command} cannot be started ({exit_.error}).",
        remedy=f"file {context.command} (is it built for this machine?)",
    )


def killed(number: int | None, killed_by_us: bool) -> Cause | None:
    """Of a signal that says why by itself."""
    if number == signal.SIGILL:
        return Cause(id=ILLEGAL_ID, title=ILLEGAL_TITLE, remedy=ILLEGAL_REMEDY, retry=False)
    if number == signal.SIGKILL and not killed_by_us:
        return Cause(
            id="engine.killed",
            title="The engine was killed by SIGKILL (kernel out-of-memory killer, or somebody).",
            remedy="journalctl -k | grep -i oom",
        )
    return None


def from_exit(code: int | None, number: int | None, log_tail: Sequence[str], context: Context) -> Cause:
    """The exit alone, with the words of what failed first."""
    process, words = last_words(log_tail, context)
    if process and not context.served and booted(log_tail):
        return _first_request(process, words)
    evidence = printable(words, EVIDENCE_CHARS) if process else ""
    if number is not None:
        name = signal_name(number)
        by = " by moe-appliance itself" if number == signal.SIGKILL else ""  # others: see `killed`
        title = f"The engine was ended by {name}{by}."
        return Cause(id=f"engine.signal.{name.lower()}", title=title, remedy=LOG_REMEDY, evidence=evidence)
    if code == 0:
        said = f"; its process {process} said: {quoted(words)}" if process else ""
        title = f"The engine ended without an error (exit code 0) although nobody asked it to{said}."
        return Cause(id="engine.exit_unasked", title=title, remedy=LOG_REMEDY, evidence=evidence)
    if code == 127:
        return Cause(
            id="engine.not_found",
            title=f"{context.command} could not find a program or a library that it starts (exit code 127).",
            remedy="install it, or correct the command in appliance.toml",
        )
    if code == 126:
        return Cause(
            id="engine.not_executable",
            title=f"{context.command} may not execute a program that it starts (exit code 126).",
            remedy="chmod +x the program that the command in appliance.toml names",
        )
    quote = f": {quoted(words)}" if words else ", and it logged nothing"
    shown = "an unknown exit code" if code is None else f"exit code {code}"
    title = f"The engine ended with {shown}{quote}."
    return Cause(id="engine.exit_code", title=title, remedy=LOG_REMEDY, evidence=evidence)


def _first_request(process: str, words: str) -> Cause:
    """It began to serve and was never ready: the first completion ended it."""
    return Cause(
        id="engine.first_request",
        title=f"The engine started, and its first request ended it; {process} said: {quoted(words)}.",
        remedy="moe-appliance engine command (says why each flag is there): --block-size, kernels and quantization "
        "must be those of the model's recipe",
        evidence=printable(words, EVIDENCE_CHARS),
    )
