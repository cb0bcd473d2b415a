"""Say in one sentence why an engine ended, and what to type, from its exit and its last log lines. Pure.

Order of evidence in `diagnose`; the first that speaks decides:
1. It was never run, or the guard was lost: the process side knows better than any log.
2. SIGILL and SIGKILL: the kernel's word; the log before them is about something else.
3. A log line that the table knows, the newest first.
4. The exit itself: 0, 126, 127, a signal by name, a code with the last log line.

Ids are stable: lifecycle.py counts equal ones, and the operator's notes refer to them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from appliance.errors import DEMO_EXTRA
from gateway.state import Cause

LOG_REMEDY = "moe-appliance status (shows the engine's last log lines)"
LIBRARIES_REMEDY = "apt-get install libgomp1 libstdc++6"
MODEL_REMEDY = "delete the model file and start again, so that it is fetched anew"
QUOTE_CHARS = 200

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


@dataclass(frozen=True, slots=True)
class Context:
    """What the log does not say. `command`: the program that was started, argv[0]."""

    command: str = "the engine"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A row of the table: `title` and `remedy` may use the expression's named groups."""

    expression: re.Pattern[str]
    id: str
    title: str
    remedy: str


def _row(expression: str, id_: str, title: str, remedy: str) -> Pattern:
    return Pattern(re.compile(expression), id_, title, remedy)


PATTERNS = (
    _row(
        r"failed to open GGUF file\s*'?(?P<path>[^'\n]*?)'?(?: \(|$)",
        "engine.model_missing",
        "The model file {path} cannot be opened.",
        "put the model there, or correct the path in appliance.toml",
    ),
    _row(
        r"failed to read key-value pairs",
        "engine.model_header_cut",
        "The model file is cut off or is no GGUF file: its header cannot be read.",
        MODEL_REMEDY,
    ),
    _row(
        r"data is not within the file bounds",
        "engine.model_cut",
        "The model file is incomplete: it ends before its last tensor.",
        MODEL_REMEDY,
    ),
    _row(
        r"couldn't bind HTTP server socket(?:.*port: (?P<port>\d+))?",
        "engine.port_taken",
        "Another program holds the engine's port {port}.",
        "ss -ltnp (find the program and end it), or give the engine another port",
    ),
    _row(
        r"(?i)address already in use",
        "engine.port_taken",
        "Another program holds the engine's port.",
        "ss -ltnp (find the program and end it), or give the engine another port",
    ),
    _row(
        r"(?P<library>libgomp\.so\.1|libstdc\+\+\.so\.6): cannot open shared object file",
        "engine.library_missing",
        "The system library {library} is not installed.",
        LIBRARIES_REMEDY,
    ),
    _row(
        r"version [`'](?P<symbol>(?:GLIBCXX|CXXABI|GOMP)_[\d.]+)' not found",
        "engine.library_old",
        "A system library is too old for the engine: {symbol} is missing.",
        "use Debian 12, Ubuntu 22.04 or later, then: " + LIBRARIES_REMEDY,
    ),
    _row(
        r"(?P<library>[\w.+-]+\.so[\d.]*): cannot open shared object file",
        "engine.library_missing",
        "The shared library {library} is not installed.",
        "install the package that contains {library} (apt-file search {library})",
    ),
    _row(
        r"CPU Offloading is currently only supported on|unrecognized arguments: --kv-offloading"
        r"|cpu_bytes_to_use must be",
        "engine.host_kv",
        "The engine cannot keep KV cache in host RAM as it was told to.",
        "set [engine] host_kv_gib = 0, or host_kv_args as your engine wants them",
    ),
    _row(
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|cudaMalloc failed: out of memory",
        "engine.gpu_memory",
        "The GPU has not enough free memory for the model and its caches.",
        "nvidia-smi (end other programs on the GPU), or lower the context or the number of streams",
    ),
    _row(
        r"cudaErrorOperatingSystem|CUDA_ERROR_OPERATING_SYSTEM|CUDA(?: driver)? error: OS call failed"
        r"|CUDA_ERROR_UNKNOWN|CUDA(?: driver)? error: unknown error|cuInit\D{0,40}\b(?:304|999)\b",
        "engine.cuda_devices",
        "CUDA does not reach the cards: the driver was loaded anew since the service started, or a device is closed.",
        "sudo systemctl restart moe-appliance (devices are opened to it at its start); then: moe-appliance preflight",
    ),
    _row(
        r"No module named '(?P<module>xllamacpp|gguf)(?:\.[^']*)?'",
        "engine.module_missing",
        "The Python package {module} is not installed.",
        DEMO_EXTRA,
    ),
    _row(
        r"No module named '?(?P<module>[\w.]+)'?",
        "engine.module_missing",
        "The Python package {module} is not installed for the engine's interpreter.",
        "pip install {module} (into the environment that runs the engine)",
    ),
    _row(
        r"(?P<program>[^\s:]+): (?:command )?not found$",
        "engine.not_found",
        "The program {program} was not found.",
        "install it, or correct the command in appliance.toml",
    ),
)
"""Read from top to bottom for each line. Source: llama.cpp's lines measured with xllamacpp 2026.10.11549."""


