"""What the kernel says decides before the engine's log where it is about a card or about memory."""

from __future__ import annotations

import pytest

from appliance.box.host import Xid
from appliance.engine.failures import Context, Exit, OomKill, diagnose
from appliance.engine.failures.kernel_log import oom_kills
from tests.appliance.failures.test_vllm_logs import lines


def xid(number: int) -> Xid:
    return Xid(number, "0000:41:00", f"NVRM: Xid (PCI:0000:41:00): {number}, pid=77, name=VLLM::Worker")


@pytest.mark.parametrize(
    ("number", "words", "remedy", "retry"),
    [
        (48, "a memory error", "--gpu-reset", True),
        (62, "stopped", "reboot", False),
        (74, "NVLink", "--gpu-reset", True),
        (79, "fell off the bus", "reseat", False),
        (94, "a memory error", "--gpu-reset", True),
        (119, "stopped", "reboot", False),
        (154, "reset or a reboot", "reset", False),
    ],
)
def test_an_xid_of_the_card_decides_before_the_log(number: int, words: str, remedy: str, retry: bool) -> None:
    cause = diagnose(Exit(1, None), lines("gpu-memory"), Context(xids=(xid(31), xid(number))))
    assert cause.id == "engine.xid"
    assert f"Xid {number} of the card at 0000:41:00: " in cause.title
    assert words in cause.title
    assert remedy in cause.remedy
    assert cause.retry is retry
    assert cause.evidence == xid(number).line


@pytest.mark.parametrize("number", [13, 31, 43, 999])
def test_an_xid_of_a_program_is_told_where_the_log_knows_nothing(number: int) -> None:
    context = Context(xids=(xid(number),))
    assert diagnose(Exit(1, None), lines("gpu-memory"), context).id == "engine.gpu_memory"
    assert diagnose(Exit(1, None), ["bye"], context).id == "engine.xid"


def test_a_process_that_the_kernel_killed_for_memory_decides_before_all_else() -> None:
    context = Context(oom_killed=OomKill(9, "VLLM::Worker"), xids=(xid(79),))
    assert diagnose(Exit(0, None), lines("core-killed"), context).id == "engine.oom_kill"
    assert diagnose(Exit(None, 9), (), context).id == "engine.oom_kill"


def test_the_kernels_line_of_a_kill_is_read_for_memory_of_machine_and_group() -> None:
    log = (
        "Out of memory: Killed process 4711 (VLLM::Worker_TP) anon-rss:1024kB, file-rss:1kB, shmem-rss:3kB",
        "usb 1-1: new device",
        "Memory cgroup out of memory: Killed process 12 (python3) total-vm:9kB, anon-rss:0kB",
    )
    assert oom_kills(log) == (OomKill(4711, "VLLM::Worker_TP", 1028 * 1024), OomKill(12, "python3", 0, True))


def test_a_limit_of_the_group_is_told_from_want_of_memory() -> None:
    cause = diagnose(Exit(0, None), (), Context(oom_killed=OomKill(9, "x", cgroup=True)))
    assert "the engine's memory limit was reached" in cause.title
    assert "MemoryMax" in cause.remedy
    assert "MemoryMax" not in diagnose(Exit(0, None), (), Context(oom_killed=OomKill(9, "x"))).remedy
