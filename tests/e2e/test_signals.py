"""Signals that nobody meant, Ctrl-C at any moment, a terminal, and verbs whose output goes nowhere."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.box import Box, until
from tests.e2e.conftest import MakeBox
from tests.interrupts import heed_interrupts
from tests.model import demo_wheel

USERS = (signal.SIGUSR1, signal.SIGUSR2)


def signals_of(pid: int, field: str) -> set[int]:
    """The signals of a line such as SigIgn in /proc/PID/status; none when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return set()
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith(f"{field}:")), 0)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_stray_signals_do_not_end_the_box_and_are_not_handed_down(shared_box: Box) -> None:
    stream = shared_box.streams(["a"], 400)[0]
    for number in USERS:
        os.kill(shared_box.pid, number)
    time.sleep(0.3)
    assert shared_box.state()["engine"]["phase"] == "ready"
    assert not shared_box.state()["stopping"]
    for pid in (shared_box.gateway_pid, shared_box.engine_pid, shared_box.guard_pid):
        assert not signals_of(pid, "SigIgn") & set(USERS)
    assert stream.wait(20).done


def test_a_second_stop_says_what_it_does(make_box: MakeBox) -> None:
    box = make_box().start().wait_ready()
    stream = box.streams(["a"], 5000)[0]
    assert box.cli("stop").stdout == "the box is being stopped\n"
    assert not stream.answer.ended_s
    assert box.cli("stop").stdout == "running streams are being ended now\n"
    assert stream.wait(3).cut
    assert box.process is not None
    assert box.process.wait(15) == 0


def test_settings_that_do_nothing_are_told(make_box: MakeBox) -> None:
    box = make_box(tables={"admission": {"streams": 8}})
    done = box.cli("check")
    assert done.returncode == 0, done.stderr
    assert "8 asked, the engine's profile allows 4" in done.stdout
    assert f"8 seats in {box.seats_file}\n1 admin in {box.home}" in done.stdout
    box.start().wait_ready()
    assert "8 asked, the engine's profile allows 4" in box.cli("status").stdout


@pytest.mark.parametrize("sink", ["/dev/full", "pipe"])
@pytest.mark.parametrize("words", ["status", "status --json"])
def test_a_status_that_cannot_be_printed_is_one_line_and_a_reader_who_left_none(
    shared_box: Box, sink: str, words: str
) -> None:
    command = " ".join(shared_box.argv(*words.split()))
    line = f"{command} > /dev/full" if sink == "/dev/full" else f"{command} | head -c 1 > /dev/null; exit $PIPESTATUS"
    argv = ["bash", "-c", line]
    done = subprocess.run(argv, cwd=shared_box.home, env=shared_box.environ(), capture_output=True, text=True)
    if sink == "/dev/full":
        assert done.returncode == 1
        error, _ = done.stderr.splitlines()
        assert "standard output cannot be written: No space left on device" in error
    else:
        assert done.stderr == ""
        assert done.returncode in (0, 1)


# Ctrl-C


SITE = """\
import pathlib, sys

def begins(event, args, sign=pathlib.Path({sign!r})):
    if event == "import" and args[0] == "appliance.cli.app":
        sign.touch()

sys.addaudithook(begins)
"""
"""Before that import `main` takes SIGINT for itself; what comes earlier is the interpreter's own start."""


def interrupted(box: Box, argv: list[str], after_s: float) -> tuple[int, str]:
    """Ctrl-C `after_s` after our first imports began; exit code and all that was said."""
    site, sign = box.home / "site", box.home / "imports-began"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE.format(sign=str(sign)))
    process = subprocess.Popen(
        argv,
        cwd=box.home,
        env=box.environ() | {"PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    until("its first imports begin", sign.exists, 10, 0.001)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    until("nothing is left", lambda: not box.left(), 5)
    return process.returncode, said


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("verb", ["run", "demo"])
def test_an_early_ctrl_c_is_quiet_and_leaves_nothing(make_box: MakeBox, verb: str, after_s: float) -> None:
    box = make_box()
    argv = box.argv("run")
    if verb == "demo":
        argv = [*argv[:1], "demo", "--home", str(box.home / "demo"), "--model", str(demo_wheel()), "--port"]
        argv.append(str(box.port))
    code, said = interrupted(box, argv, after_s)
    assert "Traceback" not in said, said
    assert "Exception ignored" not in said, said
    assert code in (0, 130), said
    lines = said.splitlines()
    if verb == "demo" and "Stopping." in lines:
        assert lines[-1] == "Stopping."


def test_a_check_that_was_interrupted_has_not_passed(make_box: MakeBox) -> None:
    box = make_box()
    argv = [*box.argv()[:1], "demo", "--check", "--home", str(box.home / "demo"), "--model", str(demo_wheel())]
    code, said = interrupted(box, argv, 0.9)
    assert code == 130, said
    assert "check passed" not in said


def test_a_terminal_is_told_when_the_box_serves_and_its_end_stops_the_box(make_box: MakeBox) -> None:
    box = make_box()
    ours, theirs = pty.openpty()
    argv = box.argv("run")
    with subprocess.Popen(argv, cwd=box.home, env=box.environ(), stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        os.set_blocking(ours, False)
        said, give_up_s = "", time.monotonic() + 20
        while f"ready: {box.url}/v1   page: {box.url}/admin\r\n" not in said:
            if time.monotonic() > give_up_s:
                process.terminate()
                raise AssertionError(said)
            time.sleep(0.05)
            with contextlib.suppress(BlockingIOError):
                said += os.read(ours, 4096).decode()
        os.close(ours)  # the terminal is closed: log lines go nowhere, and that ends nothing
        process.send_signal(signal.SIGHUP)
        assert process.wait(15) == 0
    until("nothing is left", lambda: not box.left(), 1)