def normalised(exit_: Exit) -> tuple[int | None, int | None]:
    """(code, signal), with a shell's 128 + N read as signal N."""
    if exit_.code is not None and exit_.code - 128 in set(signal.valid_signals()):
        return None, exit_.code - 128
    return exit_.code, exit_.signal


def diagnose(exit_: Exit, log_tail: Sequence[str], context: Context) -> Cause:
    """Why the run ended; `log_tail` oldest line first. Total: there is always an answer."""
    if exit_.stage:  # 1
        return _not_run(exit_, context)
    code, number = normalised(exit_)
    return (
        _kernel(number, exit_.killed_by_us)  # 2
        or from_log(log_tail)  # 3
        or _from_exit(code, number, log_tail, context)  # 4
    )


def from_log(log_tail: Sequence[str]) -> Cause | None:
    """What the newest line that the table knows says, or None."""
    for line in reversed(log_tail):
        for row in PATTERNS:
            match = row.expression.search(line)
            if match:
                groups = {name: text or "" for name, text in match.groupdict().items()}
                title = re.sub(r" +(?=[. ])", "", row.title.format(**groups))
                return Cause(id=row.id, title=title, remedy=row.remedy.format(**groups))
    return None


def _not_run(exit_: Exit, context: Context) -> Cause:
    if exit_.stage == "guard":
        return Cause(
            id="engine.guard_lost",
            title=f"The process that guards the engine ended first ({exit_.error}), so the engine was ended too.",
            remedy=LOG_REMEDY,
        )
    if exit_.stage == "record":
        return Cause(
            id="engine.record_failed",
            title=f"The engine was not started: its record cannot be written ({exit_.error}).",
            remedy="make the state folder writable for the user that runs moe-appliance; df -h",
        )
    if exit_.errno == 2:  # ENOENT: the program, or the interpreter in its first line
        return Cause(
            id="engine.not_found",
            title=f"The program {context.command} was not found.",
            remedy="install it, or correct the command in appliance.toml",
        )
    if exit_.errno == 13:  # EACCES
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


def _kernel(number: int | None, killed_by_us: bool) -> Cause | None:
    if number == signal.SIGILL:
        return Cause(
            id="engine.illegal_instruction",
            title="The processor does not know an instruction that the engine uses; most likely it lacks AVX2.",
            remedy="lscpu | grep -o avx2 (nothing: use a machine with AVX2, or an engine built for this one)",
        )
    if number == signal.SIGKILL and not killed_by_us:
        return Cause(
            id="engine.killed",
            title="The engine was killed by SIGKILL (kernel out-of-memory killer, or somebody).",
            remedy="journalctl -k | grep -i oom",
        )
    return None


def _from_exit(code: int | None, number: int | None, log_tail: Sequence[str], context: Context) -> Cause:
    if number is not None:
        name = signal_name(number)
        by = " by moe-appliance itself" if number == signal.SIGKILL else ""  # others: see _kernel
        return Cause(
            id=f"engine.signal.{name.lower()}", title=f"The engine was ended by {name}{by}.", remedy=LOG_REMEDY
        )
    if code == 0:
        return Cause(
            id="engine.exit_unasked",
            title="The engine ended without an error (exit code 0) although nobody asked it to.",
            remedy=LOG_REMEDY,
        )
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
    last = next((line.strip() for line in reversed(log_tail) if line.strip()), "")
    quote = f': "{last[:QUOTE_CHARS]}"' if last else ", and it logged nothing"
    shown = "an unknown exit code" if code is None else f"exit code {code}"
    return Cause(id="engine.exit_code", title=f"The engine ended with {shown}{quote}.", remedy=LOG_REMEDY)


def signal_name(number: int) -> str:
    """SIGSEGV for 11; SIG60 for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
