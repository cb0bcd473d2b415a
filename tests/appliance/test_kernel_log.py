"""What the kernel said since a start, and nothing from before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.engine import kernel_log
from appliance.engine.kernel_log import LINES_MAX, KernelLog

XID = "NVRM: Xid (PCI:0000:41:00): 79, pid=7, GPU has fallen off the bus."
OOM = "Out of memory: Killed process 912 (VLLM::Worker) total-vm:1kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB"


def kmsg(root: Path, *lines: str) -> None:
    (root / "dev").mkdir(exist_ok=True)
    with (root / "dev/kmsg").open("a") as log:
        log.writelines(f"4,{number},100,-;{line}\n" for number, line in enumerate(lines))


def test_only_what_came_since_is_told_and_only_what_is_of_interest(tmp_path: Path) -> None:
    kmsg(tmp_path, XID.replace("79", "31"))
    log = KernelLog.opened(tmp_path)
    assert log.lines() == ()
    kmsg(tmp_path, XID)
    assert log.lines() == (XID,)
    kmsg(tmp_path, "usb 1-1: new device")
    kmsg(tmp_path, OOM)
    assert log.lines() == (XID, OOM)
    log.close()
    log.close()
    assert log.lines() is None


def test_a_log_that_cannot_be_read_is_not_one_that_says_nothing(tmp_path: Path) -> None:
    assert KernelLog.opened(tmp_path).lines() is None


def test_the_journal_is_asked_for_what_came_since_where_the_log_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\necho "{XID}"\necho "usb"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    log = KernelLog(1000.4, None, True)
    assert log.lines() == (XID,)
    assert "--since=@1000" in (tmp_path / "asked").read_text()


def test_a_sick_card_that_says_the_same_for_ever_is_cut_short() -> None:
    told = kernel_log._told("\n".join([XID] * 100))
    assert told == (XID,) * LINES_MAX
