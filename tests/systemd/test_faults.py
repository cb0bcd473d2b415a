"""What goes wrong on a box: the daemon hangs or dies, the engine crashes or is taken by the kernel.

The gateway must not be missed by anybody where it is not the one at fault: `Watch` asks all the time.
"""

from __future__ import annotations

import contextlib
import json
import signal
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.e2e.box import until
from tests.systemd.service import Service, Watch

pytestmark = pytest.mark.systemd
SOON_S = 1.0
"""An answer of the gateway later than this would be missed."""


def new_engine(service: Service, old: int, limit_s: float = 20.0) -> int:
    """The pid of the engine that came after `old`, once it serves."""
    pid = until("another engine", lambda: (pid := service.pids["engine"]) != old and pid, limit_s)
    service.wait_ready()
    return pid


def kill(service: Service, pid: int, number: signal.Signals) -> None:
    """A signal, from inside."""
    service.machine.run(f"kill -{number.value} {pid}").ok()


def test_a_daemon_that_hangs_is_killed_by_the_watchdog_and_started_again(service: Service) -> None:
    service.drop_in("WatchdogSec=3", "RestartSec=1")
    service.systemctl("restart").ok()
    service.wait_ready()
    before = service.pids
    kill(service, before["daemon"], signal.SIGSTOP)
    until("the unit was started again", lambda: service.show_one("NRestarts") == "1", 30)
    service.wait_ready()
    after = service.pids
    assert all(after[name] not in (0, pid) for name, pid in before.items()), (before, after)
    assert service.answers("ana")
    assert "Failed with result 'watchdog'" in service.journal("-n 60")
    gone = [service.machine.run(f"kill -0 {pid}").code for pid in before.values()]
    assert 0 not in gone


def test_a_box_at_rest_keeps_the_watchdog_content(service: Service) -> None:
    service.drop_in("WatchdogSec=2")
    service.systemctl("restart").ok()
    service.wait_ready()
    pids = service.pids
    beats = set()

    def five_beats() -> bool:
        beats.add(service.show_one("WatchdogTimestampMonotonic"))
        return len(beats) >= 5

    until("beats, each in time", five_beats, 6)
    assert service.pids == pids
    assert service.show_one("NRestarts") == "0"


def test_a_daemon_that_is_killed_is_started_again_and_leaves_no_engine_behind(service: Service) -> None:
    service.drop_in("RestartSec=1")
    before = service.pids
    kill(service, before["daemon"], signal.SIGKILL)
    until("the unit was started again", lambda: service.show_one("NRestarts") == "1", 30)
    service.wait_ready()
    assert [service.machine.run(f"kill -0 {pid}").code for pid in before.values()].count(0) == 0
    assert service.answers("ana")


def test_an_engine_that_crashes_is_started_again_and_the_gateway_is_never_missed(service: Service) -> None:
    before = service.pids
    with Watch(service.healthy) as watch:
        kill(service, before["engine"], signal.SIGSEGV)
        until("it is seen", lambda: service.get("/ready").status == 503, 5)
        refused = service.chat("ana")
        new_engine(service, before["engine"])
    assert refused.status in (200, 503), refused.told()
    assert watch.missed == 0, watch.told
    assert watch.longest_s < SOON_S, watch.told
    assert watch.asked > 10, watch.told
    after = service.pids
    assert (after["daemon"], after["gateway"]) == (before["daemon"], before["gateway"])
    assert service.show_one("NRestarts") == "0"
    assert service.answers("ana")


def test_a_gateway_that_is_killed_is_started_again_beside_the_same_engine(service: Service) -> None:
    before = service.pids
    kill(service, before["gateway"], signal.SIGKILL)
    until("another gateway", lambda: service.pids["gateway"] not in (0, before["gateway"]), 10)
    service.wait_ready()
    assert service.pids["engine"] == before["engine"]
    assert service.answers("ana")


def test_an_engine_that_is_killed_as_the_kernel_does_it_leaves_the_unit_running(service: Service) -> None:
    before = service.pids
    assert service.machine.path(f"/proc/{before['engine']}/oom_score_adj").read_text().strip() == "1000"
    with Watch(service.healthy) as watch:
        kill(service, before["engine"], signal.SIGKILL)
        new_engine(service, before["engine"])
    assert watch.missed == 0, watch.told
    assert service.show("ActiveState", "Result", "NRestarts") == {
        "ActiveState": "active",
        "Result": "success",
        "NRestarts": "0",
    }


def test_when_memory_runs_out_the_kernel_takes_the_engine_although_the_gateway_is_larger(service: Service) -> None:
    # 1. All of the unit in a memory cgroup, as MemoryMax would do it; the guest's hierarchy has no such controller.
    if "memory" not in service.machine.cgroups:
        pytest.skip("this machine has no memory controller of the old kind that could be given to the unit")
    cgroup = service.machine.cgroups["memory"] / "unit"
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text(str(service.machine.leader))
    service.systemctl("restart").ok()
    (cgroup.parent / "cgroup.procs").write_text(str(service.machine.leader))
    before = service.wait_ready().pids
    assert resident_kib(service, before["engine"]) < resident_kib(service, before["gateway"])
    # 2. The engine wants far more than the 32 MiB that are left.
    used = int((cgroup / "memory.usage_in_bytes").read_text())
    (cgroup / "memory.limit_in_bytes").write_text(str(used + (32 << 20)))
    with Watch(service.healthy) as watch:
        swell(service, 200 << 20)
        until("the kernel ends one", lambda: kernel_kills(cgroup) == 1, 10)
        (cgroup / "memory.limit_in_bytes").write_text("-1")
        new_engine(service, before["engine"])
    # 3. It was the engine, and nobody else noticed.
    after = service.pids
    assert (after["daemon"], after["gateway"]) == (before["daemon"], before["gateway"])
    assert watch.missed == 0, watch.told
    assert service.show("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert service.answers("ana")


def kernel_kills(cgroup: Path) -> int:
    """How many processes the kernel has ended in it for want of memory."""
    counts = dict(line.split() for line in (cgroup / "memory.oom_control").read_text().splitlines())
    return int(counts["oom_kill"])


def resident_kib(service: Service, pid: int) -> int:
    """What a process has in memory."""
    text = service.machine.path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def swell(service: Service, size_bytes: int) -> None:
    """Send the fake engine more than fits; it does not live to answer."""
    engine = service.state()["engine"]
    key = service.machine.path(engine["key_file"]).read_text().strip()
    body = json.dumps({"reply_text": "x" * size_bytes}).encode()
    with service.machine.network():
        connection = HTTPConnection("127.0.0.1", int(engine["url"].rpartition(":")[2]), timeout=20)
        connection.connect()
    with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
        connection.request("POST", "/_fake/knobs", body, {"authorization": f"Bearer {key}"})
        connection.getresponse()
