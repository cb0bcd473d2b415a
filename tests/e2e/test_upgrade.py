"""A gateway of another version takes over: no connection is refused, the cap holds, the engine goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.box import Box, until
from tests.e2e.conftest import MakeBox

STARTS = f'exec {sys.executable} "$@"'
SAYS_IT_CAN = """case "$*" in *--check*) echo '{{"version": "9.9", "python": "{python}", "protocol": 1}}'; exit 0;; esac
{then}"""
PYTHON = ".".join(map(str, sys.version_info[:3]))
MakeUpgraded = Callable[..., Box]


def wrapper(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def upgraded_box(make_box: MakeBox, tmp_path: Path) -> MakeUpgraded:
    """A box that serves and runs by version 1 of a package, of which `script` is the installed version's Python."""

    def make(script: str, **options: Any) -> Box:
        base = tmp_path / "lib"
        wrapper(base / "venvs/1/bin/python3", STARTS)
        wrapper(base / "venvs/2/bin/python3", script)
        (base / "current").symlink_to("venvs/2")
        patches = {
            "sys.executable": str(base / "venvs/1/bin/python3"),
            "appliance.installed.BASE": str(base),
            "appliance.installed.OWNER": os.geteuid(),
        }
        return make_box(patches=patches, **options).start().wait_ready()

    return make


