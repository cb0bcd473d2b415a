"""The guard with real processes: whatever happens, nothing is left and the status lines say how it went."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

GUARD = Path(__file__).parents[2] / "appliance/engine/guard.py"
LIMIT_S = 10.0
PY_IGNORES_TERM = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)


def read_line(fd: int) -> str:
    """One line, unbuffered; '' at end of file."""
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([fd], [], [], LIMIT_S)[0], f"nothing came after {line!r}"
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return line.decode().rstrip("\n")


def await_end(pid: int, limit_s: float = LIMIT_S) -> None:
    """Wait until `pid` is gone or a zombie."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], limit_s)[0], f"{pid} is still alive"
    finally:
        os.close(fd)


class Run:
    """A guard started by the test, or by a process between the two."""

    def __init__(self, record: Path, argv: list[str], grace_s: float, between: bool) -> None:
        self.record = record
        self.status, status_w = os.pipe()
        guard = [sys.executable, "-I", "-S", str(GUARD), "--record", str(record), "--status-fd", str(status_w)]
        guard += ["--grace", str(grace_s), "--", *argv]
        if between:
            code = (
                "import subprocess, sys; subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE,"
                " pass_fds=[int(sys.argv[1])], start_new_session=True).wait()"
            )
            guard = [sys.executable, "-c", code, str(status_w), *guard]
        self.parent = subprocess.Popen(
            guard,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[status_w],
            start_new_session=True,
        )
        os.close(status_w)

    def event(self) -> dict[str, Any]:
        line = read_line(self.status)
        return json.loads(line) if line else {}

    def events(self) -> list[dict[str, Any]]:
        """All that is still to come."""
        found = []
        while event := self.event():
            found.append(event)
        return found

    def line(self) -> str:
        assert self.parent.stdout is not None
        return read_line(self.parent.stdout.fileno())

    def stop(self, *, asked: bool = False, word: bytes = b"s") -> None:
        assert self.parent.stdin is not None
        if asked:
            self.parent.stdin.write(word)
        self.parent.stdin.close()

    def close(self) -> None:
        self.stop()
        self.parent.wait(LIMIT_S)
        assert self.parent.stdout is not None
        self.parent.stdout.close()
        os.close(self.status)


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def _start(*argv: str, grace_s: float = 5.0, between: bool = False) -> Run:
        runs.append(Run(tmp_path / "engine.json", list(argv), grace_s, between))
        return runs[-1]

    yield _start
    for run in runs:
        run.close()


def sh(script: str) -> tuple[str, str, str]:
    return "/bin/sh", "-c", script


CLEAN = {"event": "clean"}


def test_end_of_file_ends_the_engine_and_removes_the_record(start: Start) -> None:
    run = start("sleep", "60")
    started = run.event()
    assert started["event"] == "started"
    assert started["pgid"] == started["pid"]
    assert json.loads(run.record.read_text())["pid"] == started["pid"]
    run.stop()
    assert run.events() == [{"event": "exited", "code": None, "signal": signal.SIGTERM}, CLEAN]
    assert run.parent.wait(LIMIT_S) == 0
    assert not run.record.exists()


def test_kill_9_of_the_parent_ends_the_engine(start: Start) -> None:
    run = start(*sh("sleep 60 & echo $!; wait"), between=True)
    engine = run.event()["pid"]
    child = int(run.line())
    run.parent.kill()
    assert [event["event"] for event in run.events()] == ["exited", "clean"]
    await_end(engine)
    await_end(child)


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    run = start(sys.executable, "-c", PY_IGNORES_TERM, grace_s=0.3)
    run.event()
    assert run.line() == "up"
    before = time.monotonic()
    run.stop()
    assert run.events() == [{"event": "exited", "code": None, "signal": signal.SIGKILL}, CLEAN]
    assert 0.3 <= time.monotonic() - before < 2.3


def test_workers_get_one_second_once_the_engine_has_ended_however_long_the_grace(start: Start) -> None:
    run = start(*sh(f'{sys.executable} -c "{PY_IGNORES_TERM}" & trap "exit 0" TERM; wait'), grace_s=30.0)
    run.event()
    assert run.line() == "up"
    before = time.monotonic()
    run.stop(asked=True)
    assert run.events() == [{"event": "exited", "code": 0, "signal": None}, CLEAN]
    assert time.monotonic() - before < 3.0


def test_descendants_in_their_own_sessions_are_ended(start: Start) -> None:
    run = start(*sh("setsid sh -c 'sleep 60 & echo $!; echo $$; wait' & wait"))
    run.event()
    pids = [int(run.line()), int(run.line())]
    run.stop()
    assert run.events()[-1] == CLEAN
    for pid in pids:
        await_end(pid)


