"""The daemon's Unix socket: who may connect, what it answers, and when a long poll returns."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import threading
import time

import pytest

from gateway.unixserver import may_connect
from tests.e2e.box import Box

NOBODY = 65534
KNOCK = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(5)
try:
    sock.connect(sys.argv[1])
    sock.sendall(b"GET /state HTTP/1.1\\r\\nhost: box\\r\\n\\r\\n")
    print(sock.recv(100))
except OSError as error:
    print(type(error).__name__)
"""


def knock(box: Box, name: str) -> str:
    """What a process of user and group 65534 gets from a socket of the box."""
    argv = [sys.executable, "-I", "-S", "-c", KNOCK, str(box.runtime / name), str(NOBODY)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def test_sockets_are_for_owner_and_group(shared_box: Box) -> None:
    for name in ("control.sock", "gateway.sock"):
        found = (shared_box.runtime / name).stat()
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert found.st_uid == os.geteuid()
    assert stat.S_IMODE((shared_box.runtime / "gateway.json").stat().st_mode) == 0o600
    assert [stat.S_IMODE(key.stat().st_mode) for key in shared_box.runtime.glob("engine-*.key")] == [0o600]


def test_an_engine_that_runs_is_not_started(shared_box: Box) -> None:
    before = shared_box.engine_pid
    done = shared_box.cli("start-engine")
    assert (done.returncode, done.stdout) == (0, "the engine runs already\n")
    assert shared_box.engine_pid == before
    assert "engine.start_asked" not in shared_box.cli("events", "--json").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_strangers_are_refused_by_the_mode_and_by_their_credentials(shared_box: Box) -> None:
    shared_box.runtime.chmod(0o755)
    assert knock(shared_box, "control.sock") == "PermissionError"
    for name in ("control.sock", "gateway.sock"):
        (shared_box.runtime / name).chmod(0o666)  # the mode alone would let them in now
        assert knock(shared_box, name) in ("b''", "ConnectionResetError", "BrokenPipeError")
        (shared_box.runtime / name).chmod(0o660)
    assert shared_box.log.count('"control.refused"') == 2
    assert f'"uid":{NOBODY}' in shared_box.log
    assert shared_box.state()["engine"]["phase"] == "ready"


def test_who_may_connect() -> None:
    me, mine = os.geteuid(), os.getegid()
    other_gid = mine + 4321
    assert may_connect(0, NOBODY, other_gid)
    assert may_connect(me, NOBODY, other_gid)
    assert may_connect(NOBODY, mine + 1, mine + 1), "the group of the process"
    assert not may_connect(NOBODY, NOBODY, other_gid)
    assert not may_connect(4_000_000_000, NOBODY, other_gid), "a user that nobody knows"
    nobody = pwd.getpwuid(NOBODY)
    assert may_connect(NOBODY, other_gid, nobody.pw_gid), "a group from the user database"


def test_unknown_verbs_and_bad_questions(shared_box: Box) -> None:
    assert shared_box.control("POST", "/no-such-verb")[0] == 404
    assert shared_box.control("GET", "/restart")[0] == 405
    assert shared_box.control("GET", "/state?after=x")[0] == 400
    assert shared_box.control("GET", "/state?wait_s=nan")[0] in (200, 400)
    assert shared_box.control("POST", "/no-such-verb", socket_name="gateway")[0] == 404


def test_long_poll_returns_at_its_deadline_and_at_a_change(shared_box: Box) -> None:
    revision = shared_box.state()["revision"]
    started_s = time.monotonic()
    assert shared_box.state(f"?after={revision}&wait_s=0.6")["revision"] == revision
    assert 0.55 < time.monotonic() - started_s < 1.0
    # A revision that is not known here, as after a restart of the daemon: at once.
    started_s = time.monotonic()
    assert shared_box.state(f"?after={revision + 1000}&wait_s=20")["revision"] == revision
    assert time.monotonic() - started_s < 0.5

    asked_s: list[float] = []

    def restart() -> None:
        asked_s.append(time.monotonic())
        shared_box.control("POST", "/restart")

    threading.Timer(0.3, restart).start()
    state = shared_box.state(f"?after={revision}&wait_s=20")
    took_s = time.monotonic() - asked_s[0]
    print(f"MEASURED long poll returned {took_s * 1000:.0f} ms after the change was asked for")
    assert state["revision"] > revision
    assert state["engine"]["phase"] == "stopping"
    assert took_s < 0.3
    shared_box.wait_ready(10.0)
