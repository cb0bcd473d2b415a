"""The sweep signals only what is certainly a former run of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.engine.leftovers import read_record, sweep

LIMIT_S = 10.0


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "engine.json"


def sh(script: str) -> tuple[str, str, str]:
    return "/bin/sh", "-c", script


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def write_record(path: Path, pid: int, ticks: int, boot_id: str | None = None) -> None:
    boot_id = boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.write_text(json.dumps({"pid": pid, "pgid": pid, "start_ticks": ticks, "boot_id": boot_id}))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def orphan() -> Iterator[tuple[int, int, int]]:
    """(leader, its start_ticks, orphan): the leader has exited, its group lives on."""
    script = "sleep 60 >&- & echo $!; read x"
    with subprocess.Popen(sh(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        pid = int(leader.stdout.readline())
        ticks = start_ticks(leader.pid)
        leader.communicate(b"\n")
        yield leader.pid, ticks, pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_no_record_is_no_work(record: Path) -> None:
    assert sweep(record) == []


def test_a_running_leader_with_the_same_start_is_ended(record: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_record(record, sleeper.pid, start_ticks(sleeper.pid))
    assert sweep(record) == [sleeper.pid]
    assert sleeper.wait(LIMIT_S) == -signal.SIGTERM
    assert not record.exists()


def test_a_recycled_pid_is_not_touched(record: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_record(record, sleeper.pid, start_ticks(sleeper.pid) - 1)
    assert sweep(record) == []
    assert sleeper.poll() is None
    assert not record.exists()


def test_another_boot_is_not_touched(record: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_record(record, sleeper.pid, start_ticks(sleeper.pid), boot_id="another")
    assert sweep(record) == []
    assert sleeper.poll() is None
    assert not record.exists()


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_a_record_of_everything_is_not_believed(record: Path, pid: int) -> None:
    write_record(record, pid, start_ticks(1))
    assert read_record(record) is None
    assert sweep(record) == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pid": "x"}', '{"pid": 5}'])
def test_a_record_without_sense_is_removed(record: Path, text: str) -> None:
    record.write_text(text)
    assert sweep(record) == []
    assert not record.exists()


def test_members_are_ended_when_their_leader_is_gone(record: Path, orphan: tuple[int, int, int]) -> None:
    leader, ticks, pid = orphan
    write_record(record, leader, ticks)
    assert sweep(record) == [pid]
    assert not alive(pid)


def test_members_older_than_the_leader_are_not_ours(record: Path, orphan: tuple[int, int, int]) -> None:
    leader, ticks, pid = orphan
    write_record(record, leader, ticks + 1_000_000)
    assert sweep(record) == []
    assert alive(pid)


def test_who_ignores_sigterm_is_killed(record: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        write_record(record, process.pid, start_ticks(process.pid))
        assert sweep(record, term_s=0.1) == [process.pid]
        assert process.wait(LIMIT_S) == -signal.SIGKILL