def test_a_double_fork_that_ignores_sigterm_is_killed(start: Start) -> None:
    orphan = f'(setsid {sys.executable} -c "{PY_IGNORES_TERM}" & echo $!) ; exec sleep 60'
    run = start(*sh(orphan), grace_s=0.3)
    run.event()
    lines = {run.line(), run.line()}
    assert "up" in lines
    pid = int((lines - {"up"}).pop())
    run.stop()
    assert run.events()[-1] == CLEAN
    await_end(pid)


def test_a_stopped_engine_still_gets_its_sigterm(start: Start) -> None:
    run = start("sleep", "60")
    os.kill(run.event()["pid"], signal.SIGSTOP)
    run.stop()
    assert run.events()[0] == {"event": "exited", "code": None, "signal": signal.SIGTERM}


def test_a_program_that_is_missing_is_reported(start: Start) -> None:
    run = start("/nowhere/engine")
    failed, *rest = run.events()
    assert failed == {"event": "failed", "stage": "exec", "errno": 2, "error": "No such file or directory"}
    assert rest == [{"event": "exited", "code": 127, "signal": None}, CLEAN]
    assert run.parent.wait(LIMIT_S) == 127
    assert not run.record.exists()


def test_an_engine_is_not_run_without_a_record(start: Start, tmp_path: Path) -> None:
    run = Run(tmp_path / "missing/engine.json", ["sleep", "60"], 1.0, False)
    assert run.event()["stage"] == "record"
    assert run.events()[-1] == CLEAN
    run.close()


def test_an_exit_is_reported_before_what_it_left_is_ended(start: Start) -> None:
    run = start(*sh("setsid sleep 60 & echo $!; exit 0"))
    run.event()
    child = int(run.line())
    assert run.event() == {"event": "exited", "code": 0, "signal": None}
    assert run.events() == [CLEAN]
    await_end(child)
    assert run.parent.wait(LIMIT_S) == 0


def test_signals_do_not_end_the_guard(start: Start) -> None:
    run = start("cat", "/dev/stdin")  # ends at once: its stdin is /dev/null, not the pipe
    assert [event["event"] for event in run.events()] == ["started", "exited", "clean"]
    run = start("sleep", "60")
    run.event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        run.parent.send_signal(number)
    assert select.select([run.status], [], [], 0.1)[0] == []
    assert run.parent.poll() is None


def test_kill_9_of_the_guard_takes_the_engine_along(start: Start) -> None:
    run = start("sleep", "60")
    engine = run.event()["pid"]
    run.parent.kill()
    assert run.events() == []
    await_end(engine)
    assert run.record.exists()  # for the sweep


def test_the_engine_starts_recorded_with_clean_signals_and_descriptors(start: Start, tmp_path: Path) -> None:
    record = tmp_path / "engine.json"
    run = start(*sh(f"echo $$; cat {record}; ls /proc/$$/fd; exec grep -E 'Sig(Ign|Blk)' /proc/self/status"))
    pid = int(run.line())
    assert json.loads(run.line())["pid"] == pid
    assert [run.line() for _ in range(3)] == ["0", "1", "2"]
    assert [run.line().split()[1] for _ in range(2)] == ["0" * 16] * 2


def test_the_kernel_would_take_the_engine_first_and_it_dumps_no_core(start: Start) -> None:
    run = start(*sh("cat /proc/self/oom_score_adj; ulimit -Sc; ulimit -Hc"))
    assert [run.line() for _ in range(3)] == ["1000", "0", "0"]


def test_a_record_of_a_later_run_is_left_alone(start: Start) -> None:
    run = start("sleep", "60")
    run.event()
    run.record.write_text(json.dumps({"pid": 999_999_999}))
    run.stop()
    assert run.events()[-1] == CLEAN
    assert run.record.exists()


def test_the_guard_imports_little() -> None:
    code = (
        "import importlib.util as u, sys; b = set(sys.modules)\n"
        f"s = u.spec_from_file_location('g', {str(GUARD)!r}); m = u.module_from_spec(s); s.loader.exec_module(m)\n"
        "print(*sorted(set(sys.modules) - b))"
    )
    out = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pathlib", "subprocess", "asyncio", "typing", "dataclasses", "argparse", "logging", "tempfile"}
    assert not heavy & set(out.stdout.split())


@pytest.mark.parametrize(
    ("word", "grace_s", "took_s"),
    [(b"0.2", 60.0, 0.2), (b"0", 60.0, 0.0), (b"60", 0.2, 0.2), (b"-1", 60.0, 0.0), (b"nonsense", 0.2, 0.2)],
)
def test_a_stop_may_name_its_own_grace_and_no_longer_one(
    start: Start, word: bytes, grace_s: float, took_s: float
) -> None:
    run = start(sys.executable, "-c", PY_IGNORES_TERM, grace_s=grace_s)
    run.event()
    assert run.line() == "up"
    asked_s = time.monotonic()
    run.stop(asked=True, word=word)
    assert run.events()[0] == {"event": "exited", "code": None, "signal": signal.SIGKILL}
    assert took_s <= time.monotonic() - asked_s < took_s + 2.0