def test_streams_end_whole_newcomers_wait_and_the_engine_never_runs_a_fifth(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box(SAYS_IT_CAN.format(python=PYTHON, then=STARTS))
    before = box.state()
    streams = box.streams(max_tokens=250)
    waiting = [box.post(seat, max_tokens=4) for seat in "efgh"]
    until("four wait", lambda: box.waiting() == 4, 3.0)
    ran: list[Any] = []
    verb = threading.Thread(target=lambda: ran.append(box.cli("upgraded", limit_s=60)))
    verb.start()
    until("the old gateway retires", lambda: "gateway.retiring" in box.log, 10.0)
    newcomers = [box.post(seat, max_tokens=4, text="new") for seat in "abcd"]
    verb.join(60)
    assert ran[0].returncode == 0, ran[0].stderr
    assert "a gateway of version 9.9 takes over; 4 running streams may end for 20 s" in ran[0].stdout
    assert "The gateway of version 9.9 answers." in ran[0].stdout
    assert "systemctl restart moe-appliance" in ran[0].stdout
    for call in (*streams, *waiting, *newcomers):
        answer = call.wait(20)
        assert (answer.status, answer.clean, answer.done) == (200, True, True), answer.told()
    now = box.state()
    assert box.stats()["peak_sequences"] == 4
    assert now["engine"]["pid"] == before["engine"]["pid"]
    assert now["gateway"]["pid"] != before["gateway"]["pid"]
    assert (now["gateway"]["version"], now["gateway"]["last_exit"]) == ("9.9", "replaced")
    assert now["gateway"]["restarts"] == before["gateway"]["restarts"]
    assert "gateway.absent" not in box.log
    assert [event["kind"] for event in now["events"]][-1] == "gateway.replaced"


def test_a_version_that_cannot_be_started_replaces_nothing(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box("echo 'No module named gateway' >&2; exit 1")
    before = box.gateway_pid
    ran = box.cli("upgraded")
    assert ran.returncode == 1
    assert "No module named gateway" in ran.stderr
    assert box.gateway_pid == before
    assert box.chat("a").status == 200


def test_a_version_that_ends_at_once_is_given_up_for_the_one_before(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box(SAYS_IT_CAN.format(python=PYTHON, then="exit 9"))
    before = box.state()
    ran = box.cli("upgraded", limit_s=60)
    assert ran.returncode == 1
    assert "version 9.9: exit code 9" in ran.stderr
    tries = [line for line in box.log.splitlines() if "gateway.spawned" in line and '"version":"9.9"' in line]
    assert len(tries) == 2
    box.served("a", 10.0)
    now = box.state()
    assert now["gateway"]["version"] == before["gateway"]["version"]
    assert now["engine"]["pid"] == before["engine"]["pid"]
    assert [found["id"] for found in now["findings"] if found["severity"] == "warn"][-1] == "gateway.fallback"


def test_a_version_that_is_gone_before_its_turn_is_given_up_too(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box(SAYS_IT_CAN.format(python=PYTHON, then=STARTS), tables={"gateway": {"drain_s": 2.0}})
    box.streams(["a"], max_tokens=5000)
    assert box.control("POST", "/replace-gateway")[0] == 202
    until("the old gateway retires", lambda: "gateway.retiring" in box.log, 10.0)
    (box.home.parent / "lib/venvs/2/bin/python3").unlink()
    box.wait_state("the finding", lambda state: any(f["id"] == "gateway.fallback" for f in state["findings"]), 15.0)
    box.served("b", 10.0)


def test_another_python_is_a_reason_to_restart_and_not_to_replace(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box(SAYS_IT_CAN.format(python="3.99.1", then=STARTS))
    ran = box.cli("upgraded")
    assert ran.returncode == 1
    assert "runs on Python 3.99.1" in ran.stderr
    assert "systemctl restart moe-appliance" in ran.stderr


def test_a_stop_wins_over_a_replacement(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box(SAYS_IT_CAN.format(python=PYTHON, then=STARTS), tables={"gateway": {"drain_s": 1.0}})
    stream = box.streams(["a"], max_tokens=5000)[0]
    assert box.control("POST", "/replace-gateway")[0] == 202
    assert box.control("POST", "/replace-gateway")[0] == 409
    until("the old gateway retires", lambda: "gateway.retiring" in box.log, 10.0)
    began_s = time.monotonic()
    assert box.stop() == 0
    assert time.monotonic() - began_s < 8.0
    assert not stream.wait(1).done
    assert box.log.count('"gateway.spawned"') == 1


def test_streams_that_are_longer_than_the_limit_end_with_an_honest_error(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box(SAYS_IT_CAN.format(python=PYTHON, then=STARTS), tables={"gateway": {"drain_s": 0.5}})
    stream = box.streams(["a"], max_tokens=5000)[0]
    assert box.cli("upgraded", limit_s=60).returncode == 0
    answer = stream.wait(5)
    assert not answer.clean
    assert answer.in_stream_error is not None
    assert box.chat("b").done


def test_what_runs_already_is_not_replaced(upgraded_box: MakeUpgraded) -> None:
    box = upgraded_box(SAYS_IT_CAN.format(python=PYTHON, then=STARTS))
    assert box.cli("upgraded", limit_s=60).returncode == 0
    pid, stream = box.gateway_pid, box.streams(["a"], max_tokens=250)[0]
    ran = box.cli("upgraded")  # the same package once more, or dpkg-reconfigure
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "runs already: nothing is replaced" in ran.stdout
    assert "systemctl" not in ran.stdout
    assert box.gateway_pid == pid
    assert stream.wait(20).done


def test_when_the_python_of_the_daemon_is_removed_the_gateway_goes_on_by_the_installed_one(
    upgraded_box: MakeUpgraded,
) -> None:
    def gone(state: dict[str, Any]) -> list[str]:
        return [found["remedy"] for found in state["findings"] if found["id"] == "python.gone"]

    # Given a system upgrade that removes it, and leaves one of another series
    box = upgraded_box(SAYS_IT_CAN.format(python="3.99.1", then=STARTS))
    own = box.home.parent / "lib/venvs/1/bin/python3"
    before = box.state()
    own.rename(own.with_name("away"))
    # Then it is said before anything breaks
    box.wait_state("the finding", lambda state: bool(gone(state)), 5.0)
    assert gone(box.state()) == ["sudo systemctl restart moe-appliance"]
    # And a gateway that ends is followed by one of the installed version
    os.kill(box.gateway_pid, signal.SIGKILL)
    box.wait_state("its gateway", lambda state: state["gateway"]["version"] == "9.9", 10.0)
    box.served("a", 10.0)
    assert box.state()["engine"]["pid"] == before["engine"]["pid"]
    # And what is mended is not said any more
    own.with_name("away").rename(own)
    box.wait_state("no finding", lambda state: not gone(state), 5.0)


def test_a_box_that_does_not_run_has_nothing_to_take_over(make_box: MakeBox) -> None:
    ran = make_box().cli("upgraded")
    assert ran.returncode == 0
    assert "does not run" in ran.stdout
