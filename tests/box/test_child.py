"""Children that are asked: never longer than their deadline, nothing of them left, one at a time where one may hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from appliance.box.child import Answer, OneChild, run

DEADLINE_S = 20.0


def started(pids: Path) -> list[int]:
    return [int(pid) for pid in pids.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def test_both_streams_and_the_exit_code_come_back() -> None:
    code = "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"
    assert OneChild().ask(python(code), {}, 20.0) == Answer("out\n", "err", 3)


def test_stdin_is_at_its_end() -> None:
    assert OneChild().ask(python("print(repr(input()))"), {}, 20.0).code == 1


def test_the_kernel_would_take_the_child_before_the_daemon() -> None:
    look = "import time; time.sleep(0.2); print(open('/proc/self/oom_score_adj').read())"
    assert run(python(look), os.environ, DEADLINE_S).out.split() == ["500"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert OneChild().ask(python(r"import os; os.write(1, b'a\xffb')"), {}, 20.0).out == "a\ufffdb"


def test_a_late_child_is_killed_with_all_it_started_and_what_it_wrote_is_kept() -> None:
    # given a child whose own child holds the same pipe and would keep it open
    code = "import os, time; os.write(1, b'begun'); os.fork(); time.sleep(600)"
    started = time.monotonic()
    # when
    answer = OneChild().ask(python(code), {}, 1.0)
    # then both are gone, or the pipe would still be open and half a second of waiting in vain
    assert answer == Answer("begun", "", None)
    assert time.monotonic() - started < 1.5


def test_a_question_during_another_waits_no_longer_than_its_own_deadline(tmp_path: Path) -> None:
    # given a child that another thread waits for
    one, begun = OneChild(), tmp_path / "begun"
    late = python(f"import time; open({str(begun)!r}, 'w'); time.sleep(600)")
    asking = threading.Thread(target=one.ask, args=(late, {}, 2.0))
    asking.start()
    ends = time.monotonic() + 20
    while not begun.exists() and time.monotonic() < ends:
        time.sleep(0.005)
    # when
    second = one.ask(python("print('out')"), {}, 0.1)
    # then
    assert second == Answer(refused="another question is being asked")
    asking.join()
    assert one.ask(python("print('out')"), {}, 20.0).out == "out\n"


def test_a_program_that_cannot_be_started_raises_and_the_next_is_asked() -> None:
    one = OneChild()
    with pytest.raises(OSError, match="no-such-program"):
        one.ask(["/no-such-program"], {}, 1.0)
    assert one.ask(python("print('out')"), {}, 20.0).out == "out\n"


def test_what_was_said_on_both_ways_and_the_exit_code_are_kept() -> None:
    found = run(["sh", "-c", "echo out; echo err >&2; exit 3"], os.environ, DEADLINE_S)

    assert (found.out, found.err, found.code) == ("out\n", "err\n", 3)


def test_the_signal_that_ended_it_is_its_code() -> None:
    assert run(["sh", "-c", "kill -SEGV $$"], os.environ, DEADLINE_S).code == -signal.SIGSEGV


def test_at_the_deadline_it_and_what_it_started_end_and_their_words_are_kept(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"(trap '' TERM; echo below; exec sleep 100) & echo $! $$ > {pids}; echo before; wait"

    found = run(["sh", "-c", script], os.environ, 0.5)

    assert found.code is None
    assert sorted(found.out.split()) == ["before", "below"]
    assert not any(alive(pid) for pid in started(pids))


def test_what_is_left_below_a_child_that_ended_ends_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    found = run(["sh", "-c", f"sleep 100 & echo $! > {pids}; exit 3"], os.environ, DEADLINE_S)

    assert found.code == 3
    assert not any(alive(pid) for pid in started(pids))


def test_more_words_than_a_pipe_holds_do_not_stop_it() -> None:
    assert len(run(["head", "-c", "1000000", "/dev/zero"], os.environ, DEADLINE_S).out) == 1_000_000


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        run(["/nonexistent/program"], os.environ, DEADLINE_S)


def test_beside_one_that_no_signal_ends_no_other_is_started() -> None:
    # given a child that lives on, as in a driver's uninterruptible sleep
    spared: list[int] = []
    one = OneChild(kill=lambda group, _: spared.append(group), after_kill_s=0.1)
    assert one.ask(python("import time; time.sleep(600)"), {}, 0.1).code is None
    # when it is asked again, then it is named
    assert one.ask(python("print('out')"), {}, 20.0).refused.startswith(f"process {spared[0]} still hangs")
    # when the driver lets go of it
    os.killpg(spared[0], signal.SIGKILL)
    os.waitid(os.P_PID, spared[0], os.WEXITED | os.WNOWAIT)
    assert one.ask(python("print('out')"), {}, 20.0).out == "out\n"


def test_the_end_of_the_process_ends_what_a_thread_still_waits_for(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    asker = f"""
import threading, time
from pathlib import Path
from appliance.box.child import _RUNNING, run
ask = ["sh", "-c", "echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 600"]
threading.Thread(target=run, args=(ask, {{"PATH": "/usr/bin:/bin"}}, 600.0), daemon=True).start()
while not (_RUNNING and Path({str(pids)!r}).exists()):
    time.sleep(0.005)
"""
    subprocess.run([sys.executable, "-c", asker], check=True, timeout=20)
    (pid,) = started(pids)
    ends = time.monotonic() + 5
    while alive(pid) and time.monotonic() < ends:
        time.sleep(0.005)
    assert not alive(pid)
