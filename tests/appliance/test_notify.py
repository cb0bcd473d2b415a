"""The words to the service manager: what is sent, to whom, and that nothing of it can hurt."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import pytest

from appliance.notify import STATUS_MAX, Notify
from tests.datagrams import Datagrams


@pytest.mark.parametrize("abstract", [False, True])
def test_each_word_is_one_datagram_in_the_form_that_sd_notify_has(short_folder: Path, abstract: bool) -> None:
    address = f"@moe-{secrets.token_hex(8)}" if abstract else str(short_folder / "notify")
    with Datagrams(address) as manager:
        notify = Notify(address)
        assert notify.ready()
        assert notify.stopping()
        assert notify.status("3 streams of 4")
        assert notify.watchdog()
        assert notify.extend_timeout(1.5)
        manager.wait("five words", lambda texts: len(texts) == 5)
    assert manager.texts == [
        "READY=1",
        "STOPPING=1",
        "STATUS=3 streams of 4",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
    ]


def test_a_status_stays_one_line_of_a_length_that_systemd_takes(short_folder: Path) -> None:
    address = str(short_folder / "notify")
    with Datagrams(address) as manager:
        Notify(address).status("loads\nREADY=1\x1b[2J" + "\N{SNOWMAN}" * 5000)
        manager.wait("a status", len)
    (text,) = manager.texts
    assert text.startswith("STATUS=loads READY=1 [2J")
    assert len(text) == len("STATUS=") + STATUS_MAX
    assert len(text.encode()) < 4096


def test_nobody_listening_is_no_error(short_folder: Path) -> None:
    assert Notify().ready(), "no service manager: nothing to say"
    assert not Notify(str(short_folder / "absent")).ready()
    assert not Notify("/" + "x" * 200).ready()
    assert not Notify("/a\0b").ready()


def test_a_manager_that_does_not_read_blocks_nobody(short_folder: Path) -> None:
    address = str(short_folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(address)
        notify = Notify(address)
        sent = [notify.watchdog() for _ in range(5000)]
    assert sent[0]
    assert not sent[-1]


def test_the_variables_are_taken_out_of_the_environment() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/root"}
    assert Notify.taken_from(environ, os.getpid()) == Notify("@x", 30.0)
    assert environ == {"HOME": "/root"}
    assert Notify.taken_from(environ, os.getpid()) == Notify()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "3000000"}, Notify("", 3.0)),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, Notify()),
        ({"WATCHDOG_USEC": "0"}, Notify()),
        ({"WATCHDOG_USEC": "soon"}, Notify()),
        ({"WATCHDOG_USEC": "-5"}, Notify()),
        ({"NOTIFY_SOCKET": "vsock:2:1234"}, Notify()),
    ],
)
def test_a_watchdog_that_is_not_ours_or_makes_no_sense_is_none(environ: dict[str, str], expected: Notify) -> None:
    assert Notify.taken_from(dict(environ), 4711) == expected
