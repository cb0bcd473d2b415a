"""Run one engine and kill everything below it when stdin reaches end of file.

Touches processes, signals, /proc and the record file. Run by path: `python -I -S guard.py --record FILE
--status-fd N --grace S -- ENGINE ARG...`; nothing imports it.

Rules:
- Standard library only, and little of it: this runs before every engine and stays for as long as it does.
- End of file on stdin is the only way to stop it: the daemon closes the pipe, or dies and the kernel does. A
  daemon that asks writes a word before: "s", or how long the grace of this stop is, seconds. Without one it has died,
  and the grace is `ORPHAN_GRACE_S` at most.
- The record is on disk before the engine's first instruction, so no engine lives that a sweep cannot find.
- The guard is a subreaper: an orphan below it becomes its child. So "no child left" (ECHILD) means that
  nothing is left below, and every death below ends in a SIGCHLD here. That is why nothing polls.
- The engine is what the kernel ends first when memory is short, and it leaves no core: weights of hundreds of GiB
  would fill the disk. What it starts inherits both.
- Once the engine is reaped its group id may be reused: from then on only descendants are signalled, by pid.

Status lines (JSON, one a line): started{pid,pgid}; failed{stage,errno,error}: the engine was never run;
exited{code,signal}; clean: nothing is left; stuck{pids}: these outlived SIGKILL and the record stays.
Exit code: 0 clean, 127 engine not run, 1 stuck.
"""
# pathlib would double the start-up time:
# ruff: noqa: PTH105, PTH108, PTH208

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SELF_EXIT_GRACE_S = 1.0
"""What is left below an engine that ended by itself gets this long between SIGTERM and SIGKILL."""
ORPHAN_GRACE_S = 5.0
"""Longest grace when the daemon died: with `HARD_S` nothing is left well within 10 s."""
HARD_S = 1.5
"""How long SIGKILL is repeated before the guard reports `stuck`; with the grace it stays below grace + 2 s."""
RESCAN_S = 0.05
"""Pause between two looks for processes that were forked while SIGKILL went round."""
NOT_RUN = 127
OOM_SCORE_ADJ = b"1000"
"""The most: first of all. Source: proc(5). Everybody may raise it; only CAP_SYS_RESOURCE may lower it again."""


def prctl(option: int, value: int) -> None:
    """Call prctl(2); raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_text(path: str) -> str:
    """The content of a small /proc file; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode("utf-8", "replace")
    finally:
        os.close(fd)


