"""How the progress of a fetch or a verification is told, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.checkpoint.progress import Progress, Tally
from appliance.cli.checkpoint_progress import LINE_S, Lines, duration, gib, line
from tests.checkpoint.fetching import REPO, checkpoint
from tests.checkpoint.range_server import FileServer

GIB = 1 << 30


def test_a_line_comes_every_thirty_seconds_with_the_rate_since_the_last() -> None:
    now_s, said = 100.0, list[str]()
    lines = Lines("fetching", said.append, lambda: now_s)
    for second in range(1, 91):
        now_s = 100.0 + second
        lines(Progress(done_bytes=GIB + second * 1_000_000, total_bytes=4 * GIB, files_done=1, files=3))

    assert len(said) == 90 // LINE_S
    assert said[1].startswith("fetching: 1.1 GiB of 4.0 GiB (26%), 1 MB/s, ")
    assert said[1].endswith(" left, 1 of 3 files")


def test_what_was_there_before_does_not_count_as_speed() -> None:
    now_s, said = 0.0, list[str]()
    lines = Lines("fetching", said.append, lambda: now_s)
    lines(Progress(done_bytes=3 * GIB, total_bytes=4 * GIB))
    now_s = 30.0
    lines(Progress(done_bytes=3 * GIB, total_bytes=4 * GIB))

    assert said == ["fetching: 3.0 GiB of 4.0 GiB (75%), 0 MB/s, 0 of 0 files"]


def test_nothing_to_do_is_all_done() -> None:
    assert "(100%)" in line("checking", Progress(), 0.0)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5_000, "83 min"), (11_100, "3 h 05 min")]
)
def test_times_are_told_for_people(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_small_sizes_are_told_in_mib() -> None:
    assert (gib(5 << 20), gib(GIB), gib(475 * GIB)) == ("5.0 MiB", "1.0 GiB", "475.0 GiB")


def test_bytes_that_are_dropped_were_received_all_the_same() -> None:
    seen: list[Progress] = []
    tally = Tally(seen.append, 100, 1)
    tally.received(60)
    tally.received(-60)
    tally.received(100)
    tally.finished()

    assert seen[-1] == Progress(100, 100, 160, 1, 1)
    assert tally.missing_bytes == 0


def test_a_terminal_gets_a_bar_and_standard_output_only_the_result(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with FileServer(checkpoint()) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "appliance", "checkpoint", "fetch", server.url, "--to", str(tmp_path)],
            cwd=REPO,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        drawn = b""
        try:
            while piece := os.read(ours, 65536):
                drawn += piece
        except OSError:  # the other end is closed
            pass
        out, _ = process.communicate(timeout=20)
        os.close(ours)

    assert process.returncode == 0
    assert b"fetching" in drawn
    assert out.startswith(f"{tmp_path}: 6 files")
