"""A box under a service manager: what systemd and the journal are told, in which order, and what children inherit."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.datagrams import Datagrams
from tests.e2e.box import Box, until
from tests.e2e.conftest import MakeBox
from tests.gateway.test_journal import decoded

WATCHDOG_S = 0.6
OURS = (b"NOTIFY_SOCKET=", b"WATCHDOG_USEC=", b"WATCHDOG_PID=")
SITE = """
import gateway.journal
gateway.journal.SOCKET = {path!r}
"""
MakeServed = Callable[..., tuple[Box, Datagrams, Datagrams]]


@pytest.fixture
def served(make_box: MakeBox, tmp_path: Path, short_folder: Path) -> Iterator[MakeServed]:
    """Makes a box with a service manager and a journal of the test; not yet started."""
    with ExitStack() as stack:

        def make(**options: Any) -> tuple[Box, Datagrams, Datagrams]:
            manager = stack.enter_context(Datagrams(str(short_folder / "notify")))
            journald = stack.enter_context(Datagrams(str(short_folder / "journal")))
            site = tmp_path / "site"
            site.mkdir()
            (site / "sitecustomize.py").write_text(SITE.format(path=journald.address))
            environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(round(WATCHDOG_S * 1e6))}
            box = make_box(environ=environ | {"PYTHONPATH": str(site)}, **options)
            log = box.home / "log"  # stderr of the box: "the journal's stream"
            log.touch()
            box._environ["JOURNAL_STREAM"] = f"{log.stat().st_dev}:{log.stat().st_ino}"
            return box, manager, journald

        yield make


def environ_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def lines(journald: Datagrams, event: str) -> list[dict[str, str]]:
    return [fields for fields in (decoded(data) for _, data in journald.got) if fields["EVENT"] == event]


def test_a_life_from_ready_to_the_end_is_told_in_order(served: MakeServed) -> None:
    box, manager, journald = served(knobs={"load_s": 1.5}, tables={"gateway": {"drain_s": 10.0}})
    box.start()
    manager.wait("ready", lambda texts: "READY=1" in texts, 20)
    assert box.get("/health").status == 200, "who waited for READY=1 is answered"
    ready = manager.texts.index("READY=1")
    assert "WATCHDOG=1" in manager.texts[:ready]
    assert not [text for text in manager.texts[:ready] if "engine ready" in text], "not when the engine is ready"
    manager.wait("the engine loads", lambda texts: any("not serving: engine starting" in text for text in texts))
    manager.wait("the engine serves", lambda texts: "engine ready" in texts[-1] or "engine ready" in texts[-2], 20)
    box.wait_ready()
    streams = box.streams(["a", "b"], max_tokens=400)
    manager.wait("two streams", lambda texts: any(text.startswith("STATUS=2 streams of 4; ") for text in texts))

    began = len(manager.texts)
    assert box.process is not None
    box.process.terminate()
    manager.wait("the stop", lambda texts: "STATUS=stopping: 2 streams may end for 10 s" in texts[began:])
    assert [call.wait(15).done for call in streams] == [True, True]
    assert box.process.wait(15) == 0
    said = [text for text in manager.texts[began:] if text != "WATCHDOG=1"]
    assert said[:3] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000", "STATUS=stopping: 2 streams may end for 10 s"]
    assert said.count("EXTEND_TIMEOUT_USEC=30000000") > 2, "a slow stop asks again and again"
    assert manager.texts.count("READY=1") == manager.texts.count("STOPPING=1") == 1

    assert {line["SEAT"] for line in lines(journald, "request.done") if "SEAT" in line} == {"a", "b"}
    assert {line["ENGINE_STATE"] for line in lines(journald, "request.done") if "SEAT" in line} == {"ready"}
    phases = [line["ENGINE_STATE"] for line in lines(journald, "engine.phase")]
    assert [phase for phase in phases if phase in ("starting", "warming", "ready")] == ["starting", "warming", "ready"]
    assert {decoded(data)["COMPONENT"] for _, data in journald.got} == {"daemon", "gateway"}
    assert box.log == "", "no line is told twice"


def test_children_have_no_word_with_the_service_manager(served: MakeServed) -> None:
    box, _, _ = served()
    box.start().wait_ready()
    for pid in (box.gateway_pid, box.guard_pid, box.engine_pid):
        assert not [entry for entry in environ_of(pid) if entry.startswith(OURS)]
    gateway, engine = environ_of(box.gateway_pid), environ_of(box.engine_pid)
    assert any(entry.startswith(b"JOURNAL_STREAM=") for entry in gateway)
    assert not any(entry.startswith(b"JOURNAL_STREAM=") for entry in engine)
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (box.engine_pid, box.guard_pid, box.pid)]
    assert scores[0] == 1000
    assert scores[1] == scores[2] < 1000
    assert "Max core file size        0                    0" in Path(f"/proc/{box.engine_pid}/limits").read_text()


def test_a_daemon_that_stands_still_sends_no_beat_and_an_engine_or_gateway_that_does_changes_nothing(
    served: MakeServed,
) -> None:
    box, manager, _ = served()
    box.start().wait_ready()

    def beats_within(limit_s: float) -> int:
        before = manager.texts.count("WATCHDOG=1")
        time.sleep(limit_s)
        return manager.texts.count("WATCHDOG=1") - before

    for pid in (box.engine_pid, box.gateway_pid):
        os.kill(pid, signal.SIGSTOP)
        assert beats_within(1.2) >= 3
        os.kill(pid, signal.SIGCONT)
    os.kill(box.pid, signal.SIGSTOP)
    time.sleep(0.05)
    assert beats_within(1.2) == 0
    os.kill(box.pid, signal.SIGCONT)
    assert beats_within(1.2) >= 3


def test_an_engine_that_fails_is_in_the_status_with_its_cause(served: MakeServed) -> None:
    box, manager, _ = served(tables={"engine": {"command": ["/no/such/engine", "{port}"]}})
    box.start()
    said = "not serving: engine refused:"
    manager.wait("why it does not serve", lambda texts: any(said in text for text in texts), 20)


def test_a_service_waits_for_its_address_and_a_person_does_not(served: MakeServed, make_box: MakeBox) -> None:
    box, manager, _ = served()
    with socket.create_server(("127.0.0.1", box.port)):
        box.start()
        manager.wait("it waits", lambda texts: any("STATUS=waits for its address" in text for text in texts))
        manager.wait("it asks for time", lambda texts: any(text.startswith("EXTEND") for text in texts))
        at_terminal = make_box("other", port=box.port).start()
        assert at_terminal.process is not None
        assert at_terminal.process.wait(15) == 78
    box.wait_ready()
    until("it is ready", lambda: "READY=1" in manager.texts, 5.0)