def stat_fields(pid: int | str) -> list[str]:
    """/proc/PID/stat from field 3 on (index 0 is the state); raises OSError.

    Source: proc_pid_stat(5). The command name may contain anything, so the line is cut after the last ')'.
    """
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def descendants(root: int) -> list[int]:
    """The pids of every live process below `root`, in any group or session."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError):
                fields = stat_fields(name)
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def write_record(path: str) -> None:
    """Write who the calling process is, atomically: pid, pgid, start_ticks, boot_id. Raises OSError."""
    record = {
        "pid": os.getpid(),
        "pgid": os.getpgid(0),
        "start_ticks": int(stat_fields("self")[19]),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id").strip(),
    }
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(record).encode() + b"\n")
    finally:
        os.close(fd)
    os.replace(temporary, path)


def yield_to_all() -> None:
    """Let the kernel take this process first, and no core of it. What cannot be set is no reason not to run."""
    with suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, OOM_SCORE_ADJ)
        finally:
            os.close(fd)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become_engine(argv: list[str], record: str, guard_pid: int, report_fd: int) -> None:
    """In the forked child: own session, record, default signals, exec. Does not return.

    A failure is written to `report_fd` as "stage errno"; a successful exec closes it.
    """
    stage = "record"
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard_pid:
            os._exit(NOT_RUN)
        write_record(record)
        yield_to_all()
        stage = "exec"
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is what we want
    except OSError as error:
        os.write(report_fd, f"{stage} {error.errno or 0}".encode())
    finally:
        os._exit(NOT_RUN)


class Guard:
    """One engine, from fork to the last process below it."""

    def __init__(self, record: str, status_fd: int, grace_s: float, argv: list[str]) -> None:
        self.record = record
        self.status_fd = status_fd
        self.grace_s = grace_s
        self.argv = argv
        self.engine = 0
        self.engine_ended = False
        self.stdin_ended = False
        self.asked = b""
        self.wake_fd = -1

    def say(self, event: str, **fields: object) -> None:
        """Write one status line. The daemon may be dead: then nobody needs it."""
        with suppress(OSError):
            os.write(self.status_fd, json.dumps({"event": event, **fields}).encode() + b"\n")

    def prepare(self) -> None:
        """Make the process a subreaper that only end of file on stdin can end."""
        os.set_inheritable(self.status_fd, False)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def spawn(self) -> bool:
        """Start the engine and report how that went; False when it was not run."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        guard_pid = os.getpid()
        # Blocked across the fork: a signal to the child must meet the engine's dispositions, not ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.engine = os.fork()
        if self.engine == 0:
            become_engine(self.argv, self.record, guard_pid, write_fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(write_fd)
        report = os.read(read_fd, 256).decode()
        os.close(read_fd)
        if not report:
            self.say("started", pid=self.engine, pgid=self.engine)
            return True
        stage, _, number = report.partition(" ")
        self.say("failed", stage=stage, errno=int(number), error=os.strerror(int(number)))
        return False

    def reap(self) -> bool:
        """Collect the dead and report the engine's end; True when nothing is left below the guard."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.engine and not self.engine_ended:
                self.engine_ended = True
                code = os.waitstatus_to_exitcode(status)
                self.say("exited", code=code if code >= 0 else None, signal=-code if code < 0 else None)

    def sleep(self, limit_s: float | None) -> None:
        """Wait for a death below, end of file on stdin, or `limit_s` seconds; None waits for ever."""
        poll = select.poll()
        poll.register(self.wake_fd, select.POLLIN)
        if not self.stdin_ended:
            poll.register(0, select.POLLIN)
        for fd, _ in poll.poll(None if limit_s is None else max(0.0, limit_s) * 1000):
            try:
                data = os.read(fd, 4096)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if fd == 0:
                self.asked = (self.asked + data)[:64]
                self.stdin_ended = not data

    def send(self, number: int) -> None:
        """Signal the engine's group while its id is surely ours; after that everything below, by pid."""
        with suppress(OSError):
            if not self.engine_ended:
                os.killpg(self.engine, number)
        if self.engine_ended or number == signal.SIGKILL:
            for pid in descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(pid, number)

    def kill_all(self, grace_s: float) -> bool:
        """End everything below: SIGTERM, `grace_s` seconds, SIGKILL; False when something outlives that.

        Processes that left the engine's group get their SIGTERM when the engine is gone: until then they
        are the engine's to end. From then on nobody has more than `SELF_EXIT_GRACE_S`.
        """
        deadline = time.monotonic() + grace_s
        asked_rest = self.engine_ended
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        while not self.reap():
            if self.engine_ended and not asked_rest:
                asked_rest = True
                self.send(signal.SIGTERM)
                self.send(signal.SIGCONT)
                deadline = min(deadline, time.monotonic() + SELF_EXIT_GRACE_S)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self.sleep(left_s)
        deadline = time.monotonic() + HARD_S
        while not self.reap():
            if time.monotonic() >= deadline:
                return False
            self.send(signal.SIGKILL)
            self.sleep(RESCAN_S)
        return True

    def grace_of_stop(self) -> float:
        """How long the engine has after SIGTERM, seconds."""
        if not self.asked:
            return min(self.grace_s, ORPHAN_GRACE_S)
        with suppress(ValueError):
            return min(self.grace_s, max(0.0, float(self.asked)))
        return self.grace_s

    def remove_record(self) -> None:
        """Remove the record unless a later guard has written its own there."""
        with suppress(OSError, ValueError, KeyError):
            if json.loads(read_text(self.record))["pid"] == self.engine:
                os.unlink(self.record)

    def run(self) -> int:
        """Start, wait for either end, clean up; the exit code."""
        self.prepare()
        started = self.spawn()
        while not (self.reap() or self.engine_ended or self.stdin_ended):
            self.sleep(None)
        if not self.kill_all(SELF_EXIT_GRACE_S if self.engine_ended else self.grace_of_stop()):
            self.say("stuck", pids=descendants(os.getpid()))
            return 1
        self.remove_record()
        self.say("clean")
        return 0 if started else NOT_RUN


def main(argv: list[str]) -> int:
    """Parse the fixed argument order and run; raises ValueError or IndexError on a wrong call."""
    split = argv.index("--")
    options = dict(zip(argv[0:split:2], argv[1:split:2], strict=True))
    engine = argv[split + 1 :]
    if not engine:
        raise ValueError("no engine after --")
    return Guard(options["--record"], int(options["--status-fd"]), float(options["--grace"]), engine).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
